"""``gpupipe why``: what it says of a script's loaders, and that the script does not go on."""

from __future__ import annotations

import json
import time
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from command_line import error
from interpreter import Interpreter
from torch.utils.data import DataLoader as TorchLoader, Dataset, IterableDataset

import gpupipe
from gpupipe import datasets, transforms as T
from gpupipe.errors import ConfigError
from gpupipe.loader.ceiling import Ceiling, _of
from gpupipe.why.explain import TORCHS_OWN, Change, Explained, _smallest, explain
from gpupipe.why.watch import Made, watching

SCRIPT = """
import atexit, sys
from pathlib import Path
import torch.utils.data as data
import gpupipe
from gpupipe import datasets, transforms as T

class Numbers(data.IterableDataset):
    def __iter__(self):
        return iter(range(8))

class Loader(data.DataLoader):
    pass

if __name__ == "__main__":
    print("the script's", sys.argv[1:])
    photos = datasets.ImageFolder(sys.argv[1], T.Compose([T.Resize((16, 16)), T.ToTensor()]))
    train = gpupipe.DataLoader(photos, batch_size=8, shuffle=True, device="cpu")
    stream = Loader(Numbers(), batch_size=2)
    atexit.register(Path("ended").touch)
    try:
        for batch in stream:
            Path("trained").touch()
    except BaseException:
        Path("caught").touch()
    finally:
        Path("saved").touch()
"""
COMMAND = "from gpupipe.cli import main\nmain()\n"


def test_a_script_runs_up_to_its_loaders(
    warm: Interpreter, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "command.py").write_text(COMMAND)
    monkeypatch.chdir(tmp_path)
    done = warm.run(tmp_path / "command.py", "why", "--seconds", 0, "train.py", photos, "--epochs", 90)
    assert done.returncode == 0, done.stderr
    said = " ".join(done.stdout.split())
    assert "loader 1: train.py:18, gpupipe.DataLoader, batches of 8, 0 workers" in said
    assert "ImageFolder, 36 samples engine dali" in said
    assert "loader 2: train.py:19, torch's DataLoader, batches of 2" in said
    assert "[stream]; see docs/warnings.md#stream" in said and "change train.py:19: use a dataset with" in said
    assert "stopped at train.py:22" in said
    assert "--epochs" not in done.stdout and "'--epochs', '90'" in done.stderr
    assert not [name for name in ("trained", "caught", "saved", "ended") if (tmp_path / name).exists()]


