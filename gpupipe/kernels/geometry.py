"""Crops, resizes and flips."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import PIL
import torch
from numpy.lib.stride_tricks import as_strided
from PIL import Image
from torch import Tensor

from ..errors import PipelineError
from ..transforms import ops
from ..transforms.ops.op import I64, Array
from .picture import CROP, PIL_FILTERS, RESIZE, TRANSPOSE, Picture, array, chw, hwc, nchw, pil, size_of
from .registry import batch_form, form


@form(ops.Crop)
def crop(image: Picture, op: ops.Crop, i: int) -> Picture:
    top, left, height, width = op.top.item(i), op.left.item(i), op.height.item(i), op.width.item(i)
    return window(image, top, left, height, width, op.fill, op.mode)


def window(
    image: Picture, top: int, left: int, height: int, width: int, fill: tuple[float, ...], mode: str = "constant"
) -> Picture:
    """Return a window of an image, filled outside of it."""
    have_height, have_width = size_of(image)
    if (top, left, height, width) == (0, 0, have_height, have_width):
        return image
    if min(top, left) >= 0 and top + height <= have_height and left + width <= have_width:
        if isinstance(image, np.ndarray):
            return image[top : top + height, left : left + width]
        return CROP(image, (left, top, left + width, top + height))
    values = array(image)
    if mode != "constant":
        rows, columns = reach(top, height, have_height, mode), reach(left, width, have_width, mode)
        return values[rows][:, columns]
    out = np.empty((height, width, values.shape[2]), values.dtype)
    line = np.empty(out.shape[1:], out.dtype)
    line[:] = np.array(fill).astype(values.dtype)  # fractions of a gray level are truncated, as in torchvision
    out[:] = line  # copying lines takes a fifth of the time of repeating a color
    y0, x0 = max(top, 0), max(left, 0)
    inside = values[y0 : max(top + height, 0), x0 : max(left + width, 0)]
    out[y0 - top : y0 - top + inside.shape[0], x0 - left : x0 - left + inside.shape[1]] = inside
    return out


def joined_crops(steps: Sequence[ops.Op]) -> tuple[ops.Op, ...]:
    """Join neighboring crops into one, so that what a later one cuts off is not filled or copied."""
    joined: list[ops.Op] = []
    for op in steps:
        before = joined[-1] if joined else None
        fits = isinstance(before, ops.Crop) and before.mode == "constant"
        if fits and isinstance(before, ops.Crop) and isinstance(op, ops.Crop) and not op.padded:
            top, left = before.top + op.top, before.left + op.left
            size: dict[str, Any] = {"height": op.height, "width": op.width}
            joined[-1] = replace(before, top=top, left=left, **size, mask=None, by_center=False)
        else:
            joined.append(op)
    return tuple(joined)


@batch_form(ops.Crop, rows="all", together="always")
def crop_batch(x: Tensor, op: ops.Crop) -> Tensor:
    """Crop a window from each image, all of one size. On a GPU, pixels outside of an image have one color.

    Raises :class:`PipelineError` if the windows differ in size, or for other modes on a GPU.
    """
    sizes = {*zip(op.height.tolist(), op.width.tolist(), strict=True)}
    if len(sizes) > 1:
        raise PipelineError("the images of a batch are cropped to different sizes; put a Resize((h, w)) before this")
    ((height, width),) = sizes
    tops, lefts = op.top.tolist(), op.left.tolist()
    above, left_of = -min(tops), -min(lefts)
    below, right_of = max(tops) + height - x.shape[2], max(lefts) + width - x.shape[3]
    inside = max(above, left_of, below, right_of) <= 0
    if inside and -above == max(tops) and -left_of == max(lefts):  # a view is enough
        return x[:, :, -above : height - above, -left_of : width - left_of]
    if x.device.type == "cpu" and x.dtype != torch.bfloat16:  # numpy has no bfloat16
        values, top, left = x.numpy(), op.top.astype(np.int64), op.left.astype(np.int64)
        if not inside and op.mode != "constant":
            return torch.from_numpy(_mirrored(values, op))
        if not inside:  # a window needs at most its own size around an image
            reach = ((above, height), (below, height), (left_of, width), (right_of, width))
            around = [min(max(0, pixels), most) for pixels, most in reach]
            values = _surrounded(values, around, op.fill)
            top = (top + around[0]).clip(0, values.shape[2] - height)
            left = (left + around[2]).clip(0, values.shape[3] - width)
        return torch.from_numpy(_windows(values, top, left, height, width))
    if not inside and op.mode != "constant":
        raise PipelineError(f'padding_mode={op.mode!r} cannot work on a whole batch; use "constant"')
    have = x.shape[2:]
    out = x.new_empty((len(x), x.shape[1], height, width))
    for c in range(x.shape[1]):
        out[:, c] = int(op.fill[c % len(op.fill)]) if x.dtype == torch.uint8 else op.fill[c % len(op.fill)]
    for i, (top, left) in enumerate(zip(tops, lefts, strict=True)):
        y0, x0, y1, x1 = max(top, 0), max(left, 0), min(top + height, have[0]), min(left + width, have[1])
        if y1 > y0 and x1 > x0:
            out[i, :, y0 - top : y1 - top, x0 - left : x1 - left] = x[i, :, y0:y1, x0:x1]
    return out


def _surrounded(values: Array, around: Sequence[int], fill: tuple[float, ...]) -> Array:
    """Surround [n, C, H, W] by the given number of pixels of one color above, below, left and right. Keeps the
    memory layout."""
    above, below, left, right = around
    n, channels, height, width = values.shape
    height, width = above + height + below, left + width + right
    color = np.broadcast_to(np.array(fill).astype(values.dtype), channels)  # fractions are truncated, as in torchvision
    if values.strides[1] > values.strides[3]:  # planes
        out = np.empty((n, channels, height, width), values.dtype)
        out[:] = np.repeat(color, width).reshape(channels, 1, width)
    else:
        rows = np.empty((n, height, width * channels), values.dtype)
        rows[:] = np.tile(color, width)
        out = rows.reshape(n, height, width, channels).transpose(0, 3, 1, 2)
    out[:, :, above : height - below, left : width - right] = values
    return out


def _windows(values: Array, top: I64, left: I64, height: int, width: int) -> Array:
    """Copy windows [n, C, height, width] from [n, C, H, W]. Keeps the memory layout."""
    n, channels, have_height, have_width = values.shape
    places = n, have_height - height + 1, have_width - width + 1
    image, channel, row, pixel = values.strides
    if channel == values.itemsize and pixel == channels * channel:  # copy whole rows of a window at once
        each = as_strided(values, (*places, height, width * channels), (image, row, pixel, row, channel))
        return each[np.arange(n), top, left].reshape(n, height, width, channels).transpose(0, 3, 1, 2)
    each = as_strided(values, (*places, channels, height, width), (image, row, pixel, channel, row, pixel))
    return each[np.arange(n), top, left]


def _mirrored(values: Array, op: ops.Crop) -> Array:
    """Copy windows of [n, C, H, W] whose outside pixels are taken from the image, as the mode specifies."""
    rows, columns = (
        np.stack([reach(start, length, have, op.mode) for start in starts.tolist()])
        for starts, length, have in (
            (op.top, int(op.height[0]), values.shape[2]),
            (op.left, int(op.width[0]), values.shape[3]),
        )
    )
    n = np.arange(len(values))[:, None, None]
    return values.transpose(0, 2, 3, 1)[n, rows[:, :, None], columns[:, None, :]].transpose(0, 3, 1, 2)


def reach(start: int, length: int, have: int, mode: str) -> npt.NDArray[np.int64]:
    """Return i64[length]: which of ``have`` pixels is at each of ``length`` positions from ``start`` on."""
    at = np.arange(start, start + length)
    if mode == "edge" or have == 1:
        return np.clip(at, 0, have - 1)
    # Repeated reflection: the period is twice the length, minus the two ends if they are not repeated.
    if mode == "reflect":
        at = np.abs(at) % (2 * have - 2)
        return np.minimum(at, 2 * have - 2 - at)
    at %= 2 * have
    return np.minimum(at, 2 * have - 1 - at)


@form(ops.Resize)
def resize(image: Picture, op: ops.Resize, i: int) -> Picture:
    height, width = int(op.height[i]), int(op.width[i])
    if size_of(image) == (height, width):
        return image
    if op.kind == "pil":
        return RESIZE(pil(image), (width, height), PIL_FILTERS[op.interpolation])
    return _interpolate(image, height, width, op.interpolation, op.antialias)


@form(ops.Resize, exact=False)
def resize_by_torch(image: Picture, op: ops.Resize, i: int) -> Picture:
    """Resize with torch's vectorized bilinear and bicubic filters for bytes, in at most a quarter of Pillow's time.

    Pillow's weights have 22 bits, and torch's at most 16.
    """
    if op.kind != "pil" or not resizes_by_torch(op):
        return resize(image, op, i)
    height, width = int(op.height[i]), int(op.width[i])
    if size_of(image) == (height, width):
        return image
    x = nchw(image)
    for size in passes(size_of(image), (height, width)):
        x = for_one_pixel(x, size[0], size[1])
        x = torch.nn.functional.interpolate(x, size, mode=op.interpolation, align_corners=False, antialias=True)
    return hwc(x[0])


def for_one_pixel(x: Tensor, height: int, width: int) -> Tensor:
    """Return an image in the layout that torch needs to resize bytes to a single pixel: an assertion of its fails for
    planes."""
    if height == 1 and width == 1 and x.dtype == torch.uint8:
        return x.contiguous(memory_format=torch.channels_last)
    return x


_PILLOW = int(PIL.__version__.partition(".")[0])


def passes(size: tuple[int, int], to: tuple[int, int]) -> list[tuple[int, int]]:
    """Return the (height, width) to which torch must resize one after another to pass over the axes in Pillow's order.

    torch resizes rows first. So did Pillow before version 13, which begins with the columns if the height loses more
    than twice what the width loses. Between the passes both round and clip, so the order matters at hard edges.
    """
    lost = size[0] - to[0]
    columns_first = _PILLOW >= 13 and lost > max(0, 2 * (size[1] - to[1])) and size[1] != to[1]
    return [(to[0], size[1]), to] if columns_first else [to]


def resizes_by_torch(op: ops.Resize) -> bool:
    """Return whether :data:`FAST_FORMS` resize bytes with torch's antialiased function."""
    if op.interpolation not in _FILTERS_OF_TORCH:
        return False
    if op.kind == "pil":
        return op.interpolation != "bilinear" or torch.backends.cpu.get_cpu_capability() in _VECTORS or _is_arm()
    return op.kind == "tensor" and op.antialias and _resizes_bytes(op.interpolation)


