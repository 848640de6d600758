"""Training of one network through DALI and through the reference, with equal seeds and plans."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from ..bench.machine import cores
from ..cache_folder import cache_folder, make_folder
from ..datasets import Dataset, ImageFolder, Subset
from ..engines.dali import installed
from ..errors import ConfigError, DatasetError
from ..loader.dataloader import DataLoader
from ..parity.compare import Comparison, compare
from ..planning.order import Shuffle
from ..testing.photos import make_photos
from ..transforms import CenterCrop, Compose, Normalize, RandomHorizontalFlip, RandomResizedCrop, Resize, ToTensor

Engine = Literal["dali", "torch"]

SIZE = 64
"""Edge of the network's input in pixels."""
CLASSES, PER_CLASS, HELD_OUT = 4, 96, 24
_SIZES = ((150, 200), (200, 150), (160, 160), (133, 200), (144, 192))
_STATISTICS = (0.45, 0.43, 0.41), (0.26, 0.26, 0.27)


@dataclass(frozen=True)
class Epoch:
    """Results of one epoch with one engine."""

    losses: tuple[float, ...]
    """Loss of every step."""
    accuracy: float
    """Accuracy on held-out images, 0 to 1."""
    images_per_second: float
    """Training speed, including the network."""

    @property
    def loss(self) -> float:
        """Mean loss over the steps."""
        return float(np.mean(self.losses))


@dataclass
class Curve:
    """Results of training with one engine."""

    engine: Engine
    description: str = ""
    epochs: list[Epoch] = field(default_factory=list)

    @property
    def losses(self) -> list[float]:
        return [loss for epoch in self.epochs for loss in epoch.losses]


@dataclass
class Demo:
    """Results of the demo."""

    source: str
    """Description of the images."""
    train_images: int
    val_images: int
    classes: int
    batch_size: int
    pipeline: Compose
    curves: list[Curve]
    comparison: Comparison | None
    """``None`` if DALI is not installed."""
    seconds: float


def generated(progress: Callable[[str], None] = lambda text: None) -> tuple[Path, Path]:
    """Return (training folder, held-out folder) of synthetic photographs in the cache folder, creating them if
    missing."""
    base = Path(cache_folder("demo"))
    name = f"{CLASSES}x{PER_CLASS}+{HELD_OUT}"
    train, val, done = base / name / "train", base / name / "val", base / name / "complete"
    if not done.exists():
        progress(f"creating {CLASSES * (PER_CLASS + HELD_OUT)} synthetic photographs")
        make_folder(str(base))
        make_photos(train, CLASSES, PER_CLASS, seed=0, sizes=_SIZES)
        make_photos(val, CLASSES, HELD_OUT, seed=1, sizes=_SIZES)
        done.touch()
    return train, val


def split(dataset: Dataset, seed: int, held_out: float = 0.2) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return (training indices, held-out indices), both i64 and sorted, as a function of the length and ``seed``.

    Samples known to be bad are in neither.
    """
    order = Shuffle(len(dataset), seed, 0).at(np.arange(len(dataset)))[0]
    bad = {s.index for s in dataset.bad(order)}
    good = np.array([i for i in order.tolist() if i not in bad], np.int64)
    cut = int(len(good) * held_out)
    if cut < 1:
        raise DatasetError(f"{dataset!r} has {len(good)} usable images; the demo needs at least {int(1 / held_out)}")
    return np.sort(good[cut:]), np.sort(good[:cut])


def pipelines() -> tuple[Compose, Compose]:
    """Return (training, evaluation) pipelines."""
    finish = [ToTensor(), Normalize(*_STATISTICS)]
    return (
        Compose([RandomResizedCrop(SIZE, scale=(0.3, 1.0)), RandomHorizontalFlip(), *finish]),
        Compose([Resize(SIZE + 8), CenterCrop(SIZE), *finish]),
    )


def network(classes: int, seed: int) -> nn.Module:
    """Return a small convolutional network whose initial weights depend on ``seed``. torch's generator is restored."""

    def block(inputs: int, outputs: int) -> list[nn.Module]:
        return [nn.Conv2d(inputs, outputs, 3, 2, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()]

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return nn.Sequential(
            *block(3, 16), *block(16, 32), *block(32, 64), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, classes)
        )


