"""Recipes learn from tiny data, and a run that was stopped in the middle of an epoch ends where a whole one ends."""

from __future__ import annotations

import csv
import math
import shutil
import subprocess
from pathlib import Path

import pytest
from interpreter import Interpreter
from recipe_runs import checkpoint, metrics, same

from gpupipe.testing.photos import make_photos

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
SMALL = ("--workers", 1, "--device", "cpu")
SHORT = ("--size", 32, "--epochs", 2, "--batch-size", 16)
RECIPES: dict[str, tuple[object, ...]] = {
    "finetune": (*SHORT, "--lr", 4e-3, "--batch-size", 8, "--epochs", 3, "--amp", "bfloat16"),
    "simclr": (*SHORT, "--clip", 1),
    "dino": (*SHORT, "--small-size", 32, "--small-views", 2, "--accumulate", 4),
    "mae": (*SHORT, "--accumulate", 4, "--ema", 0.9),
    "clip": (*SHORT, "--ema", 0.5),
    "diffusion": (*SHORT, "--batch-size", 8),
    "train_segmentation": ("--size", 48, "--epochs", 2, "--warmup", 0.2),
    "train_detection": ("--images", 40, "--epochs", 2, "--batch-size", 4, "--warmup", 0.2),
}


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four classes of 24 photographs, with captions."""
    root = make_photos(tmp_path_factory.mktemp("photos"), classes=4, per_class=24, sizes=((64, 80), (80, 64), (72, 72)))
    files = [path.relative_to(root) for path in sorted(root.rglob("*.jpg"))]
    with (root / "metadata.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("file_name", "text"), *((path, f"kind {path.parts[0]}") for path in files)])
    return root


def start(
    warm: Interpreter, recipe: str, photos: Path, out: Path, *arguments: object
) -> subprocess.CompletedProcess[str]:
    data = () if recipe.startswith("train") else (photos,)
    return warm.run(EXAMPLES / f"{recipe}.py", *data, "--out", out, *SMALL, *RECIPES[recipe], *arguments)


def run(warm: Interpreter, recipe: str, photos: Path, out: Path, *arguments: object) -> None:
    done = start(warm, recipe, photos, out, *arguments)
    assert done.returncode == 0, done.stderr[-3000:]


@pytest.mark.part(of=4)
@pytest.mark.parametrize("recipe", RECIPES)
def test_a_stopped_run_ends_where_a_whole_one_ends(
    recipe: str, warm: Interpreter, photos: Path, tmp_path: Path
) -> None:
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    run(warm, recipe, photos, whole)
    if (whole / "shapes").exists():
        parts.mkdir()
        (parts / "shapes").symlink_to(whole / "shapes")
    run(warm, recipe, photos, parts, "--save-every", 2, "--max-steps", 5)
    assert checkpoint(parts)["step"] == 4
    run(warm, recipe, photos, parts, "--resume")
    assert metrics(parts) == metrics(whole)
    for name in ("last.pt", "best.pt"):
        assert same(checkpoint(parts, name), checkpoint(whole, name))
    first, last = (
        {name: float(value) for name, value in row.items()} for row in (metrics(whole)[0], metrics(whole)[-1])
    )
    enough = {"finetune": ("accuracy", 0.6), "train_segmentation": ("mean_iou", 0.6)}
    if recipe in enough:
        name, least = enough[recipe]
        assert checkpoint(whole, "best.pt")["best"] > least
    elif recipe == "diffusion":
        assert last["loss"] < 0.8 * first["loss"] and (whole / "samples.png").stat().st_size > 1000
    elif recipe == "train_detection":
        assert last["loss"] < 11


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("recipe", "arguments"),
    [
        ("simclr", ("--epochs", 8, "--batch-size", 32)),
        ("dino", ("--epochs", 10, "--batch-size", 32, "--accumulate", 1)),
        ("mae", ("--epochs", 8, "--batch-size", 32, "--accumulate", 1)),
        ("clip", ("--epochs", 8)),
    ],
)
def test_it_learns(warm: Interpreter, photos: Path, tmp_path: Path, recipe: str, arguments: tuple[object, ...]) -> None:
    run(warm, recipe, photos, tmp_path, *arguments)
    first, *_, last = ({name: float(value) for name, value in row.items()} for row in metrics(tmp_path))
    if recipe == "dino":  # outputs that collapse to equal ones have the entropy of all prototypes
        assert last["loss"] < 0.95 * math.log(64)
    else:
        assert last["loss"] < (0.97 if recipe == "simclr" else 0.9) * first["loss"]
    assert last.get("knn", last.get("accuracy", 0.0)) > 0.5  # four classes


@pytest.mark.thorough
def test_weights_of_another_number_of_classes(warm: Interpreter, photos: Path, tmp_path: Path) -> None:
    run(warm, "finetune", photos, tmp_path / "a", "--epochs", 1)
    shutil.copytree(photos, tmp_path / "fewer")
    shutil.rmtree(next(folder for folder in (tmp_path / "fewer").iterdir() if folder.is_dir()))
    more = ("--weights", tmp_path / "a" / "best.pt", "--freeze", "--epochs", 1)
    done = start(warm, "finetune", tmp_path / "fewer", tmp_path / "b", *more)
    assert done.returncode == 0 and "head.weight" in done.stdout, done.stderr[-3000:]


def test_what_a_run_cannot_do_is_one_sentence(warm: Interpreter, photos: Path, tmp_path: Path) -> None:
    run(warm, "finetune", photos, tmp_path, "--epochs", 1)
    for arguments, message in (
        (("--resume", "--size", 48), "size: 32, now 48"),
        (("--resume", "--ema", 0.9), "was saved without --ema"),
        (("--sync-bn",), "on GPUs only"),
    ):
        done = start(warm, "finetune", photos, tmp_path, *arguments)
        assert done.returncode == 1 and message in done.stderr and "Traceback" not in done.stderr
    missing = "import importlib.util as util, runpy, sys; sys.path[:0] = [sys.argv[1]]; find = util.find_spec;\n"
    missing += "util.find_spec = lambda name, *more: None if name == 'tensorboard' else find(name, *more)\n"
    missing += "sys.argv.pop(0); runpy.run_module('finetune', run_name='__main__')"
    done = warm.run(EXAMPLES, photos, "--out", tmp_path / "none", *SMALL, "--tensorboard", code=missing)
    assert done.returncode == 1 and "TensorBoard is not installed" in done.stderr and "Traceback" not in done.stderr
    assert not (tmp_path / "none").exists()


def test_a_plot_of_runs(warm: Interpreter, photos: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "metrics.csv").write_text("epoch,step,loss,top1\n0,6,2.5,0.25\n1,12,1.5,nan\n")
    done = warm.run(EXAMPLES / "plot.py", tmp_path / "a", tmp_path / "b", "--out", tmp_path / "both.svg")
    assert done.returncode == 0, done.stderr[-3000:]
    drawn = (tmp_path / "both.svg").read_text()
    assert all(f"<!-- {text} -->" in drawn for text in ("loss", "top1", "a", "b")) and "<!-- step -->" not in drawn
