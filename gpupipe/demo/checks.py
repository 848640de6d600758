"""What the demo shows beside training: a bad file, a resume, and the speed."""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..bench.candidates import build
from ..bench.machine import cores
from ..bench.measure import Result, alternate
from ..bench.torchs_loader import usual
from ..cache_folder import cache_folder, make_folder
from ..datasets import Dataset, ImageList, Subset
from ..loader.dataloader import DataLoader
from ..transforms import Compose
from .train import Engine, Training, pipelines

_ROUNDS, _SECONDS, _SAMPLES = 3, 0.5, 1024
_FILES = 8


@dataclass(frozen=True)
class BadFile:
    """A truncated file, and what a loader with ``on_error="replace"`` did."""

    name: str
    kind: str
    """Its kind of failure, as reported."""
    reason: str
    replacement: str
    """Name of the file that took its place."""
    images: int
    """Images of the batch."""
    wanted: int
    """Images that the batch should have."""

    @property
    def replaced(self) -> bool:
        return self.images == self.wanted and self.replacement not in ("", self.name)


@dataclass(frozen=True)
class Resumed:
    """An epoch that was stopped and continued by another loader."""

    step: int
    """Number of batches before the stop."""
    steps: int
    """Number of batches of the epoch."""
    state_bytes: int
    """Size of the state as JSON."""
    equal: bool
    """Whether every later batch is bit-identical to that of an epoch without a stop."""


def bad_file(dataset: Dataset, pipeline: Compose, engine: Engine, device: str) -> BadFile:
    """Load a batch of files of the dataset, one of which is cut off."""
    files = [Path(str(dataset.fetch(i)[0])) for i in range(min(_FILES, len(dataset)))]
    torn = len(files) // 2
    whole = files[torn].read_bytes()
    bad = Path(cache_folder("demo")) / f"cut_off{files[torn].suffix}"  # the same each time, because it is indexed
    make_folder(str(bad.parent))
    bad.write_bytes(whole[: len(whole) * 6 // 10])
    files[torn] = bad
    images = ImageList(files, [0] * len(files), transform=pipeline)
    with DataLoader(images, len(files), engine=engine, device=device, seed=0, on_error="replace") as loader:
        replacement = files[int(loader.plan_at(0, 0).indices[torn])]
        (batch,) = loader
        (reported,) = loader.report().samples
    return BadFile(bad.name, reported.kind, reported.reason, replacement.name, len(batch[0]), len(files))


def resumed(training: Training, engine: Engine) -> Resumed:
    """Stop an epoch in the middle, continue in another loader, and compare all later batches."""
    batch_size = min(training.batch_size, max(len(training.train) // 4, 1))  # a middle, even of few images

    def loader() -> DataLoader:
        return DataLoader(
            training.train,
            batch_size,
            shuffle=True,
            num_workers=cores(),
            engine=engine,
            device=training.device,
            seed=training.seed,
        )

    with loader() as first, loader() as second:
        steps = len(first)
        step = steps // 2
        batches = iter(first)
        for _ in islice(batches, step):
            pass
        state = json.dumps(first.state_dict())
        second.load_state_dict(json.loads(state))
        rest, other = list(batches), list(second)
    equal = len(rest) == len(other) == steps - step and all(map(_equal, rest, other))
    return Resumed(step, steps, len(state), equal)


def _equal(a: Any, b: Any) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def speed(dataset: Dataset, engine: Engine, batch_size: int, device: str) -> Result:
    """Measure loading alone, with the usual crops of 224 x 224 pixels, beside torch's DataLoader with torchvision, or
    beside the reference engine if that is not installed."""
    common: dict[str, Any] = {"batch_size": batch_size, "num_workers": cores(), "device": device}
    # Epochs of a few batches would measure how loaders begin.
    longer = Subset(dataset, np.resize(np.arange(len(dataset)), max(len(dataset), _SAMPLES)))
    with build([engine, usual()], longer, pipelines(224)[0], **common) as found:
        return alternate(
            found.start,
            rounds=_ROUNDS,
            seconds=_SECONDS,
            warm_up=2 * cores() + 1,
            baseline=found.baseline,
        )
