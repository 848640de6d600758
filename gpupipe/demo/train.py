"""Training of one network through DALI and through the reference, with equal seeds and plans."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from ..bench.machine import cores
from ..datasets import Dataset
from ..errors import DatasetError
from ..loader.dataloader import DataLoader
from ..planning.order import Shuffle
from ..transforms import CenterCrop, Compose, Normalize, RandomHorizontalFlip, RandomResizedCrop, Resize, ToTensor

Engine = Literal["dali", "torch"]

SIZE = 64
"""Edge of the network's input in pixels."""
NAMES: dict[Engine, str] = {"dali": "DALI", "torch": "reference"}
_RATE, _MOMENTUM = 0.02, 0.9
_STATISTICS = (0.45, 0.43, 0.41), (0.26, 0.26, 0.27)


@dataclass(frozen=True)
class Epoch:
    """Results of one epoch with one engine."""

    losses: tuple[float, ...]
    """Loss of every step."""
    accuracy: float
    """Accuracy on held-out images, 0 to 1."""

    @property
    def loss(self) -> float:
        """Mean loss over the steps."""
        return float(np.mean(self.losses))


@dataclass
class Curve:
    """Results of training with one engine."""

    engine: Engine
    epochs: list[Epoch] = field(default_factory=list)

    @property
    def losses(self) -> list[float]:
        return [loss for epoch in self.epochs for loss in epoch.losses]


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


def pipelines(size: int = SIZE) -> tuple[Compose, Compose]:
    """Return (training, evaluation) pipelines for images of ``size`` x ``size`` pixels."""
    finish = [ToTensor(), Normalize(*_STATISTICS)]
    return (
        Compose([RandomResizedCrop(size, scale=(0.3, 1.0)), RandomHorizontalFlip(), *finish]),
        Compose([Resize(size + 8), CenterCrop(size), *finish]),
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
class Training:
    """What is trained, and how."""

    train: Dataset
    held_out: Dataset
    classes: int
    epochs: int
    batch_size: int
    device: str
    seed: int


def train(training: Training, engine: Engine, progress: Callable[[str], None]) -> Curve:
    """Train the network with one engine."""
    common: dict[str, Any] = {
        "batch_size": training.batch_size,
        "num_workers": min(cores(), 8),
        "device": training.device,
        "engine": engine,
        "seed": training.seed,
    }
    model = network(training.classes, training.seed).to(training.device)
    # torch.optim does the same, but its first optimizer imports torch's compiler, which takes seconds.
    parameters = list(model.parameters())
    velocities = [torch.zeros_like(p) for p in parameters]
    curve = Curve(engine)
    with (
        DataLoader(training.train, shuffle=True, drop_last=True, **common) as batches,
        DataLoader(training.held_out, **common) as held_out,
    ):
        for epoch in range(training.epochs):
            losses: list[Tensor] = []
            model.train()
            for x, y in batches:
                loss = nn.functional.cross_entropy(model(x), y)
                model.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                with torch.no_grad():
                    for p, velocity in zip(parameters, velocities, strict=True):
                        assert p.grad is not None
                        velocity.mul_(_MOMENTUM).add_(p.grad)
                        p.sub_(velocity, alpha=_RATE)
                losses.append(loss.detach())
            curve.epochs.append(Epoch(tuple(torch.stack(losses).tolist()), _accuracy(model, held_out)))
            progress(f"{NAMES[engine]}: epoch {epoch + 1} of {training.epochs}: loss {curve.epochs[-1].loss:.3f}")
    return curve


def _accuracy(model: nn.Module, loader: DataLoader) -> float:
    model.eval()
    right = total = 0
    with torch.no_grad():
        for x, y in loader:
            right += int((model(x).argmax(1) == y).sum())
            total += len(y)
    return right / total
