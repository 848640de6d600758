"""Pipelines for training and evaluation of video models on Kinetics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gpupipe.transforms import CenterCrop, Compose, RandomHorizontalFlip, RandomResizedCrop, Resize
from gpupipe.transforms.fields import InterpolationName

from ._parts import finish

__all__ = ["MEAN", "STD", "train", "val"]

MEAN = (0.43216, 0.394666, 0.37645)
"""Mean of Kinetics-400's red, green and blue in [0, 1], as used by torchvision's R3D, MC3 and R(2+1)D models."""
STD = (0.22803, 0.22145, 0.216989)
"""Standard deviation of Kinetics-400's red, green and blue in [0, 1].

PySlowFast's models, MViT and Swin3D use 0.45 and 0.225 for all channels, or ImageNet's numbers. Use the numbers that a
model's weights were trained with.
"""


def train(
    size: int = 224,
    *,
    scale: tuple[float, float] = (0.08, 1.0),
    interpolation: InterpolationName = "bilinear",
    mean: Sequence[float] = MEAN,
    std: Sequence[float] = STD,
    dtype: Any = "float32",
    memory_format: Any = "contiguous_format",
) -> Compose:
    """Apply one random resized crop and horizontal flip to all frames of a clip, and normalize.

    These are the spatial augmentations of Fan et al., *Multiscale Vision Transformers* (ICCV 2021), appendix: a crop of
    0.08 to 1 of the area with an aspect ratio of 3/4 to 4/3. The dataset selects the frames.

    Args:
        size: edge of the square output in pixels.
        scale: share of the area that a crop covers.
        interpolation: of the resize.
        mean, std: of red, green and blue in [0, 1].
        dtype: of the batch: ``float32``, ``float16``, ``bfloat16``, or ``uint8``, which is not normalized.
        memory_format: ``contiguous_format`` or ``channels_last``, which means torch's ``channels_last_3d``.

    Returns:
        A pipeline whose batches are ``dtype[B, 3, T, size, size]``, or ``[B, T, 3, size, size]`` if the dataset has
        ``layout="TCHW"``.
    """
    crop = RandomResizedCrop(size, scale=scale, interpolation=interpolation)
    return Compose([crop, RandomHorizontalFlip(), *finish(dtype, mean, std)], memory_format=memory_format)


def val(
    size: int = 224,
    resize: int = 256,
    *,
    interpolation: InterpolationName = "bilinear",
    mean: Sequence[float] = MEAN,
    std: Sequence[float] = STD,
    dtype: Any = "float32",
    memory_format: Any = "contiguous_format",
) -> Compose:
    """Resize the shorter edge to ``resize``, crop the center ``size`` and normalize: one spatial view of each clip.

    For the full protocol, average the scores of several clips per video (``VideoFolder(clips=5, sampling="uniform")``).
    Arguments and result are those of :func:`train`.
    """
    return Compose(
        [Resize(resize, interpolation=interpolation), CenterCrop(size), *finish(dtype, mean, std)],
        memory_format=memory_format,
    )
