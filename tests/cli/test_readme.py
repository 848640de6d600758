"""The README's examples run, and the figures on all pages are those that were measured."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from interpreter import Interpreter

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def test_the_python_examples_run_when_pasted_one_after_another(
    photos: Path, videos: dict[str, Path], tmp_path: Path
) -> None:
    pytest.importorskip("torchvision")
    for name in ("cfr.mp4", "vfr.mp4", "bframes.mp4"):
        folder = tmp_path / "videos" / name.partition(".")[0]
        folder.mkdir(parents=True)
        (folder / name).symlink_to(videos[name])
    root = shutil.copytree(photos, tmp_path / "photos")
    first = min(root.rglob("*.jpg"))
    first.rename(first.with_suffix(".JPEG"))  # as ImageNet's files are called
    blocks = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert len(blocks) >= 4
    names: dict[str, Any] = {"root": root, "videos": tmp_path / "videos"}
    for number, block in enumerate(blocks):
        exec(compile(block, f"README.md, example {number + 1}", "exec"), names)
        if "class Photos" in block:
            assert "engine: dali" in repr(names["loader"])
    assert first.with_suffix(".JPEG") in names["files"]
    for name in ("loader", "train"):
        names[name].close()


def test_the_readme_is_a_page() -> None:
    assert len(README.splitlines()) <= 250


def test_figures_and_promises_are_what_was_measured(warm: Interpreter) -> None:
    """As ``python benchmarks/figures.py`` and ``python benchmarks/transforms_table.py --write`` would write them."""
    code = (
        "import transforms_table as t; from _common import load; "
        "assert t.PAGE_FILE.read_text() == t.page(load('transforms')), 'docs/transforms.md'"
    )
    folder = ROOT / "benchmarks"
    for run in (warm.run("figures.py", "--check", cwd=folder), warm.run(code=code, cwd=folder)):
        assert run.returncode == 0, run.stderr
