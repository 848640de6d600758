"""The engine that does nothing: it echoes the plans. For tests, and for measuring the overhead of planning."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch

from ..errors import SampleError
from ..reading.setup import Setup
from ..types import Batch, Plan
from .base import Engine, EngineConfig, Run

__all__ = ["Null"]


@dataclass(frozen=True)
class Null(EngineConfig):
    """``batch.images`` is the plan itself, ``batch.target`` the labels i64[B] or ``None``. Reads no sample.

    >>> from gpupipe import DataLoader, datasets
    >>> pixels = datasets.Arrays(np.zeros((4, 8, 8, 3), np.uint8), [3, 1, 4, 1])
    >>> next(iter(DataLoader(pixels, batch_size=2, engine=Null(), device="cpu")))
    [Plan(epoch 0, step 0: 2 samples; nothing), tensor([3, 1])]
    """

    name: ClassVar[str] = "null"

    def check(self, setup: Setup) -> None:
        """Every setup will do."""

    def build(self, setup: Setup) -> Engine:
        return _NullEngine(setup)


class _NullEngine(Engine):
    def __init__(self, setup: Setup):
        self._setup = setup

    def run(self, plans: Iterator[Plan]) -> Run:
        return _NullRun(self._setup, plans)

    def close(self) -> None:
        """There is nothing to stop."""


class _NullRun(Run):
    def __init__(self, setup: Setup, plans: Iterator[Plan]):
        self._setup = setup
        self._plans: Iterator[Plan] = plans

    def __next__(self) -> Batch:
        plan = next(self._plans)
        dataset = self._setup.dataset
        bad = dataset.bad(plan.indices)
        if bad:
            raise SampleError(bad)
        labels = dataset.labels
        if labels is None:
            return Batch(plan, None, plan)
        rows = torch.from_numpy(np.asarray(labels[plan.indices], np.int64))
        return Batch(plan, rows.to(self._setup.device), plan)

    def close(self) -> None:
        self._plans = iter(())
