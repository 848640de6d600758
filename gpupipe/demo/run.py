"""The demo: a training twice, the pixels, a bad file, a resume, and the speed."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from ..bench.measure import Result
from ..bench.torchs_loader import usual
from ..datasets import Dataset, ImageFolder, Subset
from ..engines.dali import installed
from ..errors import ConfigError, DatasetError
from ..parity.compare import Comparison, compare
from ..transforms import Compose
from .checks import BadFile, Resumed, bad_file, resumed, speed
from .photographs import SMALL, photographs
from .train import Curve, Engine, Training, pipelines, split, train

_SHOWN = 8
"""Images on the page."""
_TRAIN, _HELD_OUT, _FULL = 96, 24, 16
"""Images of each class to train on, to hold out, and of full size to measure speed with."""


@dataclass
class Demo:
    """Results of the demo."""

    source: str
    """Description of the images."""
    train_images: int
    held_out_images: int
    classes: tuple[str, ...]
    batch_size: int
    device: str
    pipeline: Compose
    pictures: list[Image.Image]
    """Some of the images, of different classes."""
    curves: list[Curve]
    comparison: Comparison | None
    """``None`` if DALI is not installed."""
    bad_file: BadFile
    resumed: Resumed
    speed: Result
    """Loading alone, gpupipe beside torch's DataLoader, which is the baseline."""
    seconds: float

    @property
    def apart(self) -> float | None:
        """Largest difference of the losses of both engines."""
        if len(self.curves) < 2:
            return None
        a, b = (curve.losses for curve in self.curves)
        return max(abs(x - y) for x, y in zip(a, b, strict=True))

    @property
    def ok(self) -> bool:
        """Whether everything is as promised."""
        return (self.comparison is None or self.comparison.ok) and self.resumed.equal and self.bad_file.replaced


def run(
    folder: str | os.PathLike[str] | None = None,
    *,
    epochs: int = 3,
    seed: int = 0,
    batch_size: int = 32,
    device: str = "cpu",
    progress: Callable[[str], None] = lambda text: None,
) -> Demo:
    """Run the demo with DALI and the reference, or with the reference alone if DALI is not installed.

    Args:
        folder: one folder per class, a part of which is held out. ``None`` uses synthetic photographs.
        epochs, seed, batch_size, device: for both trainings.
        progress: called with a description of each step.

    Raises:
        DatasetError: there are too few images.
        ConfigError: an argument is invalid, or neither DALI nor torchvision is installed.
    """
    if epochs < 1:
        raise ConfigError(f"epochs must be at least 1, not {epochs}")
    both: tuple[Engine, ...] = ("dali", "torch") if installed() else ("torch",)
    if both == (usual(),):
        raise ConfigError("the demo measures two loaders side by side; install DALI or torchvision")
    began = time.perf_counter()
    steps, evaluation = pipelines()
    training: Dataset
    held_out: Dataset
    if folder is None:
        source = "synthetic photographs"
        whole: ImageFolder = ImageFolder(photographs(_TRAIN, 0, progress, SMALL), steps)
        training = whole
        held_out = ImageFolder(photographs(_HELD_OUT, 1, progress, SMALL), evaluation)
    else:
        source = f"the folder {Path(folder).resolve().name}"
        whole = ImageFolder(folder)
        first, second = split(whole, seed)
        training, held_out = Subset(whole, first, transform=steps), Subset(whole, second, transform=evaluation)
    if len(training) < 2:
        raise DatasetError(f"{source}: {len(training)} training images; the demo needs more")
    batch_size = min(batch_size, len(training))
    plan = Training(training, held_out, len(whole.classes), epochs, batch_size, device, seed)
    curves = [train(plan, engine, progress) for engine in both]
    comparison = None
    if "dali" in both:
        progress("comparing pixels")
        comparison = compare(training, steps, samples=32, device=device, seed=seed)
    progress("reading a bad file")
    bad = bad_file(training, steps, both[0], device)
    progress("stopping in the middle of an epoch, and resuming")
    again = resumed(plan, both[0])
    progress("measuring speed")
    large = whole if folder is not None else ImageFolder(photographs(_FULL, 2, progress))
    measured = speed(large, both[0], batch_size, device)
    return Demo(
        source,
        len(training),
        len(held_out),
        tuple(whole.classes),
        batch_size,
        device,
        steps,
        _pictures(training),
        curves,
        comparison,
        bad,
        again,
        measured,
        time.perf_counter() - began,
    )


def _pictures(dataset: Dataset) -> list[Image.Image]:
    """Return some images, spread over the dataset, whose folders are in order."""
    count = min(_SHOWN, len(dataset))
    return [dataset.raw(k * (len(dataset) - 1) // max(count - 1, 1))[0].convert("RGB") for k in range(count)]
