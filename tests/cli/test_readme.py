"""What the README shows is what runs."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

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
    names: dict[str, object] = {"root": root, "videos": tmp_path / "videos"}
    for number, block in enumerate(blocks):
        exec(compile(block, f"README.md, example {number + 1}", "exec"), names)
    assert first.with_suffix(".JPEG") in names["files"]  # type: ignore[operator]
    for name in ("loader", "train"):
        names[name].close()  # type: ignore[attr-defined]


def test_every_file_that_the_readme_names_exists() -> None:
    named = re.findall(r"\]\(([\w/.]+)\)|`((?:tests|benchmarks|examples|gpupipe)/[\w/.]+)`", README)
    assert named
    missing = [path for pair in named for path in pair if path and not (ROOT / path).exists()]
    assert not missing


def test_every_make_target_that_the_readme_names_exists() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for target in re.findall(r"make (\w+)", README):
        if target in ("demo", "test", "gpu", "bench"):
            assert re.search(rf"^{target}:", makefile, re.MULTILINE)
