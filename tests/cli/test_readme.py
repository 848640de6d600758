"""What the README and the pages in docs/ show is what runs, and what was measured."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from interpreter import Interpreter

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
PAGES = ("README.md", "CONTRIBUTING.md", "gpupipe/README.md", *(f"docs/{p.name}" for p in ROOT.glob("docs/*.md")))


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


@pytest.mark.parametrize("page", PAGES)
def test_every_file_that_a_page_names_exists(page: str) -> None:
    text, folder = (ROOT / page).read_text(), (ROOT / page).parent
    links = [folder / path for path in re.findall(r"\]\((?!https?:)([^)#\s]+)", text)]
    named = re.findall(r"`((?:tests|benchmarks|examples|gpupipe|docs)/[\w/.]+)`", text)
    assert not [path for path in [*links, *(ROOT / name for name in named)] if not path.exists()]


def test_every_make_target_that_the_readme_names_exists() -> None:
    makefile = (ROOT / "Makefile").read_text()
    targets = re.findall(r"(?:`|^)make (\w+)", README, re.MULTILINE)
    assert "demo" in targets
    for target in targets:
        assert re.search(rf"^{target}:", makefile, re.MULTILINE)


def test_figures_and_promises_are_what_was_measured(warm: Interpreter) -> None:
    """As ``python benchmarks/figures.py`` and ``python benchmarks/transforms_table.py --write`` would write them."""
    code = (
        "import transforms_table as t; from _common import load; "
        "assert t.PAGE_FILE.read_text() == t.page(load('transforms')), 'docs/transforms.md'"
    )
    folder = ROOT / "benchmarks"
    for run in (warm.run("figures.py", "--check", cwd=folder), warm.run(code=code, cwd=folder)):
        assert run.returncode == 0, run.stderr
