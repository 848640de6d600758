"""One small dataset for every framework, and what its batches are compared by."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import torch
from support import BATCH, SEED, TRAIN, N, pictures
from torch import Tensor

from gpupipe import DataLoader, Shard
from gpupipe.datasets import Arrays

__all__ = ["EPOCHS", "STEPS", "Record", "features", "make", "plain", "record"]

STEPS = -(-N // BATCH)
EPOCHS = 3

Record = tuple[list[int], str]
"""The samples of a batch, and a hash of its pixels: which samples, and how they were augmented."""

_ARRAYS = Arrays(pictures(), np.arange(N), transform=TRAIN)


def make(**arguments: Any) -> DataLoader:
    given: dict[str, Any] = {
        "batch_size": BATCH, "shuffle": True, "engine": "torch", "device": "cpu", "seed": SEED, "shard": Shard(),
    }  # fmt: skip
    return DataLoader(_ARRAYS, **{**given, **arguments})


def record(batch: list[Tensor]) -> Record:
    images, target = batch
    return target.tolist(), hashlib.sha1(images.contiguous().numpy().tobytes()).hexdigest()


def plain(epochs: int = EPOCHS, **arguments: Any) -> list[list[Record]]:
    """What a loop without any framework sees, epoch by epoch."""
    loader = make(**arguments)
    return [[record(batch) for batch in loader] for _ in range(epochs)]


def features(images: Tensor) -> Tensor:
    """f32[B, 3, H, W] to f32[B, 3]: something to train on that costs nothing."""
    return torch.as_tensor(images.mean((2, 3)))
