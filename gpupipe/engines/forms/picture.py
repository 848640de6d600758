"""One image as PIL image, numpy array or tensor, turned into each other without a copy where that is possible."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor

__all__ = ["Array", "Picture", "array", "chw", "hwc", "pil", "size_of"]

Array: TypeAlias = npt.NDArray[Any]
Picture: TypeAlias = Array | Image.Image
"""[H, W, C], or PIL: what was encoded stays a PIL image while it can, because conversions cost a copy each."""


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
    """[C, H, W] on the same memory, or on a copy where torch cannot take it as it is."""
    values = array(image)
    if not values.flags.writeable or any(stride < 0 for stride in values.strides):
        values = values.copy()
    return torch.from_numpy(values).permute(2, 0, 1)


def hwc(image: Tensor) -> Array:
    """[H, W, C] of [C, H, W], on the same memory."""
    return image.permute(1, 2, 0).numpy()
