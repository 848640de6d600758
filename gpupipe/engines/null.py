"""An engine that only returns the plans, for tests and to measure the overhead of planning."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from ..errors import SampleError
from ..reading.setup import Setup
from ..reading.targets import targets_of
from ..types import Batch, Plan
from .base import Engine, EngineConfig, Run
from .staging import map_tensors


@dataclass(frozen=True)
class Null(EngineConfig):
    """Engine whose batches contain the plan instead of images. Reads no samples.

    ``batch.images`` is the plan, and ``batch.target`` the labels i64[B] with further columns, or ``None``.

    >>> import numpy as np
    >>> from gpupipe import DataLoader, datasets
    >>> pixels = datasets.Arrays(np.zeros((4, 8, 8, 3), np.uint8), [3, 1, 4, 1])
    >>> next(iter(DataLoader(pixels, batch_size=2, engine=Null(), device="cpu")))
    [Plan(epoch 0, step 0: 2 samples; nothing), tensor([3, 1])]
    """

    name: ClassVar[str] = "null"

    def check(self, setup: Setup) -> None:
        """Accept every setup."""

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
        target = targets_of(dataset, plan)
        return Batch(plan, map_tensors(lambda t: t.to(self._setup.device), target), plan)

    def close(self) -> None:
        self._plans = iter(())
