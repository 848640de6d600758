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
from .watch import Begin, Made

_KEPT = 3
"""Number of batches to keep in memory, the first ones."""


@dataclass(frozen=True)
class StepTimes:
    """Seconds that a step of a training loop takes."""

    at: str
    """File and line that made the loader."""
    with_loader: float
    from_memory: float

    @property
    def saves(self) -> float:
        """Share of the time that a perfect loader would save."""
        # By chance a loop may be slower from memory; a perfect loader is not.
        return max(1 - self.from_memory / self.with_loader, 0.0) if self.with_loader else 0.0

    def __str__(self) -> str:
        return (
            f"a perfect loader would save {self.saves:.0%} of the loop over the loader of {self.at}: "
            f"{1e3 * self.with_loader:,.1f} ms a step, {1e3 * self.from_memory:,.1f} ms with batches from memory"
        )


def replayed(made: Made, begin: Begin, seconds: float, done: Callable[[StepTimes | None], NoReturn]) -> Iterator[Any]:
    """Yield the batches of a loader for ``seconds``, then the first ones from memory for as long.

    Args:
        done: called in place of the next batch; ``None`` if the epoch ends before there is something to measure.
    """
    batches = begin()
    kept: list[Any] = []
    for batch in islice(batches, _KEPT):  # not measured, because an engine starts
        kept.append(_copied(batch))
        yield batch
    _synchronize()
    count, began = 0, time.perf_counter()
    for batch in batches:
        count += 1
        yield batch
        if time.perf_counter() - began >= seconds:
            break
    if not count:
        done(None)
    # A GPU may still work on the steps so far.
    _synchronize()
    with_loader = (time.perf_counter() - began) / count
    _end_work(made.loader, batches)
    work, steps = 0.0, 0
    while work < seconds:
        batch = _copied(kept[steps % len(kept)])
        _synchronize()
        began = time.perf_counter()
        yield batch
        _synchronize()
        work += time.perf_counter() - began
        steps += 1
    done(StepTimes(made.at, with_loader, work / steps))


def _end_work(loader: TorchLoader[Any], batches: Any) -> None:
    """End the work of a loader, which would take the processor from the loop."""
    if hasattr(loader, "close"):
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
