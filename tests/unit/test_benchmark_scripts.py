"""Every benchmark starts. mypy looks at the rest."""

from __future__ import annotations

from pathlib import Path

from interpreter import Interpreter

FOLDER = Path(__file__).resolve().parents[2] / "benchmarks"

HELP = """
import contextlib, io, runpy, sys, traceback

scripts, failed = sys.argv[1:], False
for script in scripts:
    sys.argv, said, status = [script, "--help"], io.StringIO(), "returned"
    try:
        with contextlib.redirect_stdout(said):
            runpy.run_path(script, run_name="__main__")
    except SystemExit as end:
        status = end.code
    except Exception:
        status = traceback.format_exc()
    if status != 0 or script not in said.getvalue():
        failed = True
        print(script, status)
sys.exit(failed)
"""


def test_every_script_has_help(warm: Interpreter) -> None:
    scripts = sorted(path.name for path in FOLDER.glob("[!_]*.py"))
    done = warm.run(*scripts, code=HELP, cwd=FOLDER)
    assert done.returncode == 0, done.stdout + done.stderr
