"""Ops on values and histograms: sharpness, fewer levels, inversions, stretched and even histograms, JPEG."""

from __future__ import annotations

from typing import Any

import numpy as np
from nvidia.dali import fn, math, types

from ....transforms.ops import JPEG, AutoContrast, Equalize, Invert, Posterize, Solarize
from .canvas import Canvas, Path, Selected
from .color import CUT_OFF, blend, only_bytes, to_bytes

__all__ = ["autocontrast", "equalize", "invert", "jpeg", "posterize", "sharpness", "solarize", "stretched"]

_SMOOTH = np.array([[1, 1, 1], [1, 5, 1], [1, 1, 1]], np.float32) / 13


def sharpness(canvas: Canvas, path: Path, op: Any) -> None:
    only_bytes(canvas, op)
    drawn = Selected(canvas, path, op)
    factor = drawn.number("factor", types.FLOAT, 0, lambda op: op.factor.astype(np.float32))
    image = drawn.image
    # What smoothing changes, but not in the outermost rows and columns.
    kernel = drawn.number("kernel", types.FLOAT, 2, lambda op: np.tile(_SMOOTH, (len(op.mask), 1, 1)))
    changed = image ^ fn.filter(image, _beside(canvas, kernel))
    size = fn.cast(image.shape(), dtype=types.FLOAT)
    height, width = size[0], size[1]
    zero = height * 0.0
    one = zero + 1.0
    frame = {
        "anchor": fn.stack(zero, zero, height - 1.0, zero, zero, zero, zero, width - 1.0),
        "shape": fn.stack(one, width, one, width, height, one, height, one),
    }
    less = image ^ fn.erase(changed, axis_names="HW", **frame)
    drawn.done(blend(image, less, factor, canvas.channels))


def posterize(canvas: Canvas, path: Path, op: Posterize) -> None:
    only_bytes(canvas, op)
    drawn = Selected(canvas, path, op)
    keep = drawn.number("keep", types.UINT8, 0, lambda op: (256 - (1 << (8 - op.bits))).astype(np.uint8))
    drawn.done(drawn.image & _beside(canvas, keep))


def solarize(canvas: Canvas, path: Path, op: Solarize) -> None:
    only_bytes(canvas, op)
    drawn = Selected(canvas, path, op)
    least = drawn.number("least", types.UINT8, 0, lambda op: np.clip(np.ceil(op.threshold), 0, 255).astype(np.uint8))
    # All bits are turned, or none where no byte reaches the threshold.
    bits = drawn.number("bits", types.UINT8, 0, lambda op: np.where(op.threshold > 255, 0, 255).astype(np.uint8))
    drawn.done(drawn.image ^ ((drawn.image >= _beside(canvas, least)) * _beside(canvas, bits)))


def invert(canvas: Canvas, path: Path, op: Invert) -> None:
    only_bytes(canvas, op)
    drawn = Selected(canvas, path, op)
    drawn.done(_inverse(drawn.image))


def _inverse(image: Any) -> Any:
    return image ^ np.uint8(255)


def autocontrast(canvas: Canvas, path: Path, op: AutoContrast) -> None:
    only_bytes(canvas, op)
    drawn = Selected(canvas, path, op)
    low, high = (
        fn.cast(reduce(drawn.image, axes=[0, 1], keep_dims=True), dtype=types.FLOAT)
        for reduce in (fn.reductions.min, fn.reductions.max)
    )
    flat = low == high  # a channel of one value stays
    mean, spread = low * (1.0 - flat), high - low + flat * 255.0
    if canvas.device == "gpu":  # as arguments they would have to come back to the CPU
        drawn.done(stretched(drawn.image, mean, spread, canvas.channels))
        return
    out = fn.normalize(
        drawn.image, mean=mean, stddev=spread, axes=[0, 1], scale=255.0, shift=CUT_OFF, dtype=types.UINT8
    )
    drawn.done(out)


def stretched(image: Any, low: Any, spread: Any, channels: int) -> Any:
    """``255 * (image - low) / spread`` in bytes, the fraction cut off; [1, 1, C] numbers for each image."""
    return to_bytes((image - low) * (255.0 / spread) + 1e-3, channels)


def equalize(canvas: Canvas, path: Path, op: Equalize) -> None:
    """Pillow counts the values below each, in whole steps of 1/255 of all but the highest; OpenCV, which DALI calls,
    those up to it, in fractions of all but the lowest. Of the inverted image that is the same, but for the step."""
    only_bytes(canvas, op)
    drawn = Selected(canvas, path, op)
    image = drawn.image
    even = _inverse(fn.equalize(_inverse(image)))
    highest = image == fn.reductions.max(image, axes=[0, 1])
    last = fn.reductions.sum(fn.cast(highest, dtype=types.UINT8), axes=[0, 1], dtype=types.FLOAT)
    size = fn.cast(image.shape(), dtype=types.FLOAT)
    count = _beside(canvas, size[0] * size[1]) - last
    step = math.floor(count / 255.0)
    stays = step < 1.0  # as Pillow leaves channels with fewer values than steps
    stretch = (1.0 - stays) * count / (255.0 * step + stays)
    drawn.done(to_bytes(even * stretch + 0.5 + image * fn.cast(stays, dtype=types.FLOAT), canvas.channels))


def jpeg(canvas: Canvas, path: Path, op: JPEG) -> None:
    only_bytes(canvas, op)
    drawn = Selected(canvas, path, op, moves=True)  # blocks begin at the upper left corner
    quality = drawn.number("quality", types.INT32, 0, lambda op: op.quality.astype(np.int32))
    image = drawn.image
    if canvas.channels == 1:
        image = fn.color_space_conversion(image, image_type=types.GRAY, output_type=types.RGB)
    image = fn.jpeg_compression_distortion(image, quality=quality)
    if canvas.channels == 1:
        image = fn.slice(image, start=[0], shape=[1], axes=[2])
    drawn.done(image)


def _beside(canvas: Canvas, number: Any) -> Any:
    """Where arithmetic with the image can take it."""
    return number.gpu() if canvas.device == "gpu" else number
