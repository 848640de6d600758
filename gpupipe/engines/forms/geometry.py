"""Ops that move pixels."""

from __future__ import annotations

import platform

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor

from ...transforms.ops import Crop, Flip, Resize
from .picture import Picture, array, chw, hwc, pil, size_of

__all__ = ["crop", "flip", "resize"]

_FILTERS = {
    "nearest": Image.Resampling.NEAREST,
    "nearest-exact": Image.Resampling.NEAREST,  # the name of another rule for tensors; Pillow has this one
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "box": Image.Resampling.BOX,
    "hamming": Image.Resampling.HAMMING,
    "lanczos": Image.Resampling.LANCZOS,
}


def crop(image: Picture, op: Crop, i: int) -> Picture:
    top, left, height, width = (int(a[i]) for a in (op.top, op.left, op.height, op.width))
    have_height, have_width = size_of(image)
    if (top, left, height, width) == (0, 0, have_height, have_width):
        return image
    if min(top, left) >= 0 and top + height <= have_height and left + width <= have_width:
        if isinstance(image, np.ndarray):
            return image[top : top + height, left : left + width]
        return image.crop((left, top, left + width, top + height))
    values = array(image)
    if op.mode != "constant":
        rows = _reach(top, height, have_height, op.mode)
        columns = _reach(left, width, have_width, op.mode)
        return values[rows][:, columns]
    out = np.empty((height, width, values.shape[2]), values.dtype)
    out[:] = np.array(op.fill).astype(values.dtype)  # a fraction of a grey level is cut off, as by torchvision
    y0, x0 = max(top, 0), max(left, 0)
    inside = values[y0 : max(top + height, 0), x0 : max(left + width, 0)]
    out[y0 - top : y0 - top + inside.shape[0], x0 - left : x0 - left + inside.shape[1]] = inside
    return out


def _reach(start: int, length: int, have: int, mode: str) -> npt.NDArray[np.int64]:
    """Which of ``have`` pixels lies at each of ``length`` places from ``start`` on: i64[length]."""
    at = np.arange(start, start + length)
    if mode == "edge" or have == 1:
        return np.clip(at, 0, have - 1)
    if mode == "reflect":
        at = np.abs(at) % (2 * have - 2)
        return np.minimum(at, 2 * have - 2 - at)
    at %= 2 * have
    return np.minimum(at, 2 * have - 1 - at)


def resize(image: Picture, op: Resize, i: int) -> Picture:
    height, width = int(op.height[i]), int(op.width[i])
    if size_of(image) == (height, width):
        return image
    if op.kind == "pil":
        return pil(image).resize((width, height), _FILTERS[op.interpolation])
    return hwc(_interpolate(chw(image), height, width, op.interpolation, op.antialias))


def _interpolate(image: Tensor, height: int, width: int, mode: str, antialias: bool) -> Tensor:
    """torchvision's ``resize_image``: [C, H, W] to [C, height, width]."""
    nearest = mode in ("nearest", "nearest-exact")
    channels, dtype = image.shape[0], image.dtype
    native = dtype == torch.float32 or (dtype == torch.uint8 and (nearest or _has_uint8_kernel(mode)))
    x = image[None]
    if x.is_contiguous(memory_format=torch.channels_last) and x.numel() != x.stride(0):
        # torch takes [1, C, H, W] with this stride for contiguous, and packs the result anew
        x = x.as_strided(x.shape, (x.numel(), *x.stride()[1:]))
    if not native:
        x = x.to(torch.float32)
    x = torch.nn.functional.interpolate(
        x, (height, width), mode=mode, align_corners=None if nearest else False, antialias=antialias and not nearest
    )
    if not native:
        if dtype == torch.uint8:
            x = (x.clamp_(0, 255) if mode in ("bicubic", "lanczos") else x).round_()
        x = x.to(dtype)
    return x.reshape(channels, height, width)


def _has_uint8_kernel(mode: str) -> bool:
    if mode == "bilinear":
        capability = torch.backends.cpu.get_cpu_capability()
        return capability in ("AVX2", "AVX512") or platform.machine() in ("aarch64", "arm64")
    return True


def flip(image: Picture, op: Flip, i: int) -> Picture:
    if not op.mask[i]:
        return image
    sideways = op.axis == "horizontal"
    if isinstance(image, np.ndarray):
        return image[:, ::-1] if sideways else image[::-1]
    return image.transpose(Image.Transpose.FLIP_LEFT_RIGHT if sideways else Image.Transpose.FLIP_TOP_BOTTOM)
