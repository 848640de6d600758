"""Images as PIL image, numpy array or tensor, converted without a copy if possible."""

from __future__ import annotations

from contextlib import suppress
from typing import TypeAlias

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from ..transforms.ops.op import Array

Picture: TypeAlias = Array | Image.Image
"""An array [H, W, C], or a PIL image. A decoded image stays a PIL image as long as possible, because each conversion is
a copy."""

PIL_FILTERS = {
    "nearest": Image.Resampling.NEAREST,
    "nearest-exact": Image.Resampling.NEAREST,  # the name of another rule for tensors; Pillow has this one
    "bilinear": Image.Resampling.BILINEAR,
    "bicubic": Image.Resampling.BICUBIC,
    "box": Image.Resampling.BOX,
    "hamming": Image.Resampling.HAMMING,
    "lanczos": Image.Resampling.LANCZOS,
}
"""torchvision's names of interpolations as Pillow has them."""


CONVERT, CROP, RESIZE = Image.Image.convert, Image.Image.crop, Image.Image.resize
TRANSFORM, TRANSPOSE = Image.Image.transform, Image.Image.transpose
"""Methods of Pillow, which a script may replace by functions of its own."""


def size_of(image: Picture) -> tuple[int, int]:
    """(height, width) in pixels."""
    if isinstance(image, np.ndarray):
        return image.shape[0], image.shape[1]
    return image.height, image.width


def array(image: Picture) -> Array:
    """[H, W, C]"""
    if isinstance(image, np.ndarray):
        return image
    pixels = np.asarray(image)
    return pixels if pixels.ndim == 3 else pixels[:, :, None]


def pil(image: Picture) -> Image.Image:
    """In mode RGB or L; the image must be uint8."""
    if isinstance(image, np.ndarray):
        return Image.fromarray(image[:, :, 0] if image.shape[2] == 1 else image)
    return image


def chw(image: Picture) -> Tensor:
    """Return an array [H, W, C] as a tensor [C, H, W], on the same memory or, if torch cannot use that, on a copy."""
    return torch.from_numpy(for_torch(image)).permute(2, 0, 1)


def nchw(image: Picture) -> Tensor:
    """Return a tensor [1, C, H, W] like ``chw(image)[None]``. The strides of an image or window of bytes show torch
    that it is channels-last. torch would take it for contiguous otherwise and repack it, which doubles the time of a
    resize."""
    values = for_torch(image)
    if values.flags.c_contiguous:
        return torch.from_numpy(values.reshape(1, *values.shape)).permute(0, 3, 1, 2)
    height, width, channels = values.shape
    if values.dtype == np.uint8 and values.strides[1:] == (channels, 1):  # floats: in the last bit it matters
        row = values.strides[0]
        return torch.from_numpy(values).as_strided((1, channels, height, width), (height * row, 1, row, channels))
    return torch.from_numpy(values).permute(2, 0, 1)[None]


def for_torch(image: Picture) -> Array:
    """Return an array that torch can use; a copy if it is read-only or has negative strides."""
    values = array(image)
    return values if values.flags.writeable and min(values.strides, default=0) >= 0 else values.copy()


def unwritten(image: Array) -> Tensor:
    """Return a tensor that must not be written to. It shares the array's memory if torch can use that."""
    if not image.flags.writeable:
        image = image.view()
        with suppress(ValueError):  # the memory itself is read-only
            image.flags.writeable = True
    return torch.from_numpy(for_torch(image))


def planes(image: Picture) -> Tensor:
    """Return [C, H, W] with contiguous channels, without a copy if possible.

    Arithmetic on whole planes is several times as fast as on interleaved channels, and the batch has planes too.
    """
    values = np.ascontiguousarray(array(image).transpose(2, 0, 1))
    return torch.from_numpy(values if values.flags.writeable else values.copy())


def to_bytes(x: Tensor) -> Tensor:
    """Truncate floats in 0..255 to uint8. On a CPU numpy takes a quarter of torch's time."""
    return torch.from_numpy(x.numpy().astype(np.uint8)) if x.device.type == "cpu" else x.to(torch.uint8)


def hwc(image: Tensor) -> Array:
    """Return a view [H, W, C] of [C, H, W]."""
    return image.permute(1, 2, 0).numpy()
