"""``gpupipe why``: what it says of a script's loaders, and that the script does not go on."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest
import torch
from command_line import error
from interpreter import Interpreter
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader as TorchLoader, Dataset, IterableDataset

import gpupipe
from gpupipe import datasets, transforms as T
from gpupipe.why import replay
from gpupipe.why.explain import Change, Explained, _smallest, explain
from gpupipe.why.replay import StepTimes
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
    assert "the script's own code runs, and images that it opens wait for DALI" in said
    assert "change train.py:19: make it with gpupipe.DataLoader" in said
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


def test_a_script_that_is_no_file(tmp_path: Path) -> None:
    assert "is a folder; name a script" in error("why", tmp_path)
    assert "No such file or directory" in error("why", tmp_path / "train.py")


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
    for live in (stream, plain):
        assert live.engine == "dali" and "own code runs" in live.why and not live.reasons and live.ratio is None


def test_an_option_that_costs_dali_is_measured() -> None:
    images = datasets.Arrays(np.zeros((64, 64, 64, 3), np.uint8), transform=T.Compose([T.ToTensor()]))
    with watching() as watched:
        gpupipe.DataLoader(images, 8, device="cpu", num_workers=1)
    found = explain(watched.made[0], seconds=0.05)
    assert found.rates is not None and set(found.rates) == {"gpupipe", "reference"} and found.ratio is not None


def test_a_line_that_looks_at_every_image_is_the_reason(photos: Path) -> None:
    """And what to change instead of it, without a warning."""

    class Looks(Dataset[Any]):
        files = sorted(photos.rglob("*.jpg"))[:8]

        def __len__(self) -> int:
            return len(self.files)

        def __getitem__(self, index: int) -> Any:
            return torch.from_numpy(np.array(Image.open(self.files[index]).convert("RGB").resize((8, 8))))

    with watching() as watched:
        TorchLoader(Looks(), 4)
    found = explain(watched.made[0], seconds=0.05)
    (reason,) = found.reasons
    assert reason.code == "looks-at-pixels"
    assert re.match(r"test_why.py:\d+, in __getitem__: numpy.array reads pixels of (\d+) of \1 images", reason.text)
    assert "let Pillow's and torchvision's functions change the image" in str(found.change)


@pytest.mark.parametrize(
    ("rates", "batch_size", "changes", "text"),
    [
        ({"gpupipe": 51.0, "torch": 100.0}, 1, [], "make it with torch's DataLoader, or use larger batches"),
        ({"gpupipe": 51.0, "torch": 100.0}, 64, [], "make it with torch's DataLoader: 1.96 times as fast"),
        ({"gpupipe": 51.0, "reference": 100.0}, 1, [], 'engine="torch": 1.96 times as fast'),
        ({"gpupipe": 51.0, "torch": 100.0}, 1, [Change("num_workers=2", (1.3,))], "make it with torch's DataLoader"),
        ({"gpupipe": 51.0, "torch": 100.0}, 1, [Change("num_workers=2", (2.0,))], "num_workers=2: 2.00 times as fast"),
        ({"gpupipe": 95.0, "torch": 100.0}, 1, [], "nothing"),
        (None, 1, [], "nothing"),
    ],
)
def test_a_loader_that_is_slower_than_torchs_is_told(
    rates: Any, batch_size: int, changes: list[Change], text: str
) -> None:
    loader = _loader()
    made = Made(loader, {"dataset": loader.dataset}, "train.py:3")
    ratios = () if rates is None else (rates["gpupipe"] / (rates.get("torch") or rates["reference"]),)
    found = Explained("train.py:3", True, "Own", 40, batch_size, 0, "dali", "as asked", rates=rates, ratios=ratios)
    assert text in str(_smallest(made, found, changes))


LOOP = """
import sys
from pathlib import Path
import torch

class Own(torch.utils.data.Dataset):
    def __len__(self):
        return 40

    def __getitem__(self, index):
        return torch.ones(2), index

check = torch.utils.data.DataLoader(Own(), batch_size=2)
next(iter(check))  # too short to be measured
train = torch.utils.data.DataLoader(Own(), batch_size=2)
try:
    for epoch in range(90):
        for images, index in train:
            assert images.sum() == 4
            images.mul_(0)
finally:
    Path("saved").touch()
