"""Pipelines for semantic segmentation, with the settings of torchvision's reference."""

from __future__ import annotations

from typing import Any

from gpupipe.transforms import Compose, RandomCrop, RandomHorizontalFlip, RandomResize, Resize

from ._parts import finish
from .imagenet import MEAN, STD

__all__ = ["train", "val"]


def train(
    size: int = 480,
    *,
    base_size: int = 520,
    hflip_prob: float = 0.5,
    dtype: Any = "float32",
    memory_format: Any = "contiguous_format",
) -> Compose:
    """Resize at random, flip, crop and normalize.

    The shorter edge gets a size from half to twice ``base_size``. An image that is smaller than the crop is padded with
    black on all sides; torchvision's reference pads on the right and at the bottom. Masks are padded with the ``fill``
    of their dataset, such as ``datasets.SegmentationFolder(..., fill=255)``.

    Args:
        size: edge of the square output in pixels.
        base_size: size around which images are resized.
        hflip_prob: probability of a horizontal flip.
        dtype: of the batch: ``float32``, ``float16``, ``bfloat16``, or ``uint8``, which is not normalized.
        memory_format: ``contiguous_format`` or ``channels_last``.

    Returns:
        A pipeline whose batches are ``dtype[B, 3, size, size]``.
    """
    steps = [RandomResize(base_size // 2, base_size * 2), RandomHorizontalFlip(hflip_prob)]
    return Compose(
        [*steps, RandomCrop(size, pad_if_needed=True), *finish(dtype, MEAN, STD)], memory_format=memory_format
    )


def val(base_size: int = 520, *, dtype: Any = "float32", memory_format: Any = "contiguous_format") -> Compose:
    """Resize the shorter edge to ``base_size``, and normalize.

    Returns:
        A pipeline whose images ``dtype[3, H, W]`` differ in size. Use ``batch_size=1``, as torchvision's reference
        does.
    """
    return Compose([Resize(base_size), *finish(dtype, MEAN, STD)], memory_format=memory_format)
