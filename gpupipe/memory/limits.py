"""Whether a loader fits into memory: the arithmetic, and the refusal of what never can.

Engines tell their needs (:meth:`gpupipe.engines.base.EngineConfig.needs`), because only they know what they keep. A
need that is certain is a lower bound; the others are shown as "about" and refuse nothing. So what fits is never
refused, and what passes may still not fit.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from ..engines.base import EngineConfig
from ..errors import MemoryBudgetError
from ..reading.setup import Setup
from . import system
from .uses import Load, Need, Place, size_text

__all__ = ["Budget", "Estimate"]


@dataclass(frozen=True)
class Estimate:
    """What a loader will hold. Prints as an arithmetic."""

    needs: tuple[Need, ...]

    def held(self, *places: Place) -> int:
        """Bytes in these places, averages included."""
        return sum(n.nbytes for n in self.needs if n.place in places)

    @property
    def host(self) -> int:
        """Bytes of host memory, pinned and shared ones included."""
        return self.held("host", "pinned", "shm")

    @property
    def pinned(self) -> int:
        return self.held("pinned")

    @property
    def shm(self) -> int:
        """Bytes in /dev/shm."""
        return self.held("shm")

    @property
    def device(self) -> int:
        """Bytes on the GPU."""
        return self.held("device")

    def certain(self, *places: Place) -> tuple[Need, ...]:
        """What is held there at once at the least: all that stands in queues, or what passes if that is more."""
        here = [n for n in self.needs if n.certain and n.place in places]
        passing = tuple(n for n in here if n.passing)
        standing = tuple(n for n in here if not n.passing)
        return max(standing, passing, key=_total)

    def __str__(self) -> str:
        lines = []
        for title, places in (("host", ("host", "pinned", "shm")), ("device", ("device",))):
            here = [n for n in self.needs if n.place in places]
            if here:
                about = "about " * any(not n.certain for n in here)
                lines.append(f"{title}: {about}{size_text(_total(here))}")
                where = {"pinned": ", pinned", "shm": ", in /dev/shm"}
                lines += [f"  {n}{where.get(n.place, '')}" for n in here]
        return "\n".join(lines) or "nothing is known before the data is read"


def _total(needs: Iterable[Need]) -> int:
    return sum(n.nbytes for n in needs)


@dataclass(frozen=True)
class Budget:
    """What a loader asks for, against what there is."""

    config: EngineConfig
    setup: Setup
    samples: int
    """Of an epoch on this rank."""
    every: bool
    """Whether every sample of the dataset comes once in an epoch, none left out."""

    def estimate(self, **changes: Any) -> Estimate:
        """What the loader will hold; with ``changes`` to the setup."""
        setup = replace(self.setup, **changes)
        if self.samples == 0:
            return Estimate(())
        setup = replace(setup, batch_size=min(setup.batch_size, self.samples))
        return Estimate(tuple(self.config.needs(Load(setup, self.samples, self.every))))

    def check_host(self) -> None:
        """Raise :class:`MemoryBudgetError` where host memory or /dev/shm is certainly too small."""
        limit, shm = system.memory_limit(), system.shm_size()
        if shm is not None:
            self._check(("shm",), shm, "of shared memory", "/dev/shm has")
        if limit is not None:
            self._check(("host", "pinned", "shm"), limit, "of host memory", "this process may have")

    def check_device(self, total: int) -> None:
        """The same for the memory of the GPU, of which there are ``total`` bytes."""
        self._check(("device",), total, "of GPU memory", f"{self.setup.device} has")

    def _check(self, places: tuple[Place, ...], limit: int, what: str, whose: str) -> None:
        needs = self.estimate().certain(*places)
        if _total(needs) <= limit:
            return

        def largest(name: str) -> list[str]:
            """The largest value of an argument, below the present one, that fits."""
            low, high = 0, int(getattr(self.setup, name))  # low fits or is 0, high does not fit
            while high - low > 1:
                middle = (low + high) // 2
                fits = _total(self.estimate(**{name: middle}).certain(*places)) <= limit
                low, high = (middle, high) if fits else (low, middle)
            return [f"{name} <= {low:,}"] if low else []

        ways = largest("batch_size") + largest("prefetch_factor")
        if places == ("shm",):
            ways += [*largest("num_workers"), "a larger /dev/shm (docker run --shm-size=...)"]
        s = self.setup
        raise MemoryBudgetError(
            "\n".join(
                [
                    f"batch_size={s.batch_size:,}, prefetch_factor={s.prefetch_factor}, num_workers={s.num_workers}: "
                    "what the loader holds cannot fit.",
                    *(f"  {need}" for need in needs),
                    f"That is {size_text(_total(needs))} {what}, and {whose} {size_text(limit)}: use "
                    + (" or ".join(ways) if ways else "a smaller output size"),
                ]
            )
        )
