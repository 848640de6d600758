"""The one table of promises: how far two engines may be apart, in grey levels of 0 to 255.

``gpupipe compare``, the parity tests and the documentation read it; nobody types its numbers a second time.
``max`` holds for every image, also for noise and for black and white blocks, on which it was measured. ``mean`` and
``over_1`` hold for photographs. A GPU has a promise only after it was measured there; ``None`` means never measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from ..errors import ConfigError
from ..transforms.compose import Compose
from ..transforms.ops import (
    JPEG,
    AutoContrast,
    Blur,
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
    ToDtype,
    Warp,
)
from .difference import Difference, Spread

__all__ = ["DECODE", "TABLE", "Bound", "Pair", "Tolerance", "check", "markdown", "tolerance"]

Pair = Literal["dali/torch", "torch/torchvision", "dali/torchvision"]
Device = Literal["cpu", "cuda"]

DECODE = "decode"


@dataclass(frozen=True)
class Bound:
    """The most that may differ, in grey levels; ``over_1`` is a share of the values."""

    max: float
    mean: float
    over_1: float = 0.0

    def __str__(self) -> str:
        if self.max == 0:
            return "equal"
        share = f", {100 * self.over_1:.3g} % over 1" if self.over_1 else ""
        return f"max {self.max:.3g}, mean {self.mean:.3g}{share}"

    def broken(self, found: Spread, where: str) -> list[str]:
        """What ``found`` does not keep, in words."""
        slack = 1e-6  # of arithmetic in the measuring itself
        return [
            f"{where}: {what} is {100 * value if percent else value:.4g}{percent}, promised is at most "
            f"{100 * limit if percent else limit:.4g}{percent}"
            for what, value, limit, percent in (
                ("the largest difference", found.max, self.max, ""),
                ("the mean difference", found.mean, self.mean, ""),
                ("the share of values off by more than 1", found.over_1, self.over_1, " %"),
            )
            if value > limit + slack
        ]


EQUAL = Bound(0, 0)


@dataclass(frozen=True)
class Tolerance:
    """What is promised of one operation, and why it is not less."""

    interior: Bound
    border: Bound | None = None
    """Of pixels that a filter reached over the edge for; as ``interior`` where ``None``."""
    gain: float = 1.0
    """How much a difference in the input can grow: filters with negative weights overshoot."""
    reason: str = ""

    def __str__(self) -> str:
        return str(self.interior) + (f"; border {self.border}" if self.border else "")


@dataclass(frozen=True)
class _Row:
    """One row of the table: the DALI engine against the reference."""

    what: str
    cpu: Tolerance | None
    cuda: Tolerance | None = None


_TRIANGLE_EDGE = Bound(60, 3, 0.5)
_EDGE = (
    "over the edge DALI repeats the edge pixel, which gives it 1/8 of the filter; Pillow and torch cut the filter off. "
    "So at most 32 levels, 60 in a corner; photographs: 16 at 224 pixels, 27 at 16"
)
_ROUNDS = "Pillow and torch round between their two passes, DALI does not"

_CLIPS = (
    "Pillow and torch clip to 0..255 between their two passes, which cuts overshoots at hard edges; DALI clips last"
)

_TIES = (
    "places are computed in float32 by DALI, in 16.16 fixed point or float64 by Pillow; where one falls between two "
    "pixels, DALI may take the other one"
)
_RIM = "a place on the rim of the image, within the last bit of a float32, may count as outside"
_PLACES = "places are computed in float32 on both sides, in another order"

_FACTORS = "for factors of up to 2: "
_SUMS = "sums that end close to a whole number are cut off apart"
_GRAYS = "torchvision cuts the fraction of gray off, DALI rounds"
_BATCH = "done by the same code on the batch"
_STEPS = "one level in its input can become many"

TABLE: dict[str, _Row] = {
    DECODE: _Row("decode, decode a window", Tolerance(EQUAL, reason="the same libjpeg-turbo, the same settings")),
    "crop": _Row("crop, pad", Tolerance(EQUAL)),
    "flip": _Row("flip", Tolerance(EQUAL)),
    "gray pil": _Row(
        "grayscale of PIL images",
        Tolerance(Bound(1, 0.01), reason="sums of 0.299 R + 0.587 G + 0.114 B that end in .5 round apart"),
    ),
    "gray tensor": _Row(
        "grayscale of tensors", Tolerance(Bound(1, 0.6), reason="torchvision cuts the fraction off, DALI rounds")
    ),
    "resize bilinear uint8 antialias": _Row(
        "resize, bilinear, antialias", Tolerance(Bound(1, 0.2), _TRIANGLE_EDGE, reason=f"{_ROUNDS}; {_EDGE}")
    ),
    "resize bilinear uint8": _Row("resize, bilinear, no antialias", Tolerance(Bound(1, 0.25), reason=_ROUNDS)),
    "resize bilinear float antialias": _Row(
        "resize, bilinear, antialias, of floats", Tolerance(Bound(0.1, 0.001), _TRIANGLE_EDGE, reason=_EDGE)
    ),
    "resize bilinear float": _Row("resize, bilinear, no antialias, of floats", Tolerance(Bound(0.1, 0.001))),
    "resize bicubic uint8 antialias": _Row(
        "resize, bicubic, antialias",
        Tolerance(Bound(40, 0.3, 0.005), Bound(40, 1.5, 0.3), gain=1.6, reason=_CLIPS),
    ),
    "resize bicubic float antialias": _Row(
        "resize, bicubic, antialias, of floats",
        Tolerance(Bound(0.5, 0.05), Bound(30, 1.5, 0.3), gain=1.6, reason="DALI reads the filter from a table"),
    ),
    "resize lanczos uint8 antialias": _Row(
        "resize, lanczos", Tolerance(Bound(80, 0.3, 0.01), Bound(80, 2, 0.3), gain=2.2, reason=_CLIPS)
    ),
    "resize nearest": _Row(
        "resize, nearest",
        Tolerance(
            Bound(255, 6, 0.05),
            reason="where a place falls exactly between two rows or columns, DALI may take the other one",
        ),
    ),
    "warp nearest": _Row("rotate, affine, nearest", Tolerance(Bound(255, 0.02, 0.0005), reason=_TIES)),
    "warp bilinear pil uint8": _Row(
        "rotate, affine, bilinear, of PIL images", Tolerance(Bound(255, 0.02, 0.0003), reason=_RIM)
    ),
    "warp bilinear tensor uint8": _Row(
        "rotate, affine, bilinear, of tensors", Tolerance(Bound(1, 0.01), reason="sums that end in .5 round apart")
    ),
    "warp bilinear tensor float": _Row(
        "rotate, affine, bilinear, of floats", Tolerance(Bound(0.2, 0.002), reason=_PLACES)
    ),
    "perspective nearest": _Row("perspective, nearest", Tolerance(Bound(255, 0.05, 0.0015), reason=_TIES)),
    "perspective bilinear pil uint8": _Row(
        "perspective, bilinear, of PIL images", Tolerance(Bound(255, 0.02, 0.0005), reason=_RIM)
    ),
    "perspective bilinear tensor uint8": _Row(
        "perspective, bilinear, of tensors", Tolerance(Bound(1, 0.01), reason="sums that end in .5 round apart")
    ),
    "perspective bilinear tensor float": _Row(
        "perspective, bilinear, of floats", Tolerance(Bound(0.2, 0.002), reason=_PLACES)
    ),
    "blur uint8": _Row("blur", Tolerance(Bound(1, 0.001), reason="sums that end in .5 round apart")),
    "blur float": _Row("blur of floats", Tolerance(Bound(0.001, 0.0005), reason="sums in another order")),
    "elastic, noise, erase": _Row(
        "elastic fields, noise, erase", Tolerance(EQUAL, reason="done by the same code on the batch")
    ),
    "brightness": _Row("brightness", Tolerance(Bound(1, 0.01), gain=2, reason=f"{_FACTORS}{_SUMS}")),
    "contrast pil": _Row("contrast of PIL images", Tolerance(Bound(1, 0.01), gain=3, reason=f"{_FACTORS}{_SUMS}")),
    "contrast tensor": _Row("contrast of tensors", Tolerance(Bound(1, 0.3), gain=3, reason=f"{_FACTORS}{_GRAYS}")),
    "saturation pil": _Row("saturation of PIL images", Tolerance(Bound(1, 0.01), gain=3, reason=f"{_FACTORS}{_SUMS}")),
    "saturation tensor": _Row("saturation of tensors", Tolerance(Bound(1, 0.5), gain=3, reason=f"{_FACTORS}{_GRAYS}")),
    "hue": _Row("hue", Tolerance(EQUAL, gain=4, reason=f"{_BATCH}; hues of pale colours turn with one level")),
    "sharpness": _Row("sharpness", Tolerance(Bound(1, 0.001), gain=3, reason=f"{_FACTORS}{_SUMS}")),
    "posterize": _Row("posterize", Tolerance(EQUAL, gain=255, reason=_STEPS)),
    "solarize": _Row("solarize", Tolerance(EQUAL, gain=255, reason=_STEPS)),
    "invert": _Row("invert", Tolerance(EQUAL)),
    "autocontrast": _Row("autocontrast", Tolerance(Bound(1, 0.1), gain=255, reason=f"{_SUMS}; {_STEPS}")),
    "equalize": _Row(
        "equalize",
        Tolerance(Bound(1, 0.5), gain=255, reason=f"Pillow counts in whole steps, DALI in fractions of them; {_STEPS}"),
    ),
    "jpeg": _Row("JPEG", Tolerance(EQUAL, gain=255, reason=f"the same libjpeg-turbo; {_STEPS}")),
    "arithmetic float32": _Row(
        "scale, normalize",
        Tolerance(
            Bound(2.6e-4, 2.6e-4),
            reason="one millionth of the range of values: the same operations in another order",
        ),
    ),
    "arithmetic float16": _Row(
        "scale, normalize, in float16", Tolerance(Bound(0.4, 0.1), reason="DALI computes in float32 and rounds once")
    ),
    "arithmetic bfloat16": _Row(
        "scale, normalize, in bfloat16",
        Tolerance(
            Bound(3, 0.8, 0.2),
            reason="DALI computes in float32 and rounds once; a step of bfloat16 is up to a level wide",
        ),
    ),
    "mix": _Row(
        "weighted sums of AugMix",
        Tolerance(Bound(1, 0.5), reason="sums in another order around whole numbers, where the fraction is cut off"),
    ),
}


_COLOURS = (Brightness, Hue, Sharpness, Posterize, Solarize, Invert, AutoContrast, Equalize, JPEG)


def _keys(ops: Sequence[Op]) -> list[str]:
    """Which rows of the table a sequence of ops comes under, after the decoding."""
    keys, dtype, arithmetic = [], "uint8", False
    for op in ops:
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
            keys.append(f"{what} bilinear {op.kind} {of}" if op.interpolation == "bilinear" else f"{what} nearest")
        elif isinstance(op, Blur):
            keys.append("blur uint8" if dtype == "uint8" else "blur float")
        elif isinstance(op, (Elastic, Noise, Erase)):
            keys.append("elastic, noise, erase")
        elif isinstance(op, (Contrast, Saturation)):
            keys.append(f"{type(op).__name__.lower()} {op.kind}")
        elif isinstance(op, _COLOURS):
            keys.append(type(op).__name__.lower())
        elif isinstance(op, ToDtype):
            dtype, arithmetic = op.dtype, True
        elif isinstance(op, Normalize):
            arithmetic = True
        elif isinstance(op, Mix):
            # The sum of a branch's bounds holds for the mean of all branches.
            keys += [*(key for branch in op.branches for key in _keys(branch)), "mix"]
        elif isinstance(op, Call):
            keys.append("a function")  # of which nobody knows what it makes of a difference
        else:
            raise ConfigError(f"the table of tolerances has no row for {type(op).__name__}; add one, after measuring")
    # Once for the whole pipeline: in half precision it is the type that limits, and not how often it is used.
    return [*keys, f"arithmetic {dtype}"] if arithmetic else keys


def tolerance(pair: Pair, ops: Sequence[Op] | Compose, device: Device = "cpu") -> Tolerance | None:
    """What is promised of a pipeline, decoding included; ``None`` where one of its parts was never measured there.

    Args:
        pair: which two; ``"torch"`` is the reference engine, ``"torchvision"`` the transforms on PIL images.
        ops: a plan's, or a pipeline.
        device: where the pipeline runs.

    The bounds of the parts add up. Where the sum is more than one level, as many values may be off by more than one
    as the mean allows.

    Raises:
        ConfigError: an op without a row.
    """
    if isinstance(ops, Compose):
        ops = ops.skeleton
    if pair == "torch/torchvision":
        return Tolerance(EQUAL, reason="the reference does what torchvision does") if device == "cpu" else None
    rows = [TABLE.get(key) for key in (DECODE, *_keys(ops))]
    parts = [None if row is None else row.cpu if device == "cpu" else row.cuda for row in rows]
    interior, border = EQUAL, None
    for part in parts:
        if part is None:
            return None
        if part.border is not None or border is not None:
            border = _after(border or interior, part.border or part.interior, part.gain)
        interior = _after(interior, part.interior, part.gain)
    return Tolerance(interior, border, reason="; ".join(dict.fromkeys(p.reason for p in parts if p and p.reason)))


def _after(before: Bound, part: Bound, gain: float) -> Bound:
    if before.max == 0:
        return part
    if part.max == 0 and gain == 1:
        return before
    largest, mean = (min(255.0, a * gain + b) for a, b in ((before.max, part.max), (before.mean, part.mean)))
    # Markov: the share of values above one is at most their mean.
    over = before.over_1 if part.max < 0.01 and gain == 1 else min(1.0, mean)
    return Bound(largest, mean, over if largest > 1 else 0.0)


def check(pair: Pair, ops: Sequence[Op] | Compose, found: Difference, device: Device = "cpu") -> list[str]:
    """The promises that ``found`` breaks, in words; empty where all are kept, or where none was made."""
    promised = tolerance(pair, ops, device)
    if promised is None:
        return []
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