def test_a_script_that_fails_before_its_loaders(warm: Interpreter, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("raise ValueError('--data is missing')")
    (tmp_path / "command.py").write_text(COMMAND)
    done = warm.run(tmp_path / "command.py", "why", tmp_path / "train.py")
    assert done.returncode == 2 and "ValueError: --data is missing" in done.stderr
    assert "train.py raised ValueError before it made a DataLoader; run python" in done.stderr
    assert done.stderr.count(", line ") == 1  # of the script


@pytest.mark.parametrize(
    ("line", "said"), [("parser.parse_args()", "arguments are required: --data"), ("sys.exit('no data')", "no data\n")]
)
def test_a_script_that_exits_before_its_loaders(warm: Interpreter, tmp_path: Path, line: str, said: str) -> None:
    parser = "import argparse, sys\nparser = argparse.ArgumentParser()\nparser.add_argument('--data', required=True)\n"
    (tmp_path / "train.py").write_text(parser + line)
    (tmp_path / "command.py").write_text(COMMAND)
    done = warm.run(tmp_path / "command.py", "why", tmp_path / "train.py")
    assert done.returncode == 2 and said in done.stderr and "Traceback" not in done.stderr
    assert "train.py ended with SystemExit before it made a DataLoader; give it the arguments" in done.stderr


@pytest.mark.parametrize("command", ["why", "ceiling"])
def test_a_script_that_is_no_file(command: str, tmp_path: Path) -> None:
    assert "is a folder; name a script" in error(command, tmp_path)
    assert "train.py: no such file" in error(command, tmp_path / "train.py")


class Own(Dataset[Any]):
    def __init__(self, images: Any, transform: Any):
        self.images, self.transform = images, transform

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> Any:
        return self.transform(self.images[index]), index


class Endless(IterableDataset[Any]):
    def __iter__(self) -> Any:
        yield from range(10)


def test_loaders_are_noted_and_explained() -> None:
    images = datasets.Arrays(np.zeros((8, 64, 64, 3), np.uint8), transform=T.Compose([T.ToTensor()]))
    with watching() as watched:
        gpupipe.DataLoader(images, 2, device="cpu")
        TorchLoader(Endless(), batch_size=2)
        first = TorchLoader(range(4), num_workers=1, in_order=False)  # type: ignore[arg-type]
        next(iter(first))
        TorchLoader(range(4))  # type: ignore[arg-type]
    assert [made.ours for made in watched.made] == [True, False, False, False]
    assert watched.made[2].arguments["in_order"] is False and watched.reached
    native, stream, plain = (explain(made, seconds=0) for made in watched.made[:3])
    assert native.engine == "dali" and not native.reasons and str(native.change) == "nothing"
    assert stream.engine == TORCHS_OWN and [reason.code for reason in stream.reasons] == ["stream"]
    assert "in-order" in [reason.code for reason in plain.reasons] and plain.ratio is None


def test_an_option_that_costs_dali_is_measured() -> None:
    images = datasets.Arrays(np.zeros((64, 64, 64, 3), np.uint8), transform=T.Compose([T.ToTensor()]))
    with watching() as watched:
        gpupipe.DataLoader(images, 8, device="cpu", num_workers=1)
    found = explain(watched.made[0], seconds=0.05)
    assert found.rates is not None and set(found.rates) == {"gpupipe", "reference"} and found.ratio is not None


@pytest.mark.parametrize(
    ("rates", "batch_size", "changes", "text"),
    [
        ({"gpupipe": 51.0, "torch": 100.0}, 1, [], "make it with torch's DataLoader, or use larger batches"),
        ({"gpupipe": 51.0, "torch": 100.0}, 64, [], "make it with torch's DataLoader: 1.96 times as fast"),
        ({"gpupipe": 51.0, "reference": 100.0}, 1, [], 'engine="torch": 1.96 times as fast'),
        ({"gpupipe": 51.0, "torch": 100.0}, 1, [Change("num_workers=2", 1.3)], "make it with torch's DataLoader"),
        ({"gpupipe": 51.0, "torch": 100.0}, 1, [Change("num_workers=2", 2.0)], "num_workers=2: 2.00 times as fast"),
        ({"gpupipe": 95.0, "torch": 100.0}, 1, [], "nothing"),
        (None, 1, [], "nothing"),
    ],
)
def test_a_loader_that_is_slower_than_torchs_is_told(
    rates: Any, batch_size: int, changes: list[Change], text: str
) -> None:
    loader = _loader()
    made = Made(loader, {"dataset": loader.dataset}, "train.py:3")
    found = Explained("train.py:3", True, "Own", 40, batch_size, 0, "dali", "as asked", rates=rates)
    assert text in str(_smallest(made, found, changes))


LOOP = """
import sys, time
from pathlib import Path
import numpy as np, torch
import gpupipe
from gpupipe import datasets, transforms as T

class Slow(torch.utils.data.Dataset):
    def __len__(self):
        return 40

    def __getitem__(self, index):
        time.sleep(0.01)
        return torch.ones(2), index

check = torch.utils.data.DataLoader(Slow(), batch_size=2)
next(iter(check))  # too short to be measured
train = torch.utils.data.DataLoader(Slow(), batch_size=2)
try:
    for epoch in range(90):
        for images, index in train:
            assert images.sum() == 4
            images.mul_(0)
            time.sleep(0.01)
finally:
    Path("saved").touch()
"""


def test_the_ceiling_replays_batches_in_the_loop(
    warm: Interpreter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "train.py").write_text(LOOP)
    (tmp_path / "command.py").write_text(COMMAND)
    monkeypatch.chdir(tmp_path)
    done = warm.run(
        tmp_path / "command.py", "ceiling", "--json", "--seconds", 0.3, "--epochs", 90, "train.py", "--lr", 1
    )
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    found = answer["ceiling"]
    assert found["at"] == "train.py:18" and not found["uses_gpupipe"] and found["steps"] == 20
    assert found["seconds"] > 0.025 and 0.01 < found["perfect"] < found["seconds"] and 0.1 < answer["saves"] < 0.9
    saved, whole = answer["hours"]
    assert whole == pytest.approx(90 * 20 * found["seconds"] / 3600) and saved == pytest.approx(whole * answer["saves"])
    assert not (tmp_path / "saved").exists()


def test_a_loop_that_is_too_short_for_a_ceiling(warm: Interpreter, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import torch\nlist(torch.utils.data.DataLoader([1, 2]))")
    (tmp_path / "command.py").write_text(COMMAND)
    done = warm.run(tmp_path / "command.py", "ceiling", tmp_path / "train.py")
    assert done.returncode == 2 and "ended normally before it had taken enough batches of a loader" in done.stderr


def test_what_a_ceiling_saves() -> None:
    found = Ceiling("train.py:1", True, 10, 0.4, 0.3, 1000)
    assert found.saves == pytest.approx(0.25) and found.hours(81) == pytest.approx((2.25, 9.0))
    assert _of(1.7, 9.0, 90) == "1.7 of 9.0 hours in 90 epochs" and _of(0.1, 0.5, 1) == "6.0 of 30.0 minutes in 1 epoch"
    assert Ceiling("train.py:1", True, 10, 0.4, 0.3, None).hours(1) is None


def _loader(count: int = 40, **options: Any) -> gpupipe.DataLoader:
    images = datasets.Arrays(np.zeros((count, 64, 64, 3), np.uint8), transform=T.Compose([T.ToTensor()]))
    return gpupipe.DataLoader(images, 4, shuffle=True, device="cpu", seed=0, **options)


@pytest.mark.parametrize("engine", ["auto", "torch", "plain"])
def test_a_loader_measures_its_own_ceiling(engine: str) -> None:
    if engine == "plain":
        loader: Any = gpupipe.DataLoader(Own(np.zeros((40, 2)), torch.tensor), 4, in_order=False, device="cpu")  # type: ignore[arg-type]
    else:
        loader = _loader(engine=engine)
    ahead = iter(loader)
    next(ahead)
    state = loader.state_dict()
    ceiling = loader.ceiling(steps=5)
    assert "not measured" in repr(ceiling)
    taken = 0
    warnings.simplefilter("error")
    for images, *_ in ceiling:
        assert not images.sum()  # the loop may write to a batch
        images.add_(1)
        taken += 1
        time.sleep(0.002)
    assert taken == 3 + 5 + 5 and loader.state_dict() == state and len(list(ahead)) == 9
    found = ceiling.found
    assert found is not None
    assert (found.batches, found.steps, found.uses_gpupipe) == (5, 10, True) and found.at.startswith("test_why.py:")
    assert 0.002 < found.perfect <= found.seconds and "a perfect loader saves" in str(ceiling)


def test_a_ceiling_takes_what_an_epoch_has() -> None:
    assert sum(1 for _ in _loader(20).ceiling()) == 3 + 2 + 2
    with pytest.raises(ConfigError, match="more than 3 batches, but an epoch has 3: use a smaller batch_size"):
        _loader(12).ceiling()
    with pytest.raises(ConfigError, match="steps"):
        _loader().ceiling(0)


def test_a_slow_loader_has_a_low_ceiling() -> None:
    class Slow(Own):
        def __getitem__(self, index: int) -> Any:
            time.sleep(0.01)
            return super().__getitem__(index)

    loader: Any = gpupipe.DataLoader(Slow(np.zeros((40, 2)), torch.tensor), 4, in_order=False, device="cpu")  # type: ignore[arg-type]
    ceiling = loader.ceiling(steps=4)
    for _ in ceiling:
        time.sleep(0.01)
    assert ceiling.found is not None and 0.6 < ceiling.found.saves < 0.9


def test_a_ceiling_uses_batches_that_a_subclass_assigned() -> None:
    loader = _loader()
    object.__setattr__(loader, "batch_sampler", [[0, 1]] * 6)
    assert [len(images) for images in loader.ceiling(2)] == [2] * (3 + 2 + 2)


def test_a_loader_that_takes_the_processor_from_the_model_is_named() -> None:
    quick = {"stage": "model", "next_step": "make the model faster"}
    shares = Ceiling("train.py:1", True, 10, 0.4, 0.3, 1000, quick)
    assert "takes the processor from it" in str(shares) and "OMP_NUM_THREADS" not in str(shares)
    assert "torch computes in 4 threads: try OMP_NUM_THREADS=1" in str(replace(shares, threads=4))
    assert "waits for" not in str(Ceiling("train.py:1", True, 10, 0.4, 0.4, 1000, quick))
