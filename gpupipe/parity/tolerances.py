"""Tolerances between two engines on a pipeline, derived from the promises of its ops.

``gpupipe compare``, the parity tests and the documentation use them. See :mod:`gpupipe.transforms.ops.promise`.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Literal

from ..errors import ConfigError
from ..reading.smaller import PROMISE as SCALED
from ..transforms.compose import Compose
from ..transforms.ops import OPS, Dtype, Op, ToDtype, Views
from ..transforms.ops.promise import CPU, EQUAL, Bound, Promise, Tolerance
from .difference import Difference, Spread

__all__ = [
    "DECODE",
    "SCALED",
    "TABLE",
    "Bound",
    "Pair",
    "Promise",
    "Tolerance",
    "broken",
    "check",
    "rows_of",
    "tolerance",
    "widest",
]

Pair = Literal["dali/torch", "torch/torchvision", "dali/torchvision"]
Device = Literal["cpu", "graph", "cuda"]

DECODE = "decode"

TABLE: dict[str, Promise] = {
    DECODE: Promise(
        DECODE,
        "decode, decode a window",
        {CPU: Tolerance(EQUAL, reason="the same libjpeg-turbo with the same settings")},
    ),
    **{promise.key: promise for op in OPS for promise in op.PROMISES},
}
"""All promises by key: those of the ops, and decoding."""


def _keys(ops: Sequence[Op], i: int) -> list[str]:
    """Return the rows of the table that a sequence of ops uses for image ``i`` after decoding."""
    keys: list[str] = []
    last: list[str] = []
    dtype: Dtype = "uint8"
    for op in ops:
        if isinstance(op, Views):
            raise ConfigError("each view has promises of its own; ask for the ops of one, see by_view()")
        if op.passes(i):
            continue
        key = op.promise(dtype)
        if key in TABLE and TABLE[key].once:
            last = [key]  # for the final type
        else:
            keys += [*(key for branch in op.branches for key in _keys(branch, i)), key]
        if isinstance(op, ToDtype):
            dtype = op.dtype
    return [*keys, *last]


def rows_of(ops: Sequence[Op]) -> list[str]:
    """Return the names of the rows that any image of ``ops`` uses, except decoding."""
    images = max((op.rows for op in ops), default=0) or 1
    return list(dict.fromkeys(key for i in range(images) for key in _keys(ops, i)))


def tolerance(pair: Pair, ops: Sequence[Op] | Compose, device: Device = "cpu") -> Tolerance | None:
    """Return the promise for a pipeline including decoding, or ``None`` if a part was never measured there.

    Args:
        pair: ``"torch"`` is the reference engine, ``"torchvision"`` the transforms on PIL images.
        ops: ops of a plan, or a pipeline.
        device: where the pipeline runs; ``"graph"`` is the CPU with ``engines.Dali(graph="whole")``.

    Masked ops count only for images in the mask; the promise is the widest over all images. For a pipeline, these are
    the few images that its shape was found with. The bounds of the parts add up. If the sum exceeds one level, as many
    values may be off by more than one as the mean allows.

    Raises:
        ConfigError: an op has no promise, or there are several views.
    """
    if isinstance(ops, Compose):
        ops = ops.skeleton
    engine = pair.partition("/")[0]
    if engine == "torch":
        return Tolerance(EQUAL, reason="the reference does what torchvision does") if device != "cuda" else None
    images = max((op.rows for op in ops), default=0) or 1
    # Images that draw the same ops have the same promise.
    found = [_sum(keys, engine, device) for keys in dict.fromkeys((DECODE, *_keys(ops, i)) for i in range(images))]
    if any(t is None for t in found) or not found:
        return None
    return reduce(widest, found)  # type: ignore[arg-type]


def widest(a: Tolerance, b: Tolerance) -> Tolerance:
    """Return the tolerance that covers both."""
    border = None
    if a.border or b.border:
        border = _wider(a.border or a.interior, b.border or b.interior)
    reasons = dict.fromkeys(r for t in (a, b) for r in t.reason.split("; ") if r)
    return Tolerance(_wider(a.interior, b.interior), border, reason="; ".join(reasons))


def _wider(a: Bound, b: Bound) -> Bound:
    return Bound(max(a.max, b.max), max(a.mean, b.mean), max(a.over_1, b.over_1))


def _sum(keys: Sequence[str], engine: str, device: Device) -> Tolerance | None:
    """Return the combined bounds of consecutive rows."""
    parts = [TABLE[key].of(engine, device) if key in TABLE else None for key in keys]
    interior, border = EQUAL, None
    for part in parts:
        if part is None:
            return None
        # Once an op distinguishes the border, the bounds of all later ones do.
        if part.border is not None or border is not None:
            border = _after(border or interior, part.border or part.interior, part)
        interior = _after(interior, part.interior, part)
    return Tolerance(interior, border, reason="; ".join(dict.fromkeys(p.reason for p in parts if p and p.reason)))


def _after(before: Bound, part: Bound, how: Tolerance) -> Bound:
    # An op bounds the difference that it adds, and its gain bounds the growth of an existing one.
    if before.max == 0:
        return part
    if part.max == 0 and how.gain == 1:
        return before
    largest = min(255.0, before.max * how.gain + part.max)
    mean = min(255.0, before.mean * (how.gain if how.mean_gain is None else how.mean_gain) + part.mean)
    # Markov: the share of values above one is at most their mean.
    over = before.over_1 if part.max < 0.01 and how.gain == 1 else min(1.0, mean)
    # Otherwise no value can be off by more than one.
    return Bound(largest, mean, over if largest > 1 else 0.0)


def check(pair: Pair, ops: Sequence[Op] | Compose, found: Difference, device: Device = "cpu") -> list[str]:
    """Return descriptions of promises that ``found`` breaks; empty if all are kept or there are none."""
    promised = tolerance(pair, ops, device)
    return [] if promised is None else broken(promised, found)


def broken(promised: Tolerance, found: Difference) -> list[str]:
    """Return descriptions of the parts of ``promised`` that ``found`` breaks."""
    return [
        *_beyond(promised.interior, found.interior, "inside" if found.border.values else "everywhere"),
        *_beyond(promised.border or promised.interior, found.border, "at the border"),
    ]


def _beyond(bound: Bound, found: Spread, where: str) -> list[str]:
    slack = 1e-6  # for rounding in the measurement itself
    return [
        f"{where}: {what} is {100 * value if percent else value:.4g}{percent}, promised at most "
        f"{100 * limit if percent else limit:.4g}{percent}"
        for what, value, limit, percent in (
            ("the largest difference", found.max, bound.max, ""),
            ("the mean difference", found.mean, bound.mean, ""),
            ("the share of values off by more than 1", found.over_1, bound.over_1, " %"),
        )
        if value > limit + slack
    ]
