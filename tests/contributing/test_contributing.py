"""What CONTRIBUTING says is enough to add an op, a format and a target: each is a patch here, applied to a copy."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PATCHES = {path.stem: path for path in Path(__file__).parent.glob("*.patch")}
COPIED = ("gpupipe", "pipelines", "tests", "benchmarks/*.py", "docs", "*.md", "pyproject.toml")
TESTS = {
    "op": ["tests/unit/test_ops.py", "tests/unit/test_color_transforms.py"],
    "format": ["tests/contract/test_formats.py", "tests/unit/test_sources_page.py"],
    "target": ["tests/unit/test_lines.py"],
}
"""The tests that CONTRIBUTING names, of which those of what was added run."""
MOST = {"op": (7, 9), "format": (3, 4), "target": (2, 2)}
"""Files and hunks at most."""


def run(*command: str | Path, cwd: Path, **environment: str) -> str:
    done = subprocess.run(
        command, cwd=cwd, env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the checkout with all patches."""
    if not (ROOT / ".git").exists():
        pytest.skip("needs a git checkout")
    copy = tmp_path_factory.mktemp("checkout")
    listed = run("git", "ls-files", "--cached", "--others", "--exclude-standard", *COPIED, cwd=ROOT).splitlines()
    for name in listed:
        if (ROOT / name).is_file():
            target = copy / name
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, target)
    (copy / "gpupipe" / "pipelines").symlink_to("../pipelines")  # where it is installed
    for patch in PATCHES.values():
        run("git", "apply", patch, cwd=copy, GIT_CEILING_DIRECTORIES=str(copy.parent))
    return copy


@pytest.mark.parametrize("what", TESTS)
def test_few_edits_are_enough(what: str) -> None:
    text = PATCHES[what].read_text()
    files, hunks = MOST[what]
    assert text.count("\ndiff --git ") + 1 <= files and text.count("\n@@ ") <= hunks
    named = (ROOT / "CONTRIBUTING.md").read_text()
    assert all(name in named for name in TESTS[what] if "lines" not in name)


@pytest.mark.thorough
def test_what_was_added_passes_its_tests(checkout: Path, tmp_path: Path) -> None:
    pytest.importorskip("nvidia.dali")
    pytest.importorskip("torchvision")
    tests = sorted({name for names in TESTS.values() for name in names})
    words = "Gamma or gamma or (npz and (two_epochs or bad_samples or changed)) or NPZ or public or test_lines"
    out = run(
        *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests, "-k", words),
        cwd=checkout,
        PYTHONPATH=str(checkout),
        GPUPIPE_CACHE=str(tmp_path),
    )
    last = out.splitlines()[-1]
    assert "failed" not in last and int(last.split()[0]) >= 15, out