"""


def test_batches_are_replayed_in_the_loop(warm: Interpreter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "train.py").write_text(LOOP)
    (tmp_path / "command.py").write_text(COMMAND)
    monkeypatch.chdir(tmp_path)
    done = warm.run(tmp_path / "command.py", "why", "--json", "--seconds", 0.1, "train.py", "--lr", 1)
    assert done.returncode == 0 and not done.stderr, done.stderr
    answer = json.loads(done.stdout)
    assert [one["at"] for one in answer["loaders"]] == ["train.py:13"] and answer["stopped_at"] == "train.py:14"
    assert answer["step"]["at"] == "train.py:15" and 0 <= answer["perfect_loader_saves"] < 1
    assert not (tmp_path / "saved").exists()


def test_a_loop_that_is_too_short_to_be_replayed(warm: Interpreter, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import torch\nfrom pathlib import Path\n"
        "list(torch.utils.data.DataLoader([1, 2]))\nPath(__file__).with_name('saved').touch()"
    )
    (tmp_path / "command.py").write_text(COMMAND)
    done = warm.run(tmp_path / "command.py", "why", "--seconds", 0.1, tmp_path / "train.py")
    assert done.returncode == 0 and "the loop took too few batches to see what a perfect loader" in done.stdout
    assert not (tmp_path / "saved").exists()


class Done(Exception):
    """Ends a loop."""


class Clock:
    """A clock that the loader and the loop move on."""

    now = 0.0

    def perf_counter(self) -> float:
        return self.now

    def batches(self, count: int, seconds: float) -> Iterator[list[Tensor]]:
        for _ in range(count):
            self.now += seconds
            yield [torch.ones(2)]


@pytest.mark.parametrize(("seconds", "steps"), [(10, 3 + 10 + 14), (0.5, 3 + 1 + 1), (99, 3 + 37 + 132)])
def test_what_a_perfect_loader_saves(monkeypatch: pytest.MonkeyPatch, seconds: float, steps: int) -> None:
    clock, found, taken = Clock(), [], 0

    def done(times: StepTimes | None) -> NoReturn:
        found.append(times)
        raise Done

    monkeypatch.setattr(replay, "time", clock)
    made = Made(_loader(), {}, "train.py:1")
    batches = replay.replayed(made, lambda: clock.batches(40, 0.25), seconds, done)
    with suppress(Done):
        for (images,) in batches:
            assert images.sum() == 2
            images.mul_(0)  # the loop may write to a batch
            clock.now += 0.75
            taken += 1
    assert found == [StepTimes("train.py:1", 1.0, 0.75)] and taken == steps
    assert str(found[0]).startswith("a perfect loader would save 25% of the loop over the loader of train.py:1: 1,000.")


def test_a_loop_that_is_slower_from_memory_saves_nothing() -> None:
    assert StepTimes("train.py:1", 0.3, 0.4).saves == 0 and StepTimes("train.py:1", 0.0, 0.0).saves == 0


def _loader(count: int = 40, **options: Any) -> gpupipe.DataLoader:
    images = datasets.Arrays(np.zeros((count, 64, 64, 3), np.uint8), transform=T.Compose([T.ToTensor()]))
    return gpupipe.DataLoader(images, 4, shuffle=True, device="cpu", seed=0, **options)


def test_a_measurement_has_a_range(monkeypatch: pytest.MonkeyPatch) -> None:
    images = datasets.Arrays(np.zeros((64, 64, 64, 3), np.uint8), transform=T.Compose([T.ToTensor()]))
    with watching() as watched:
        gpupipe.DataLoader(images, 8, device="cpu", num_workers=1)
    said: list[str] = []
    found = explain(watched.made[0], seconds=0.03, progress=said.append)
    assert len(found.ratios) == 3 and found.ratio == sorted(found.ratios)[1]
    assert said[0] == "warming up: gpupipe's choice" and "round 3 of 3: the reference engine" in said
    assert str(Change("x", (2.0, 3.0, 2.5))) == "x: 2.50 (2.00 to 3.00) times as fast"


def test_an_option_after_the_script_is_not_lost_in_silence(
    warm: Interpreter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "train.py").write_text("import torch.utils.data as d\nfor x in d.DataLoader([1, 2]): pass\n")
    (tmp_path / "command.py").write_text(COMMAND)
    monkeypatch.chdir(tmp_path)
    done = warm.run(tmp_path / "command.py", "why", "--seconds", 0, "train.py", "--json")
    assert "note: --json stands after train.py, so the script gets it; put it before" in done.stderr
    done = warm.run(tmp_path / "command.py", "why", "--json", "--seconds", 0, "train.py")
    assert json.loads(done.stdout)["loaders"] and not done.stderr
