"""The example for images: stopped and resumed, over ranks, on small pictures, without a GPU."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from interpreter import Interpreter
from launch import run_ranks
from recipe_runs import checkpoint, metrics, same

from gpupipe.testing.photos import make_photos

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "examples" / "train_imagenet.py"
SIZES = ((64, 80), (80, 64), (72, 72))
SMALL = ("--size", 32, "--workers", 1, "--device", "cpu", "--save-every", 2)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """3 classes: 48 pictures to train on, 15 to validate on."""
    root = tmp_path_factory.mktemp("data")
    make_photos(root / "train", classes=3, per_class=16, seed=0, sizes=SIZES)
    make_photos(root / "val", classes=3, per_class=5, seed=1, sizes=SIZES)
    return root


Train = Callable[..., None]


@pytest.fixture(scope="module")
def train(warm: Interpreter, data: Path) -> Train:
    """``train(out, *more)``, also over several ranks."""

    def run(out: Path, *more: object, ranks: int = 1, epochs: int = 2) -> None:
        arguments = (SCRIPT, data, "--out", out, "--batch-size", 8, "--epochs", epochs, *SMALL, *more)
        if ranks > 1:
            run_ranks(warm, ranks, *arguments)
        else:
            done = warm.run(*arguments, cwd=ROOT)
            assert done.returncode == 0, done.stderr[-3000:]

    return run


@pytest.fixture(scope="module")
def whole(train: Train, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What an undisturbed run left. Read only."""
    out = tmp_path_factory.mktemp("whole")
    train(out)
    return out


def test_a_run_stopped_twice_ends_where_an_undisturbed_one_ends(train: Train, whole: Path, tmp_path: Path) -> None:
    # 6 steps an epoch, a checkpoint at every even step: both stops throw one step away.
    train(tmp_path / "parts", "--max-steps", 3)
    middle = checkpoint(tmp_path / "parts")
    assert (middle["step"], middle["loader"]["epoch"], middle["loader"]["delivered"]) == (2, 0, 16)
    train(tmp_path / "parts", "--resume", "--max-steps", 9)
    assert checkpoint(tmp_path / "parts")["loader"]["delivered"] == 16
    train(tmp_path / "parts", "--resume")

    assert same(checkpoint(whole), checkpoint(tmp_path / "parts"))
    assert metrics(whole) == metrics(tmp_path / "parts")
    assert [row["val_images"] for row in metrics(whole)] == ["15", "15"]


def test_all_options_together_resume_exactly(train: Train, tmp_path: Path) -> None:
    more: tuple[object, ...] = ("--auto-augment", "ta_wide", "--erase", 0.5, "--mixup", 0.2, "--cutmix", 1)
    more += ("--amp", "float16", "--accumulate", 4, "--clip", 1, "--ema", 0.9)
    train(tmp_path / "whole", *more)
    train(tmp_path / "parts", *more, "--max-steps", 5)
    assert checkpoint(tmp_path / "parts")["step"] == 4  # not 2, in the middle of four batches
    train(tmp_path / "parts", *more, "--resume")
    whole = checkpoint(tmp_path / "whole")
    assert same(whole, checkpoint(tmp_path / "parts"))
    assert metrics(tmp_path / "whole") == metrics(tmp_path / "parts")
    # Four changes: after four batches and after the last two, in each epoch.
    assert whole["average"]["n_averaged"] == 4 and whole["scaler"]["scale"] > 0


@pytest.mark.thorough
def test_two_ranks_evaluate_every_image_once_and_resume_exactly(
    warm: Interpreter, train: Train, data: Path, tmp_path: Path
) -> None:
    # As a reader would run it; one thread each, because several would fight for the cores of a small machine.
    command = ["--standalone", "--nproc-per-node=2", SCRIPT, data, "--out", tmp_path / "whole", "--engine", "torch"]
    command += ["--batch-size", 8, "--epochs", 1, *SMALL]
    torchrun = "from torch.distributed.run import main; main()"
    done = warm.run(*command, code=torchrun, cwd=ROOT, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr[-3000:]
    rows = metrics(tmp_path / "whole")
    # 15 is odd: one of the two ranks gets one image of padding.
    assert [(row["step"], row["val_images"]) for row in rows] == [("6", "15")]
    for more in (("--max-steps", 3), ("--resume",)):
        train(tmp_path / "parts", "--engine", "torch", *more, ranks=2, epochs=1)
    assert same(checkpoint(tmp_path / "whole")["model"], checkpoint(tmp_path / "parts")["model"])


@pytest.mark.part(of=2)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_run_that_is_asked_to_stop_loses_no_step(
    number: signal.Signals, warm: Interpreter, train: Train, whole: Path, data: Path, tmp_path: Path
) -> None:
    fixed = (SCRIPT, data, "--out", tmp_path / "parts", "--batch-size", 8, "--epochs", 2, *SMALL, "--save-every", 500)
    with warm.start(*fixed, cwd=ROOT) as script:
        assert "DataLoader" in script.line()  # it is printed before the first step
        os.kill(script.pid, number)
        assert script.wait(60) == 75  # on which a SLURM script queues the job again
        assert "stopping after this step" in script.stderr and "--resume goes on from there" in script.stderr
    assert 0 < checkpoint(tmp_path / "parts")["step"] < 12
    train(tmp_path / "parts", "--save-every", 500, "--resume")
    assert same(checkpoint(whole), checkpoint(tmp_path / "parts"))


def test_it_says_what_is_missing(train: Train, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="there is no"):
        train(tmp_path, "--resume")
