"""How fast a training loop would be with a perfect loader: its own batches are replayed from memory."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, NoReturn

from torch.utils.data import DataLoader as TorchLoader

from ..engines.staging import map_tensors
from ..loader.arguments import length_of
from ..loader.dataloader import DataLoader
from .watch import Made

_KEPT = 3
"""Number of batches to keep in memory, the first ones."""


@dataclass(frozen=True)
class Ceiling:
    """A training loop with its loader, and with batches from memory."""

    at: str
    """File and line that made the loader."""
    uses_gpupipe: bool
    batches: int
    """Number of batches measured with the loader."""
    seconds: float
    """Time of a step with the loader."""
    perfect: float
    """Time of a step with batches from memory."""
    steps: int | None
    """Steps of an epoch; ``None`` if unknown."""
    bottleneck: dict[str, Any] | None = None
    """What gpupipe's loader waits for; see :meth:`gpupipe.DataLoader.stats`."""

    @property
    def saves(self) -> float:
        """Share of the time that a perfect loader would save."""
        return max(1 - self.perfect / self.seconds, 0.0) if self.seconds else 0.0

    def hours(self, epochs: int) -> tuple[float, float] | None:
        """Return (hours saved, hours of the training), without evaluation; ``None`` if the steps are unknown."""
        if self.steps is None:
            return None
        whole = self.steps * epochs * self.seconds / 3600
        return whole * self.saves, whole


class Replay:
    """Iterator for a training loop: batches of its loader for some seconds, then the first ones again as long.

    Args:
        batches: iterator of the loader.
        done: called with the result; ends the process.
    """

    def __init__(
        self,
        made: Made,
        batches: Iterator[Any],
        done: Callable[[Ceiling], NoReturn],
        *,
        seconds: float,
        warm_up: int = 3,
    ):
        self._made, self._done, self._seconds = made, done, seconds
        self._batches = self._play(batches)

    def __iter__(self) -> Replay:
        return self

    def __next__(self) -> Any:
        return next(self._batches)

    def _play(self, batches: Iterator[Any]) -> Iterator[Any]:
        kept: list[Any] = []
        for batch in islice(batches, _KEPT):  # not measured, because an engine starts
            kept.append(_copied(batch))  # the loop may write to it
            yield batch
        _synchronize()
        count, began = 0, time.perf_counter()
        for batch in batches:
            count += 1
            yield batch
            if time.perf_counter() - began > self._seconds:
                break
        if not count:
            return  # the next epoch may have more
        _synchronize()
        real = (time.perf_counter() - began) / count
        loader = self._made.loader
        stats = loader.stats() if isinstance(loader, DataLoader) else {}
        _quiet(loader, batches)
        work, steps = 0.0, 0
        while work < self._seconds:
            batch = _copied(kept[steps % len(kept)])
            _synchronize()
            left = time.perf_counter()
            yield batch
            _synchronize()
            work += time.perf_counter() - left
            steps += 1
        self._done(
            Ceiling(
                self._made.at,
                self._made.ours,
                count,
                real,
                min(work / steps, real),
                length_of(loader),
                stats.get("bottleneck"),
            )
        )


def _quiet(loader: TorchLoader[Any], batches: Any) -> None:
    """End the work of a loader, which would take the processor from the loop."""
    if isinstance(loader, DataLoader):
        loader.close()
    elif hasattr(batches, "_shutdown_workers"):
        batches._shutdown_workers()


def _copied(batch: Any) -> Any:
    """Return a batch with copies of its tensors, which a loop may write to."""
    return map_tensors(lambda tensor: tensor.clone(), batch)


def _synchronize() -> None:
    torch = sys.modules["torch"]
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
