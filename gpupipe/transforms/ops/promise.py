"""Bounds on the difference between two engines in one op, in gray levels of 0 to 255.

The numbers are attached to the op. They hold for every single image: they were measured on dithered pictures,
checkerboards, stripes, points, noise, and images of few rows or columns. Photographs differ by much less. A device has
a promise only after a measurement there.
:mod:`gpupipe.parity.tolerances` combines the promises of a pipeline.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

CPU = ("dali", "cpu")
CUDA = ("dali", "cuda")
GRAPH = ("dali", "graph")
"""``engines.Dali(graph="whole")`` on the CPU: DALI's own operators, which a GPU uses too."""


@dataclass(frozen=True)
class Bound:
    """Largest allowed difference, in gray levels. ``over_1`` is the share of values that differ by more than one."""

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
    """Promised tolerance of one op, and why it is not smaller."""

    interior: Bound
    border: Bound | None = None
    """Bound for pixels whose filter reaches over the edge; ``None`` means ``interior``."""
    gain: float = 1.0
    """Largest growth of a difference in the input; filters with negative weights overshoot."""
    mean_gain: float | None = None
    """Growth of the mean of many differences; ``None`` means ``gain``."""
    reason: str = ""

    def __str__(self) -> str:
        return str(self.interior) + (f"; border {self.border}" if self.border else "")


@dataclass(frozen=True)
class Promise:
    """One row of the table of promises: an op, or one case of it, for each engine against the reference."""

    key: str
    what: str
    tolerances: Mapping[tuple[str, str], Tolerance]
    """Tolerances by (engine, device). Missing entries were never measured."""
    once: bool = False
    """Whether the promise counts once per pipeline, however often the op occurs."""

    def of(self, engine: str, device: str) -> Tolerance | None:
        """Return the tolerance, or ``None`` if it was never measured. :data:`GRAPH` defaults to the CPU."""
        found = self.tolerances.get((engine, device))
        return self.tolerances.get(CPU) if found is None and (engine, device) == GRAPH else found


ON_BATCH = Promise(
    "erase",
    "erase",
    {CPU: Tolerance(EQUAL, reason="the same code on the batch")},
)
