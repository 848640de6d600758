"""The demo: a training twice, the pixels, a bad file, a resume, and the speed."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from ..bench.measure import Result
from ..bench.torchs_loader import TITLES, usual
from ..cache_folder import cache_folder, make_folder
from ..datasets import Dataset, ImageFolder, Subset
from ..engines.dali import installed
from ..errors import ConfigError, DatasetError
from ..parity.compare import Comparison, compare
from ..testing.photos import SIZES, make_photos
from ..transforms import Compose
from .checks import BadFile, Resumed, bad_file, resumed, speed
from .train import Curve, Engine, Training, pipelines, split, train

_SHOWN = 8
"""Images on the page."""
_TRAIN, _HELD_OUT, _FULL = 96, 24, 16
"""Images of each class to train on, to hold out, and of full size to measure speed with."""
_CLASSES = 4
_SMALL = ((150, 200), (200, 150), (160, 160), (133, 200), (144, 192))
"""(height, width) of images to train on."""
_LOADERS = {"dali": "gpupipe on DALI", "torch": "gpupipe's reference engine", **TITLES}
"""Names of loaders whose speed is measured."""


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
    def about(self) -> str:
        return (
            f"{self.train_images:,} images of {len(self.classes)} classes to train, {self.held_out_images:,} held out, "
            f"batches of {self.batch_size}"
        )

    def findings(self) -> list[tuple[bool, str, str]]:
        """Return (whether it is as promised, what, the finding)."""
        found: list[tuple[bool, str, str]] = []
        if self.comparison is not None:
            whole, steps = self.comparison.steps[-1].difference, len(self.curves[0].losses)
            found.append((True, "training", f"the two losses differ by at most {self.apart:.1g} in {steps} steps"))
            text = (
                f"{whole.images} images: largest difference {whole.max:.3g}, mean {whole.mean:.2g} of 255 gray levels"
            )
            text += "" if self.comparison.ok else ", which breaks a promise"
            found.append((self.comparison.ok, "pixels", text))
        bad, r = self.bad_file, self.resumed
        text = f"{bad.name} is reported as {bad.kind}, and {bad.replacement} takes its place in the batch"
        found.append((bad.replaced, "bad file", text))
        bits = f"the other {r.steps - r.step} batches bit-identical" if r.equal else "batches with other bits"
        stopped = f"stopped after batch {r.step} of {r.steps}: with a state of {r.state_bytes} bytes"
        found.append((r.equal, "resume", f"{stopped}, another loader gave {bits}"))
        (name,) = (name for name in self.speed.rates if name != self.speed.baseline)
        ratio, low, high = self.speed.ratio(name)
        rates = ", ".join(f"{_LOADERS[it]} {self.speed.median(it):,.0f}" for it in (name, self.speed.baseline))
        text = f"{ratio:.2f} times as fast ({low:.2f} to {high:.2f}), loading crops of 224 x 224 alone, in images/s: "
        found.append((ratio > 1, "speed", text + rates))
        return found

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
        whole: ImageFolder = ImageFolder(photographs(_TRAIN, 0, progress, _SMALL), steps)
        training = whole
        held_out = ImageFolder(photographs(_HELD_OUT, 1, progress, _SMALL), evaluation)
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


def photographs(
    per_class: int, seed: int, progress: Callable[[str], None], sizes: Sequence[tuple[int, int]] = SIZES
) -> Path:
    """Return a folder with one folder of synthetic photographs per class, creating it if missing."""
    base = Path(cache_folder("demo"))
    folder = base / f"{_CLASSES}x{per_class}-{seed}"
    if not (folder / "complete").exists():
        progress(f"creating {_CLASSES * per_class} synthetic photographs")
        make_folder(str(base))
        make_photos(folder, _CLASSES, per_class, seed, sizes)
        (folder / "complete").touch()
    return folder


def _pictures(dataset: Dataset) -> list[Image.Image]:
    """Return some images, spread over the dataset, whose folders are in order."""
    count = min(_SHOWN, len(dataset))
    return [dataset.raw(k * (len(dataset) - 1) // max(count - 1, 1))[0].convert("RGB") for k in range(count)]
