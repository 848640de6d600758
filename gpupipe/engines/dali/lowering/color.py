"""Ops that change colours, data type and range.

DALI rounds where Pillow and torch cut fractions off. ``brightness_contrast`` takes a shift, which turns its rounding
into that; ``slice`` cuts off and clips when it changes the type, which is the fastest way from floats to bytes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from nvidia.dali import fn, types

from ....transforms.ops import Gray, Normalize, Op, ToDtype
from .canvas import Canvas, Path, Selected, refuse

__all__ = [
    "CUT_OFF",
    "blend",
    "brightness",
    "contrast",
    "contrasted",
    "gray",
    "normalize",
    "only_bytes",
    "saturation",
    "to_bytes",
    "to_dtype",
]

CUT_OFF = -0.5 + 1e-3
"""Added before rounding. The thousandth is for sums that come out a little less than whole."""
_FLOORED = 0.5
"""By how much torchvision's gray, whose fraction is cut off, is darker than DALI's on the average."""


def gray(canvas: Canvas, path: Path, op: Gray) -> None:
    only_bytes(canvas, op)
    image = canvas.pixels()
    gray = image
    if canvas.channels == 3:
        gray = fn.color_space_conversion(image, image_type=types.RGB, output_type=types.GRAY)
    if op.channels == 1:
        canvas.image, canvas.channels = gray, 1
    elif op.always:
        canvas.image, canvas.channels = fn.color_space_conversion(gray, image_type=types.GRAY, output_type=types.RGB), 3
    else:
        mask = canvas.feed(path, "mask", types.UINT8, 0, lambda op: op.mask.astype(np.uint8))
        keep = canvas.feed(path, "keep", types.UINT8, 0, lambda op: (~op.mask).astype(np.uint8))
        canvas.image = image * keep + gray * mask  # uint8 throughout; gray is broadcast over the channels


def only_bytes(canvas: Canvas, op: Op) -> None:
    if canvas.dtype != "uint8":
        raise refuse(op, "it needs a uint8 image; put it before ToTensor or ToDtype")


def brightness(canvas: Canvas, path: Path, op: Any) -> None:
    only_bytes(canvas, op)
    drawn = Selected(canvas, path, op)
    factor = _factor(drawn)
    drawn.done(fn.brightness_contrast(drawn.image, brightness=factor, brightness_shift=CUT_OFF / 255))


def contrast(canvas: Canvas, path: Path, op: Any) -> None:
    only_bytes(canvas, op)
    drawn = Selected(canvas, path, op)
    mean = fn.reductions.mean(_luma(drawn.image, canvas.channels))
    if op.kind == "pil":
        mean = fn.cast(fn.cast(mean, dtype=types.INT32), dtype=types.FLOAT)  # rounded
    else:
        mean = mean - _FLOORED
    factor = _factor(drawn)
    if canvas.device == "gpu":
        # As an argument the mean would have to come back to the CPU, and DALI's threads would wait for it.
        drawn.done(contrasted(drawn.image, factor.gpu(), mean, canvas.channels))
        return
    out = fn.brightness_contrast(drawn.image, contrast=factor, contrast_center=mean, brightness_shift=CUT_OFF / 255)
    drawn.done(out)


def contrasted(image: Any, factor: Any, mean: Any, channels: int) -> Any:
    """``factor * image + (1 - factor) * mean`` in bytes, the fraction cut off; ``mean`` is one number per image."""
    return to_bytes(image * factor + ((1.0 - factor) * mean + 1e-3), channels)


def saturation(canvas: Canvas, path: Path, op: Any) -> None:
    only_bytes(canvas, op)
    if canvas.channels == 1:
        return
    drawn = Selected(canvas, path, op)
    less = fn.color_space_conversion(_luma(drawn.image, 3), image_type=types.GRAY, output_type=types.RGB)
    drawn.done(blend(drawn.image, less, _factor(drawn), 3, lower=0.0 if op.kind == "pil" else _FLOORED))


def blend(image: Any, less: Any, factor: Any, channels: int, *, lower: float = 0.0) -> Any:
    """``factor * image + (1 - factor) * (less - lower)`` in bytes, the fraction cut off; ``less`` is as large as
    ``image``."""
    rest = 1.0 - factor
    # Arithmetic with a type that is converted takes several times as long as these.
    more = fn.brightness_contrast(image, brightness=factor, brightness_shift=1e-3, dtype=types.FLOAT)
    less = fn.brightness_contrast(less, brightness=rest, brightness_shift=rest * -lower, dtype=types.FLOAT)
    return to_bytes(more + less, channels)


def to_bytes(image: Any, channels: int) -> Any:
    """Clipped, and the fraction cut off."""
    return fn.slice(image, start=[0], shape=[channels], axes=[2], dtype=types.UINT8)


def _factor(drawn: Selected) -> Any:
    return drawn.number("factor", types.FLOAT, 0, lambda op: op.factor.astype(np.float32))


def _luma(image: Any, channels: int) -> Any:
    return fn.color_space_conversion(image, image_type=types.RGB, output_type=types.GRAY) if channels == 3 else image


def to_dtype(canvas: Canvas, path: Path, op: ToDtype) -> None:
    if canvas.dtype == "uint8":
        canvas.arithmetic(np.zeros(1), np.full(1, 255.0 if op.scale else 1.0))
    canvas.dtype = op.dtype


def normalize(canvas: Canvas, path: Path, op: Normalize) -> None:
    canvas.arithmetic(np.array(op.mean), np.array(op.std))
