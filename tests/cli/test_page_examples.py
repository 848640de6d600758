"""The examples of the README and of the guide run, and the figures on all pages are those that were measured."""

from __future__ import annotations

import ast
import importlib.util
import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from interpreter import Interpreter
from PIL import Image

from gpupipe.testing.photos import make_photos

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
GUIDE = (
    "start", "tutorial", "own_data", "targets", "video", "training", "finetune", "augmentations", "determinism",
    "waiting",
    *(f"migrate/{page.stem}" for page in sorted((ROOT / "docs/migrate").glob("*.md"))),
)  # fmt: skip
"""Pages whose code runs from top to bottom, in a folder with photos/, scenes/ and videos/."""


def not_installed(code: str) -> set[str]:
    """Return the packages that a block imports and that are not there."""
    names = {
        name.split(".")[0]
        for node in ast.walk(ast.parse(code))
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for name in ([node.module or ""] if isinstance(node, ast.ImportFrom) else [it.name for it in node.names])
    }
    return {name for name in names if name not in sys.modules and importlib.util.find_spec(name) is None}


@pytest.fixture(scope="module")
def material(videos: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folders that the guide names. Read only."""
    root = tmp_path_factory.mktemp("guide")
    make_photos(root / "photos" / "train", classes=3, per_class=12, sizes=((120, 160), (160, 120), (128, 128)))
    for kind in ("images", "masks"):
        (root / "scenes" / kind).mkdir(parents=True)
    for i, path in enumerate(sorted((root / "photos" / "train").rglob("*.jpg"))[:6]):
        with Image.open(path) as image:
            mask = np.random.default_rng(i).integers(0, 3, image.size[::-1], np.uint8)
            image.save(root / "scenes" / "images" / f"{i}.jpg")
        Image.fromarray(mask).save(root / "scenes" / "masks" / f"{i}.png")
    for name in ("cfr.mp4", "bframes.mp4"):
        folder = root / "videos" / name.partition(".")[0]
        folder.mkdir(parents=True)
        (folder / name).symlink_to(videos[name])
    return root


RUN = f"""
import contextlib, io, json, os, pathlib, sys, warnings
sys.path.insert(0, {str(ROOT / "tests")!r})
import conftest
from typer.testing import CliRunner
from gpupipe import GpupipeWarning
from gpupipe.cli import app
warnings.simplefilter("error", GpupipeWarning)

def command(line):
    done = CliRunner().invoke(app, line.split()[1:])
    assert done.exit_code == 0, f"{{line}}: {{done.output}}"

said, root = {{}}, os.getcwd()
for page, code in json.loads(pathlib.Path("pages.json").read_text()).items():
    os.chdir(f"{{root}}/{{page}}")
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        names = {{"__name__": "__main__", "command": command}}
        exec(compile(code, f"docs/{{page}}.md", "exec"), names)
    for value in names.values():
        if hasattr(value, "state_dict") and hasattr(value, "report") and not isinstance(value, type):
            value.close()
    said[page] = out.getvalue()
os.chdir(root)
pathlib.Path("said.json").write_text(json.dumps(said))
"""


def script(page: str) -> str:
    """Return a page as a program, with the same numbers of lines. Only ``gpupipe pack`` runs of the commands."""
    lines: list[str] = []
    running = ""
    for line in page.splitlines():
        if line.startswith("```"):
            running = "" if running else line.removeprefix("```")
            lines.append("")
        elif running == "python":
            lines.append(line)
        elif running == "sh" and line.startswith("gpupipe pack "):
            lines.append(f"command({line.partition('#')[0]!r})")
        else:
            lines.append("")
    return "\n".join(lines)


def test_the_pages_of_the_guide_run(warm: Interpreter, material: Path, tmp_path: Path) -> None:
    """All in one process, because imports take most of the time. A traceback has the lines of the page."""
    pytest.importorskip("torchvision")
    programs = {page: script((ROOT / f"docs/{page}.md").read_text()) for page in GUIDE}
    programs = {page: code for page, code in programs.items() if not not_installed(code)}
    assert len(programs) >= len(GUIDE) - 1
    for page in programs:
        (tmp_path / page).mkdir(parents=True)
        for folder in material.iterdir():
            (tmp_path / page / folder.name).symlink_to(folder)
    (tmp_path / "pages.json").write_text(json.dumps(programs))
    done = warm.run(code=RUN, cwd=tmp_path, timeout=240)
    assert done.returncode == 0, done.stderr
    said = json.loads((tmp_path / "said.json").read_text())
    promised = {
        (page, text)
        for page, code in programs.items()
        for text in re.findall(r"print\(.*\)  # (torch\.Size[^:\n]*|engine: \w+)", code)
    }
    assert len(promised) >= 10
    assert {(page, text) for page, text in promised if text not in said[page]} == set()


TORCHVISION = f"""
import sys
sys.path.insert(0, {str(ROOT / "tests")!r})
from torchvision_ops import define_missing_operators
define_missing_operators()
"""


@pytest.mark.thorough
def test_the_skill_can_be_followed(warm: Interpreter, material: Path, tmp_path: Path) -> None:
    """Every command, in order, with the script that the page shows."""
    pytest.importorskip("torchvision")
    (tmp_path / "photos").symlink_to(material / "photos")
    page = (ROOT / "docs/SKILL.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (tmp_path / "train.py").write_text(code)
    answers = []
    for line in "".join(re.findall(r"```sh\n(.*?)```", page, re.DOTALL)).splitlines():
        program, *arguments = shlex.split(line)
        if program == "gpupipe":
            run = f"sys.argv = {['gpupipe', *arguments]!r}; from gpupipe.cli import main; main()"
            done = warm.run(code=TORCHVISION + run, cwd=tmp_path)
            assert done.returncode == 0, done.stderr
            answers.append(json.loads(done.stdout.splitlines()[-1]))
        elif program == "python":
            *options, script = arguments
            assert options == ["-W", "error::UserWarning"]
            run = f"import runpy; runpy.run_path({script!r}, run_name='__main__')"
            done = warm.run(code=TORCHVISION + run, cwd=tmp_path, warn=options[1:])
            assert done.returncode == 0, done.stderr
            assert done.stdout == "images (3, 64, 64) torch.float32\n"
        else:
            subprocess.run([program, *arguments], cwd=tmp_path, check=True)
    doctor, before, after = answers
    assert doctor["exit_code"] == 0 and all(it["level"] != "wrong" for it in doctor["findings"])
    assert [it["uses_gpupipe"] for it in before["loaders"] + after["loaders"]] == [False, True]
    (loader,) = after["loaders"]
    assert loader["engine"] == "dali" and loader["reasons"] == []


def test_a_page_that_is_wrong_is_seen() -> None:
    page = "Text\n```python\nx = 1\n```\n```sh\ngpupipe pack a b  # why\nls\n```\n```py\nnot run\n```\n"
    assert script(page).split("\n") == ["", "", "x = 1", "", "", "command('gpupipe pack a b  ')", "", "", "", "", ""]
    assert not_installed("import no_such_package.x\nfrom pathlib import Path") == {"no_such_package"}


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