_FILTERS_OF_TORCH = ("bilinear", "bicubic")
_VECTORS = ("AVX2", "AVX512")


def _interpolate(image: Picture, height: int, width: int, mode: str, antialias: bool) -> Array:
    """Resize [H, W, C] to [height, width, C]."""
    return hwc(interpolate(nchw(image), height, width, mode, antialias)[0])


def interpolate(x: Tensor, height: int, width: int, mode: str, antialias: bool) -> Tensor:
    """Resize [n, C, H, W] to [n, C, height, width] like torchvision's ``resize_image``."""
    nearest = mode in ("nearest", "nearest-exact")
    dtype = x.dtype
    on_cpu = x.device.type == "cpu"
    native = dtype == torch.float32 or (dtype == torch.uint8 and (nearest or (on_cpu and _resizes_bytes(mode))))
    if not native:
        x = x.to(torch.float32)
    x = for_one_pixel(x, height, width)
    x = torch.nn.functional.interpolate(
        x, (height, width), mode=mode, align_corners=None if nearest else False, antialias=antialias and not nearest
    )
    if not native:
        if dtype == torch.uint8:
            # Filters with negative weights can overshoot.
            x = (x.clamp_(0, 255) if mode in ("bicubic", "lanczos") else x).round_()
        x = x.to(dtype)
    return x


