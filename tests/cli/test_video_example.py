"""The example for videos: stopped and resumed, over ranks, on small clips, without a GPU."""

from __future__ import annotations

from pathlib import Path

import pytest
from interpreter import Interpreter
from launch import run_ranks
from recipe_runs import checkpoint, metrics, same

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
