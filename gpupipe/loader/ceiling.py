"""How fast a training loop would be with a perfect loader: its own batches are replayed from memory."""

from __future__ import annotations

import copy
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any

from torch.utils.data import DataLoader as TorchLoader

from ..engines.staging import map_tensors
from ..errors import ConfigError
from ..interop.samplers import length_of
from ..script_warnings import place_in_script

_KEPT = 3
"""Number of batches to keep in memory, the first ones."""

_WORTH = 0.05
"""Share of the time from which on it is worth to say what the loop waits for."""


@dataclass(frozen=True)
class Ceiling:
    """A training loop with its loader, and with batches from memory."""

    at: str
    """File and line that made the loader, or that asked."""
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
    threads: int = 1
    """Threads in which torch computes on the processor that it shares with the loader; 1 if it computes on a GPU."""

    @property
    def saves(self) -> float:
        """Share of the time that a perfect loader would save."""
        return max(1 - self.perfect / self.seconds, 0.0) if self.seconds else 0.0

    def hours(self, epochs: int = 1) -> tuple[float, float] | None:
        """Return (hours saved, hours of the training), without evaluation; ``None`` if the steps are unknown."""
        if self.steps is None:
            return None
        whole = self.steps * epochs * self.seconds / 3600
        return whole * self.saves, whole

    def rows(self, epochs: int = 1) -> list[tuple[str, str]]:
        """Return (name, text) of what was found."""
        hours = self.hours(epochs)
        rows = [
            ("with its loader", f"{1e3 * self.seconds:,.1f} ms a step, over {self.batches} steps"),
            ("from memory", f"{1e3 * self.perfect:,.1f} ms a step"),
            ("a perfect loader saves", f"{self.saves:.0%}" + ("" if hours is None else f", {_of(*hours, epochs)}")),
        ]
        if self.bottleneck is not None and self.saves > _WORTH:
            waits = f"{self.bottleneck['stage']}: {self.bottleneck['next_step']}"
            if self.bottleneck["stage"] == "model":
                waits = "no batch, but the loader takes the processor from it"
                if self.threads > 1:  # they spin where they wait for one that has no processor
                    waits += f"; torch computes in {self.threads} threads: try OMP_NUM_THREADS=1"
            rows.append(("the loop waits for", waits))
        return rows

    def __str__(self) -> str:
        return "\n".join(f"{name:<22}  {text}" for name, text in self.rows())


def _of(saved: float, whole: float, epochs: int) -> str:
    """Return a text such as "1.7 of 9.0 hours"."""
    unit, factor = next(((u, f) for u, f in (("hours", 1.0), ("minutes", 60.0)) if whole * f >= 1), ("seconds", 3600.0))
    return f"{saved * factor:.1f} of {whole * factor:.1f} {unit} in {epochs} epoch{'s' * (epochs != 1)}"


def of_loader(loader: Any, steps: int) -> Replay:
    """Return batches of a copy of a loader of gpupipe; see :meth:`gpupipe.DataLoader.ceiling`."""
    steps_of_epoch = length_of(loader)
    if steps_of_epoch is not None and steps_of_epoch <= _KEPT:
        raise ConfigError(
            f"a ceiling needs more than {_KEPT} batches, but an epoch has {steps_of_epoch}: use a smaller batch_size"
        )

    def begin() -> tuple[TorchLoader[Any], Iterator[Any]]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # said when the loader was made
            own = copy.copy(loader)
        if loader.batch_sampler is not loader._session.batch_sampler:  # a subclass has assigned another one
            object.__setattr__(own, "batch_sampler", loader.batch_sampler)
        return own, iter(own)

    return Replay(place_in_script(), begin, steps=steps)


class Replay:
    """Batches for a training loop: some of its loader, then the first ones again, as many or for as long.

    ``print`` shows the result.
    """

    def __init__(
        self,
        at: str,
        begin: Callable[[], tuple[TorchLoader[Any], Iterator[Any]]],
        done: Callable[[Ceiling], None] = lambda found: None,
        *,
        steps: int | None = None,
        seconds: float | None = None,
    ):
        """Args:
        at: file and line of the script.
        begin: returns the loader and an iterator of it.
        done: called with the result, in place of the next batch.
        steps, seconds: length of a measurement, at most; either may be ``None``. With ``steps`` all ranks take as
            many, whatever their speed.
        """
        self.found: Ceiling | None = None
        """The result; ``None`` until the loop has ended."""
        self._at, self._begin, self._done = at, begin, done
        self._steps, self._seconds = steps, seconds
        self._batches = self._play()

    def __iter__(self) -> Replay:
        return self

    def __next__(self) -> Any:
        return next(self._batches)

    def __repr__(self) -> str:
        if self.found is None:
            return "not measured: iterate over all batches, with your training step"
        return str(self.found)

    def _measures(self, steps: int, seconds: float) -> bool:
        """Whether a measurement goes on after some steps and seconds."""
        return (self._steps is None or steps < self._steps) and (self._seconds is None or seconds < self._seconds)

    def _play(self) -> Iterator[Any]:
        loader, batches = self._begin()
        kept: list[Any] = []
        for batch in islice(batches, _KEPT):  # not measured, because an engine starts
            kept.append(_copied(batch))  # the loop may write to it
            yield batch
        _synchronize()
        count, began = 0, time.perf_counter()
        for batch in batches:
            count += 1
            yield batch
            if not self._measures(count, time.perf_counter() - began):
                break
        if not count:
            return  # the next epoch may have more
        # A GPU may still work on the steps so far.
        _synchronize()
        real = (time.perf_counter() - began) / count
        stats: dict[str, Any] = getattr(loader, "stats", dict)()
        _quiet(loader, batches)
        work, steps = 0.0, 0
        # As many steps as with the loader, whose epoch may have been shorter.
        while self._measures(steps, work) and (self._steps is None or steps < count):
            batch = _copied(kept[steps % len(kept)])
            _synchronize()
            left = time.perf_counter()
            yield batch
            _synchronize()
            work += time.perf_counter() - left
            steps += 1
        self.found = Ceiling(
            self._at,
            hasattr(loader, "stats"),
            count,
            real,
            # By chance a loop may be slower from memory; a perfect loader is not.
            min(work / steps, real),
            length_of(loader),
            stats.get("bottleneck"),
            _threads(),
        )
        self._done(self.found)


def _quiet(loader: TorchLoader[Any], batches: Any) -> None:
    """End the work of a loader, which would take the processor from the loop."""
    if hasattr(loader, "close"):
        loader.close()
    elif hasattr(batches, "_shutdown_workers"):
        batches._shutdown_workers()


def _copied(batch: Any) -> Any:
    """Return a batch with copies of its tensors, which a loop may write to."""
    return map_tensors(lambda tensor: tensor.clone(), batch)


def _threads() -> int:
    torch = sys.modules["torch"]
    return 1 if torch.cuda.is_initialized() else int(torch.get_num_threads())


def _synchronize() -> None:
    torch = sys.modules["torch"]
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