@lru_cache
def _resizes_bytes(mode: str) -> bool:
    """Tell whether torchvision resizes bytes with torch's filters for bytes, rather than as floats. Its releases, which
    belong to those of torch, differ in the processors on which they do."""
    if mode != "bilinear":
        return True
    capability, release = torch.backends.cpu.get_cpu_capability(), tuple(map(int, torch.__version__.split(".")[:2]))
    if _is_arm():
        return release >= (2, 12)
    return capability in _VECTORS and (capability == "AVX2" or release >= (2, 9))


def _is_arm() -> bool:
    return platform.machine() in ("aarch64", "arm64")


@form(ops.Flip)
def flip(image: Picture, op: ops.Flip, i: int) -> Picture:
    sideways = op.axis == "horizontal"
    if isinstance(image, np.ndarray):  # torch flips ten times as fast as numpy copies a reversed view
        return hwc(chw(image).flip(-1 if sideways else -2))
    return TRANSPOSE(image, Image.Transpose.FLIP_LEFT_RIGHT if sideways else Image.Transpose.FLIP_TOP_BOTTOM)


@form(ops.Flip, exact=False)
def flip_at_once(image: Picture, op: ops.Flip, i: int) -> Picture:
    """Flip into a copy rather than a view: copying a reversed row later is slow."""
    if not isinstance(image, np.ndarray) or not image.flags.writeable:
        return flip(image, op, i)
    return torch.from_numpy(image).flip(1 if op.axis == "horizontal" else 0).numpy()


@batch_form(ops.Flip, together="always")
def flip_batch(x: Tensor, op: ops.Flip) -> Tensor:
    return x.flip(-1 if op.axis == "horizontal" else -2)
