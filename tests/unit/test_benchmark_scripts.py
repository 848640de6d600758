"""Every benchmark starts, and what its strings name in gpupipe is there. mypy looks at the rest."""

from __future__ import annotations

import ast
import pkgutil
import re
from collections.abc import Iterator
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


def named(source: str) -> Iterator[str]:
    """Yield names in gpupipe that are in strings: whole ones, what code imports, and attributes that are replaced."""
    tree = ast.parse(source)
    imported = dict(_imports(tree))
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            if re.fullmatch(r"gpupipe(\.\w+)+", node.value):
                yield node.value
            elif "import " in node.value:
                try:
                    code = ast.parse(node.value)
                except SyntaxError:  # prose
                    continue
                yield from (name for _, name in _imports(code))
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "object":
            match node.args:  # of mock.patch.object
                case [ast.Name(owner), ast.Constant(str(attribute)), *_] if owner in imported:
                    yield f"{imported[owner]}.{attribute}"


def _imports(tree: ast.AST) -> Iterator[tuple[str, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("gpupipe"):
            for alias in node.names:
                yield alias.asname or alias.name, f"{node.module}.{alias.name}"
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.startswith("gpupipe"):
                    yield alias.asname or alias.name, alias.name


def test_names_in_strings_are_found() -> None:
    source = """
from gpupipe.a import B as C
mock.patch.object(C, "x", 1)
mock.patch("gpupipe.d.e")
run("import gpupipe.f; from gpupipe.g import h")
print("import nothing from gpupipe.here")
"""
    assert sorted(named(source)) == ["gpupipe.a.B.x", "gpupipe.d.e", "gpupipe.f", "gpupipe.g.h"]


def test_what_strings_name_is_there() -> None:
    gone = []
    for path in sorted(FOLDER.glob("*.py")):
        for name in named(path.read_text()):
            try:
                pkgutil.resolve_name(name)
            except (ImportError, AttributeError) as error:
                gone.append(f"{path.name}: {name}: {error}")
    assert not gone
