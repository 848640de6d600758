"""Ops on values and histograms: sharpness, posterize, inversions, autocontrast, equalization."""

from __future__ import annotations

from typing import Any

import numpy as np

from ....transforms import ops
from ..api import fn, math, types
from .canvas import Selected
from .color import CUT_OFF, blend, factor_of, to_bytes
from .registry import lowering

_SMOOTH = np.array([[1, 1, 1], [1, 5, 1], [1, 1, 1]], np.float32) / 13


@lowering(ops.Sharpness, only="uint8")
def sharpness(drawn: Selected, op: ops.Sharpness) -> Any:
    factor, image = factor_of(drawn), drawn.image
    # Smoothing changes everything but the outermost rows and columns.
    kernel = drawn.number("kernel", types.FLOAT, 2, lambda op: np.tile(_SMOOTH, (len(op.mask), 1, 1)))
    changed = image ^ fn.filter(image, drawn.beside(kernel))
    size = fn.cast(image.shape(), dtype=types.FLOAT)
    height, width = size[0], size[1]
    zero = height * 0.0
    one = zero + 1.0
    # Four rectangles, one along each edge, one pixel wide.
    frame = {
        "anchor": fn.stack(zero, zero, height - 1.0, zero, zero, zero, zero, width - 1.0),
        "shape": fn.stack(one, width, one, width, height, one, height, one),
    }
    # Where the change was erased, the exclusive or returns the original pixels.
    less = image ^ fn.erase(changed, axis_names="HW", **frame)
    return blend(image, less, factor, drawn.canvas.channels)


@lowering(ops.Posterize, only="uint8")
def posterize(drawn: Selected, op: ops.Posterize) -> Any:
    keep = drawn.number("keep", types.UINT8, 0, lambda op: (256 - (1 << (8 - op.bits))).astype(np.uint8))
    return drawn.image & drawn.beside(keep)


@lowering(ops.Solarize, only="uint8")
def solarize(drawn: Selected, op: ops.Solarize) -> Any:
    least = drawn.number("least", types.UINT8, 0, lambda op: np.clip(np.ceil(op.threshold), 0, 255).astype(np.uint8))
    # All bits are inverted, or none if no byte reaches the threshold.
    bits = drawn.number("bits", types.UINT8, 0, lambda op: np.where(op.threshold > 255, 0, 255).astype(np.uint8))
    return drawn.image ^ ((drawn.image >= drawn.beside(least)) * drawn.beside(bits))


@lowering(ops.SolarizeAdd, only="uint8")
def solarize_add(drawn: Selected, op: ops.SolarizeAdd) -> Any:
    addend = drawn.number("addend", types.UINT8, 0, lambda op: op.addend.astype(np.uint8))
    dark = fn.cast(drawn.image < 128, dtype=types.UINT8)
    return drawn.image + dark * addend  # at most 127 + 128: nothing overflows


@lowering(ops.Invert, only="uint8")
def invert(drawn: Selected, op: ops.Invert) -> Any:
    return _inverse(drawn.image)


def _inverse(image: Any) -> Any:
    return image ^ np.uint8(255)


@lowering(ops.AutoContrast, only="uint8")
def autocontrast(drawn: Selected, op: ops.AutoContrast) -> Any:
    image = drawn.image
    # The lowest and the highest value of every channel, [1, 1, C].
    low, high = (
        fn.cast(reduce(image, axes=[0, 1], keep_dims=True), dtype=types.FLOAT)
        for reduce in (fn.reductions.min, fn.reductions.max)
    )
    flat = low == high  # a channel of one value does not change
    # A flat channel gets 0 and 255, with which stretching changes nothing.
    mean, spread = low * (1.0 - flat), high - low + flat * 255.0
    if drawn.canvas.device == "gpu":  # as arguments they would have to be copied to the CPU
        return stretched(image, mean, spread, drawn.canvas.channels)
    return fn.normalize(image, mean=mean, stddev=spread, axes=[0, 1], scale=255.0, shift=CUT_OFF, dtype=types.UINT8)


def stretched(image: Any, low: Any, spread: Any, channels: int) -> Any:
    """Compute ``255 * (image - low) / spread`` in bytes, truncated; ``low`` and ``spread`` are [1, 1, C] for
    each image."""
    return to_bytes((image - low) * (255.0 / spread) + 1e-3, channels)


@lowering(ops.Equalize, only="uint8")
def equalize(drawn: Selected, op: ops.Equalize) -> Any:
    """Equalize histograms with OpenCV's operator, which differs from Pillow's.

    Pillow counts the values below each one, in integer steps of 1/255 of all but the highest. OpenCV, which DALI calls,
    counts the values up to it, in fractions of all but the lowest. On the inverted image both agree, except for the
    step.
    """
    image = drawn.image
    even = _inverse(fn.equalize(_inverse(image)))
    # The number of pixels with the highest value; a 255th of the others is a step.
    highest = image == fn.reductions.max(image, axes=[0, 1])
    last = fn.reductions.sum(fn.cast(highest, dtype=types.UINT8), axes=[0, 1], dtype=types.FLOAT)
    size = fn.cast(image.shape(), dtype=types.FLOAT)
    count = drawn.beside(size[0] * size[1]) - last
    step = math.floor(count / 255.0)
    stays = step < 1.0  # as Pillow leaves channels with fewer values than steps
    # A channel that stays is multiplied by 0 here, without a division by 0, and added below.
    stretch = (1.0 - stays) * count / (255.0 * step + stays)
    return to_bytes(even * stretch + 0.5 + image * fn.cast(stays, dtype=types.FLOAT), drawn.canvas.channels)
