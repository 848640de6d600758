"""How far two engines may be apart in one op, in grey levels of 0 to 255.

The numbers stand beside the op that they are about. ``max`` holds for every image, also for noise and for black and
white blocks, on which it was measured. ``mean`` and ``over_1`` hold for photographs. A device has a promise only after
it was measured there. :mod:`gpupipe.parity.tolerances` adds them up for a pipeline.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

__all__ = ["CPU", "CUDA", "EQUAL", "GRAPH", "ON_BATCH", "Bound", "Promise", "Tolerance"]

CPU = ("dali", "cpu")
CUDA = ("dali", "cuda")
GRAPH = ("dali", "graph")
"""On the CPU with ``engines.Dali(graph="whole")``: DALI's own operators, which are those of a GPU too."""


@dataclass(frozen=True)
class Bound:
    """The most that may differ, in grey levels; ``over_1`` is the share of values that differ by more than one."""

    max: float
    mean: float
    over_1: float = 0.0

    def __str__(self) -> str:
        if self.max == 0:
            return "equal"
        share = f", {100 * self.over_1:.3g} % over 1" if self.over_1 else ""
        return f"max {self.max:.3g}, mean {self.mean:.3g}{share}"


EQUAL = Bound(0, 0)


@dataclass(frozen=True)
class Tolerance:
    """What is promised of one op, and why it is not less."""

    interior: Bound
    border: Bound | None = None
    """Of pixels that a filter reached over the edge for; as ``interior`` if ``None``."""
    gain: float = 1.0
    """How much a difference in the input can grow: filters with negative weights overshoot."""
    mean_gain: float | None = None
    """How much the mean of many differences grows; as ``gain`` if ``None``."""
    reason: str = ""

    def __str__(self) -> str:
        return str(self.interior) + (f"; border {self.border}" if self.border else "")


@dataclass(frozen=True)
class Promise:
    """One row of the table: an op, or one case of it, by each engine against the reference."""

    key: str
    what: str
    tolerances: Mapping[tuple[str, str], Tolerance]
    """By engine and device. What is not there was never measured."""
    once: bool = False
    """Whether it counts once for a whole pipeline, however often the op is in it."""

    def of(self, engine: str, device: str) -> Tolerance | None:
        """What is promised there; ``None`` if it was never measured. What has no row for :data:`GRAPH` is there as on
        the CPU."""
        found = self.tolerances.get((engine, device))
        return self.tolerances.get(CPU) if found is None and (engine, device) == GRAPH else found


ON_BATCH = Promise(
    "elastic, noise, erase",
    "elastic fields, noise, erase",
    {CPU: Tolerance(EQUAL, reason="done by the same code on the batch")},
)