@dataclass(frozen=True)
class _Plan:
    train: Dataset
    val: Dataset
    classes: int
    epochs: int
    batch_size: int
    device: str
    seed: int


def _train(plan: _Plan, engine: Engine, progress: Callable[[str], None]) -> Curve:
    common: dict[str, Any] = {
        "batch_size": plan.batch_size,
        "num_workers": min(cores(), 8),
        "device": plan.device,
        "engine": engine,
        "seed": plan.seed,
    }
    model = network(plan.classes, plan.seed).to(plan.device)
    steps = max(1, len(plan.train) // plan.batch_size)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=steps * plan.epochs)
    curve = Curve(engine)
    with (
        DataLoader(plan.train, shuffle=True, drop_last=True, **common) as train,
        DataLoader(plan.val, **common) as val,
    ):
        for epoch in range(plan.epochs):
            losses: list[Tensor] = []
            model.train()
            began, images = time.perf_counter(), 0
            for x, y in train:
                loss = nn.functional.cross_entropy(model(x), y)
                optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
                schedule.step()
                losses.append(loss.detach())
                images += len(x)
            # Read the clock after the losses, because reading them waits for the device.
            values = tuple(torch.stack(losses).tolist())
            seconds = time.perf_counter() - began
            curve.epochs.append(Epoch(values, _accuracy(model, val), images / seconds))
            progress(f"{engine}: epoch {epoch + 1} of {plan.epochs}: loss {curve.epochs[-1].loss:.3f}")
        curve.description = next(line.strip() for line in repr(train).splitlines() if "engine:" in line)
    return curve


def _accuracy(model: nn.Module, loader: DataLoader) -> float:
    model.eval()
    right = total = 0
    with torch.no_grad():
        for x, y in loader:
            right += int((model(x).argmax(1) == y).sum())
            total += len(y)
    return right / total


def run(
    folder: str | os.PathLike[str] | None = None,
    *,
    epochs: int = 3,
    seed: int = 0,
    batch_size: int = 32,
    device: str = "cpu",
    progress: Callable[[str], None] = lambda text: None,
) -> Demo:
    """Train through both engines and compare their pixels, or through the reference alone if DALI is not installed.

    Args:
        folder: one folder per class, a part of which is held out. ``None`` uses synthetic photographs.
        epochs, seed, batch_size, device: for both trainings.
        progress: called with a description of each step.

    Raises:
        DatasetError: there are too few images.
        ConfigError: an argument is invalid.
    """
    if epochs < 1:
        raise ConfigError(f"epochs must be at least 1, not {epochs}")
    began = time.perf_counter()
    train_pipeline, val_pipeline = pipelines()
    train: Dataset
    val: Dataset
    if folder is None:
        source = "synthetic photographs"
        train_folder, val_folder = generated(progress)
        train, val = ImageFolder(train_folder, train_pipeline), ImageFolder(val_folder, val_pipeline)
        classes = len(train.classes)
    else:
        whole = ImageFolder(folder)
        source = f"the folder {Path(folder).name}"
        classes = len(whole.classes)
        first, second = split(whole, seed)
        train, val = (
            Subset(whole, first, transform=train_pipeline),
            Subset(whole, second, transform=val_pipeline),
        )
    if len(train) < 2:
        raise DatasetError(f"{source}: {len(train)} training images; the demo needs more")
    batch_size = min(batch_size, len(train))
    plan = _Plan(train, val, classes, epochs, batch_size, device, seed)
    both: tuple[Engine, ...] = ("dali", "torch") if installed() else ("torch",)
    curves = [_train(plan, engine, progress) for engine in both]
    comparison = None
    if "dali" in both:
        progress("comparing pixels")
        comparison = compare(train, train_pipeline, samples=48, device=device, seed=seed)
    return Demo(
        source, len(train), len(val), classes, batch_size, train_pipeline, curves, comparison,
        time.perf_counter() - began,
    )  # fmt: skip
