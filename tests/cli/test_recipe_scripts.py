"""The recipes that share ``examples/run.py``: each one learns from tiny data, and goes on where it stopped."""

from __future__ import annotations

import csv
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from interpreter import Interpreter

from gpupipe.testing.photos import make_photos

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
SMALL = ("--size", 32, "--workers", 1, "--device", "cpu")


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four classes of 24 photographs. The captions are made by the recipes."""
    root = tmp_path_factory.mktemp("photos")
    return make_photos(root, classes=4, per_class=24, sizes=((64, 80), (80, 64), (72, 72)))


def run(warm: Interpreter, recipe: str, photos: Path, out: Path, *arguments: object) -> list[dict[str, float]]:
    """Run a recipe on the photographs and return its metrics by epoch."""
    out.mkdir(exist_ok=True)
    if not (out / "photos").exists():
        shutil.copytree(photos, out / "photos")
    data = () if recipe in ("clip", "diffusion") else (out / "photos",)
    done = warm.run(EXAMPLES / f"{recipe}.py", *data, "--out", out, *SMALL, *arguments, cwd=out.parent)
    assert done.returncode == 0, done.stderr[-3000:]
    with (out / "metrics.csv").open(newline="") as f:
        return [{name: float(value) for name, value in row.items()} for row in csv.DictReader(f)]


def test_a_classifier_of_ones_own_folder(warm: Interpreter, photos: Path, tmp_path: Path) -> None:
    rows = run(warm, "finetune", photos, tmp_path / "a", "--epochs", 6, "--batch-size", 16, "--lr", 4e-3)
    assert len(rows) == 6 and max(row["accuracy"] for row in rows) > 0.6  # four classes
    best = torch.load(tmp_path / "a" / "best.pt", weights_only=True)
    assert best["best"] == max(row["accuracy"] for row in rows)


@pytest.mark.thorough
def test_weights_of_another_number_of_classes(warm: Interpreter, photos: Path, tmp_path: Path) -> None:
    run(warm, "finetune", photos, tmp_path / "a", "--epochs", 1)
    shutil.rmtree(next(folder for folder in (tmp_path / "a" / "photos").iterdir() if folder.is_dir()))
    more = ("--weights", tmp_path / "a" / "best.pt", "--freeze", "--epochs", 1, "--batch-size", 16)
    left = tmp_path / "a" / "photos"
    done = warm.run(EXAMPLES / "finetune.py", left, "--out", tmp_path / "b", *SMALL, *more, cwd=tmp_path)
    assert done.returncode == 0 and "head.weight" in done.stdout, done.stderr[-3000:]


@pytest.mark.thorough
def test_diffusion_in_buckets_goes_on_where_it_stopped(warm: Interpreter, photos: Path, tmp_path: Path) -> None:
    whole = run(warm, "diffusion", photos, tmp_path / "whole", "--epochs", 2, "--batch-size", 8)
    assert whole[1]["loss"] < 0.8 * whole[0]["loss"] and (tmp_path / "whole" / "samples.png").stat().st_size > 1000
    parts, more = tmp_path / "parts", ("--epochs", 2, "--save-every", 5, "--batch-size", 8)
    shutil.copytree(photos, parts / "photos")
    done = warm.run(EXAMPLES / "diffusion.py", "--out", parts, *SMALL, *more, "--max-steps", 17, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    run(warm, "diffusion", photos, parts, *more, "--resume")

    def weights(out: Path) -> Any:
        return torch.load(out / "last.pt", weights_only=True)["model"]

    one, two = weights(tmp_path / "whole"), weights(parts)
    assert one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("recipe", "arguments"),
    [
        ("simclr", ("--epochs", 8, "--batch-size", 32)),
        ("dino", ("--epochs", 10, "--batch-size", 32, "--small-size", 32, "--small-views", 2)),
        ("mae", ("--epochs", 8, "--batch-size", 32)),
        ("clip", ("--epochs", 8, "--batch-size", 16)),
    ],
)
def test_it_learns(warm: Interpreter, photos: Path, tmp_path: Path, recipe: str, arguments: tuple[object, ...]) -> None:
    rows = run(warm, recipe, photos, tmp_path / "out", *arguments)
    first, last = rows[0], rows[-1]
    if recipe == "dino":  # outputs that collapse to equal ones have the entropy of all prototypes
        assert last["loss"] < 0.95 * math.log(64)
    else:
        assert last["loss"] < (0.97 if recipe == "simclr" else 0.9) * first["loss"]
    assert last.get("knn", last.get("accuracy", 0.0)) > 0.5  # four classes
