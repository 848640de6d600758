"""The example for videos: stopped and resumed, over ranks, on small clips, without a GPU."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest
import torch
from interpreter import Interpreter
from launch import run_ranks

pytest.importorskip("av")

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "examples" / "train_video.py"


SMALL = ("--device", "cpu", "--size", 32, "--frames", 4, "--workers", 1, "--save-every", 2, "--val-clips", 2)


def run(warm: Interpreter, out: Path, *arguments: object, ranks: int = 1) -> None:
    argv = (SCRIPT, *arguments, "--out", out, *SMALL)
    if ranks > 1:
        run_ranks(warm, ranks, *argv)
    else:
        done = warm.run(*argv, cwd=ROOT)
        assert done.returncode == 0, done.stderr[-3000:]


@pytest.fixture(scope="module")
def data(warm: Interpreter, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the example makes if it is given nothing: 4 classes of 5 videos, and of 1 to validate on."""
    out = tmp_path_factory.mktemp("made")
    run(warm, out, "--epochs", 0, "--videos", 5)
    return out / "videos"


def checkpoint(out: Path) -> dict[str, Any]:
    loaded: dict[str, Any] = torch.load(out / "last.pt", weights_only=True)
    return loaded


def metrics(out: Path) -> list[dict[str, str]]:
    """What does not depend on the clock."""
    with (out / "metrics.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    return [{k: v for k, v in row.items() if k not in ("images_per_second", "waited_for_data")} for row in rows]


def same(a: dict[str, Any], b: dict[str, Any]) -> bool:
    """Whether two checkpoints have the same weights, to the last bit, and the same place in the data."""
    weights = all(torch.equal(a["model"][k], v) for k, v in b["model"].items())
    return weights and a["loader"] == b["loader"] and a["step"] == b["step"]


@pytest.mark.part(of=2)
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_run_that_was_stopped_ends_where_an_undisturbed_one_ends(
    warm: Interpreter, data: Path, tmp_path: Path, ranks: int
) -> None:
    # 5 steps an epoch, a checkpoint at every even step.
    engine = "auto" if ranks == 1 else "torch"
    fixed = (data, "--epochs", 3 - ranks, "--batch-size", 4, "--engine", engine)
    run(warm, tmp_path / "whole", *fixed, ranks=ranks)
    run(warm, tmp_path / "parts", *fixed, "--max-steps", 3, ranks=ranks)
    middle = checkpoint(tmp_path / "parts")
    assert (middle["step"], middle["loader"]["epoch"], middle["loader"]["delivered"]) == (2, 0, 8)
    run(warm, tmp_path / "parts", *fixed, "--resume", ranks=ranks)
    assert same(checkpoint(tmp_path / "whole"), checkpoint(tmp_path / "parts"))
    assert metrics(tmp_path / "whole") == metrics(tmp_path / "parts")
    # 4 videos of 2 clips; over two ranks nothing is counted twice.
    assert [(row["videos"], row["clips"]) for row in metrics(tmp_path / "whole")] == [("4", "8")] * (3 - ranks)
