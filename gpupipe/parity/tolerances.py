"""The one table of promises: how far two engines may be apart, in grey levels of 0 to 255.

``gpupipe compare``, the parity tests and the documentation read it; nobody types its numbers a second time.
``max`` holds for every image, also for noise and for black and white blocks, on which it was measured. ``mean`` and
``over_1`` hold for photographs. A GPU has a promise only after it was measured there; ``None`` means never measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Literal

from ..errors import ConfigError
from ..transforms.compose import Compose
from ..transforms.ops import (
    JPEG,
    AutoContrast,
    Blur,
    BoxBlur,
    Brightness,
    Call,
    Contrast,
    Crop,
    Elastic,
    Equalize,
    Erase,
    Flip,
    Gray,
    Hue,
    Invert,
    Mix,
    Noise,
    Normalize,
    Op,
    Perspective,
    Posterize,
    Resize,
    Saturation,
    Sharpness,
    Solarize,
    SolarizeAdd,
    ToDtype,
    Warp,
)
from .difference import Difference
from .promises import DECODE, EQUAL, TABLE, Bound, Tolerance

__all__ = [
    "DECODE",
    "TABLE",
    "Bound",
    "Pair",
    "Tolerance",
    "broken",
    "check",
    "markdown",
    "rows_of",
    "tolerance",
    "widest",
]

Pair = Literal["dali/torch", "torch/torchvision", "dali/torchvision"]
Device = Literal["cpu", "cuda"]

_ONE_ROW = (
    Brightness, Hue, Sharpness, Posterize, Solarize, SolarizeAdd, Invert, AutoContrast, Equalize, JPEG, BoxBlur,
)  # fmt: skip
"""Ops with one row each, of their own name."""


def _keys(ops: Sequence[Op], i: int) -> list[str]:
    """Which rows of the table a sequence of ops comes under for image ``i``, after the decoding."""
    keys, dtype, arithmetic = [], "uint8", False
    for op in ops:
        mask = getattr(op, "mask", None)
        if mask is not None and not mask[i]:
            continue
        if isinstance(op, Crop):
            keys.append("crop")
        elif isinstance(op, Flip):
            keys.append("flip")
        elif isinstance(op, Gray):
            keys.append(f"gray {op.kind}")
        elif isinstance(op, Resize):
            if op.interpolation in ("nearest", "nearest-exact"):
                keys.append("resize nearest")
            else:
                of = "uint8" if dtype == "uint8" else "float"
                keys.append(f"resize {op.interpolation} {of}" + (" antialias" if op.antialias else ""))
        elif isinstance(op, (Warp, Perspective)):
            what = "warp" if isinstance(op, Warp) else "perspective"
            of = "uint8" if dtype == "uint8" else "float"
            if op.interpolation == "bicubic":
                keys.append("elastic, noise, erase")
            else:
                keys.append(f"{what} bilinear {op.kind} {of}" if op.interpolation == "bilinear" else f"{what} nearest")
        elif isinstance(op, Blur):
            keys.append("blur uint8" if dtype == "uint8" else "blur float")
        elif isinstance(op, (Elastic, Noise, Erase)):
            keys.append("elastic, noise, erase")
        elif isinstance(op, (Contrast, Saturation)):
            keys.append(f"{type(op).__name__.lower()} {op.kind}")
        elif isinstance(op, _ONE_ROW):
            keys.append(type(op).__name__.lower())
        elif isinstance(op, ToDtype):
            dtype, arithmetic = op.dtype, True
        elif isinstance(op, Normalize):
            arithmetic = True
        elif isinstance(op, Mix):
            # The sum of a branch's bounds holds for the mean of all branches.
            keys += [*(key for branch in op.branches for key in _keys(branch, i)), "mix"]
        elif isinstance(op, Call):
            keys.append("a function")  # of which nobody knows what it makes of a difference
        else:
            raise ConfigError(f"the table of tolerances has no row for {type(op).__name__}; add one, after measuring")
    # Once for the whole pipeline: in half precision it is the type that limits, and not how often it is used.
    return [*keys, f"arithmetic {dtype}"] if arithmetic else keys


def rows_of(ops: Sequence[Op]) -> list[str]:
    """The names of the rows that some image of ``ops`` comes under, decoding apart."""
    images = max((len(v) for op in ops for v in op.numbers().values()), default=1)
    return list(dict.fromkeys(key for i in range(images) for key in _keys(ops, i)))


def tolerance(pair: Pair, ops: Sequence[Op] | Compose, device: Device = "cpu") -> Tolerance | None:
    """What is promised of a pipeline, decoding included; ``None`` where one of its parts was never measured there.

    Args:
        pair: which two; ``"torch"`` is the reference engine, ``"torchvision"`` the transforms on PIL images.
        ops: a plan's, or a pipeline.
        device: where the pipeline runs.

    Of what a mask selects, only images that it selects have a part; the promise is the widest of all images'. Of a
    pipeline, these are the few that its shape was found with. The bounds of the parts add up. Where the sum is more
    than one level, as many values may be off by more than one as the mean allows.

    Raises:
        ConfigError: an op without a row.
    """
    if isinstance(ops, Compose):
        ops = ops.skeleton
    if pair == "torch/torchvision":
        return Tolerance(EQUAL, reason="the reference does what torchvision does") if device == "cpu" else None
    images = max((len(v) for op in ops for v in op.numbers().values()), default=1)
    found = [_sum(keys, device) for keys in dict.fromkeys((DECODE, *_keys(ops, i)) for i in range(images))]
    if any(t is None for t in found) or not found:
        return None
    return reduce(widest, found)  # type: ignore[arg-type]


def widest(a: Tolerance, b: Tolerance) -> Tolerance:
    """What both keep."""
    border = None
    if a.border or b.border:
        border = _wider(a.border or a.interior, b.border or b.interior)
    reasons = dict.fromkeys(r for t in (a, b) for r in t.reason.split("; ") if r)
    return Tolerance(_wider(a.interior, b.interior), border, reason="; ".join(reasons))


def _wider(a: Bound, b: Bound) -> Bound:
    return Bound(max(a.max, b.max), max(a.mean, b.mean), max(a.over_1, b.over_1))


def _sum(keys: Sequence[str], device: Device) -> Tolerance | None:
    """The bounds of some rows, one after the other."""
    rows = [TABLE.get(key) for key in keys]
    parts = [None if row is None else row.cpu if device == "cpu" else row.cuda for row in rows]
    interior, border = EQUAL, None
    for part in parts:
        if part is None:
            return None
        if part.border is not None or border is not None:
            border = _after(border or interior, part.border or part.interior, part)
        interior = _after(interior, part.interior, part)
    return Tolerance(interior, border, reason="; ".join(dict.fromkeys(p.reason for p in parts if p and p.reason)))


def _after(before: Bound, part: Bound, how: Tolerance) -> Bound:
    if before.max == 0:
        return part
    if part.max == 0 and how.gain == 1:
        return before
    largest = min(255.0, before.max * how.gain + part.max)
    mean = min(255.0, before.mean * (how.gain if how.mean_gain is None else how.mean_gain) + part.mean)
    # Markov: the share of values above one is at most their mean.
    over = before.over_1 if part.max < 0.01 and how.gain == 1 else min(1.0, mean)
    return Bound(largest, mean, over if largest > 1 else 0.0)


def check(pair: Pair, ops: Sequence[Op] | Compose, found: Difference, device: Device = "cpu") -> list[str]:
    """The promises that ``found`` breaks, in words; empty where all are kept, or where none was made."""
    promised = tolerance(pair, ops, device)
    return [] if promised is None else broken(promised, found)


def broken(promised: Tolerance, found: Difference) -> list[str]:
    """What of ``promised`` is not kept, in words."""
    return [
        *promised.interior.broken(found.interior, "inside" if found.border.values else "everywhere"),
        *(promised.border or promised.interior).broken(found.border, "at the border"),
    ]


def markdown() -> str:
    """The table for the documentation."""
    lines = [
        "| DALI against the reference | CPU | at the border of the image | GPU | why |",
        "|---|---|---|---|---|",
    ]
    for row in TABLE.values():
        cpu = "not measured" if row.cpu is None else str(row.cpu.interior)
        border = "" if row.cpu is None or row.cpu.border is None else str(row.cpu.border)
        cuda = "not measured" if row.cuda is None else str(row.cuda)
        lines.append(f"| {row.what} | {cpu} | {border} | {cuda} | {row.cpu.reason if row.cpu else ''} |")
    lines += ["", "The reference against torchvision on PIL images, CPU: equal."]
    return "\n".join(lines) + "\n"
