"""Ops that change colors.

DALI rounds where Pillow and torch truncate. A shift in ``brightness_contrast`` turns its rounding into truncation;
``slice`` truncates and clips when it changes the type, which is the fastest way from floats to bytes.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ....transforms import ops
from ..api import fn, types
from .canvas import Canvas, OpAddress, Selected
from .registry import canvas_lowering, lowering

CUT_OFF = -0.5 + 1e-3
"""Added before rounding. The thousandth is for sums that come out slightly below an integer."""
_FLOORED = 0.5
"""Average difference between DALI's gray and torchvision's, which is truncated and therefore darker."""


@canvas_lowering(ops.Gray, only="uint8")
def gray(canvas: Canvas, address: OpAddress, op: ops.Gray) -> None:
    image = canvas.pixels()
    gray = _luma(image, canvas.channels)
    if op.channels == 1:
        canvas.image, canvas.channels = gray, 1
    elif op.always:
        canvas.image, canvas.channels = fn.color_space_conversion(gray, image_type=types.GRAY, output_type=types.RGB), 3
    else:
        mask = canvas.feed(address, "mask", types.UINT8, 0, lambda op: op.mask.astype(np.uint8))
        keep = canvas.feed(address, "keep", types.UINT8, 0, lambda op: (~op.mask).astype(np.uint8))
        canvas.image = image * keep + gray * mask  # uint8 throughout; gray is broadcast over the channels


@lowering(ops.Brightness, only="uint8")
def brightness(drawn: Selected, op: ops.Brightness) -> Any:
    image = drawn.image
    # DALI's shift is a share of the value range.
    return fn.brightness_contrast(image, brightness=factor_of(drawn), brightness_shift=CUT_OFF / 255)


@lowering(ops.Contrast, only="uint8")
def contrast(drawn: Selected, op: ops.Contrast) -> Any:
    image, channels = drawn.image, drawn.canvas.channels
    mean = fn.reductions.mean(_luma(image, channels))
    if op.kind == "pil":
        mean = fn.cast(fn.cast(mean, dtype=types.INT32), dtype=types.FLOAT)  # rounded
    else:
        mean = mean - _FLOORED
    factor = factor_of(drawn)
    if drawn.canvas.device == "gpu":
        # As an argument, the mean would have to be copied to the CPU, and DALI's threads would wait for it.
        return contrasted(image, factor.gpu(), mean, channels)
    return fn.brightness_contrast(image, contrast=factor, contrast_center=mean, brightness_shift=CUT_OFF / 255)


def contrasted(image: Any, factor: Any, mean: Any, channels: int) -> Any:
    """Compute ``factor * image + (1 - factor) * mean`` in bytes, truncated; ``mean`` is one number per image."""
    return to_bytes(image * factor + ((1.0 - factor) * mean + 1e-3), channels)


@lowering(ops.Saturation, only="uint8")
def saturation(drawn: Selected, op: ops.Saturation) -> Any:
    if drawn.canvas.channels == 1:
        return None
    less = fn.color_space_conversion(_luma(drawn.image, 3), image_type=types.GRAY, output_type=types.RGB)
    return blend(drawn.image, less, factor_of(drawn), 3, lower=0.0 if op.kind == "pil" else _FLOORED)


def blend(image: Any, less: Any, factor: Any, channels: int, *, lower: float = 0.0) -> Any:
    """Compute ``factor * image + (1 - factor) * (less - lower)`` in bytes, truncated; ``less`` is as large as
    ``image``."""
    rest = 1.0 - factor
    # Arithmetic that converts types takes several times as long as these operators.
    more = fn.brightness_contrast(image, brightness=factor, brightness_shift=1e-3, dtype=types.FLOAT)
    less = fn.brightness_contrast(less, brightness=rest, brightness_shift=rest * -lower, dtype=types.FLOAT)
    return to_bytes(more + less, channels)


def to_bytes(image: Any, channels: int) -> Any:
    """Convert to bytes by clipping and truncating."""
    return fn.slice(image, start=[0], shape=[channels], axes=[2], dtype=types.UINT8)


def factor_of(drawn: Selected) -> Any:
    """Add an input with the factors of an op."""
    return drawn.number("factor", types.FLOAT, 0, lambda op: op.factor.astype(np.float32))


def _luma(image: Any, channels: int) -> Any:
    return fn.color_space_conversion(image, image_type=types.RGB, output_type=types.GRAY) if channels == 3 else image


@lowering(ops.ChannelPermutation)
def permute_channels(drawn: Selected, op: ops.ChannelPermutation) -> Any:
    order = drawn.number("order", types.INT32, 1, lambda op: op.permutation)
    planes = (fn.slice(drawn.image, start=order[k : k + 1], shape=[1], axes=[2]) for k in range(3))
    return fn.cat(*planes, axis=2)
