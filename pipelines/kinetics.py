"""The pipelines that video models are trained and evaluated with on Kinetics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gpupipe.transforms import (
    CenterCrop,
    Compose,
    Normalize,
    RandomHorizontalFlip,
    RandomResizedCrop,
    Resize,
    ToDtype,
    ToImage,
    ToTensor,
    Transform,
)

__all__ = ["MEAN", "STD", "train", "val"]

MEAN = (0.43216, 0.394666, 0.37645)
"""Mean of Kinetics-400's red, green and blue in 0..1, as torchvision's R3D, MC3 and R(2+1)D models use it."""
STD = (0.22803, 0.22145, 0.216989)
"""Standard deviation, likewise. PySlowFast's models, MViT and Swin3D have 0.45 and 0.225 for all channels, or those of
ImageNet: what a model's weights were made with is the one to take."""


def _finish(dtype: Any, mean: Sequence[float], std: Sequence[float]) -> list[Transform]:
    name = str(dtype).removeprefix("torch.")
    if name == "uint8":
        return [ToImage()]
    normalized: list[Transform] = [ToTensor(), Normalize(mean, std)]
    return normalized if name == "float32" else [*normalized, ToDtype(name)]


def train(
    size: int = 224,
    *,
    scale: tuple[float, float] = (0.08, 1.0),
    interpolation: str = "bilinear",
    mean: Sequence[float] = MEAN,
    std: Sequence[float] = STD,
    dtype: Any = "float32",
    memory_format: Any = "contiguous_format",
) -> Compose:
    """Random resized crop and horizontal flip, the same for all frames of a clip, then normalise.

    That is the space of the recipe of Fan et al., *Multiscale Vision Transformers* (ICCV 2021), appendix: a window of
    0.08 to 1 of the area and an aspect ratio of 3/4 to 4/3. Which frames a clip has, the dataset says.

    Args:
        size: edge of the square output in pixels.
        scale: share of the area that a window has.
        interpolation: of the resize.
        mean, std: of red, green and blue in 0..1.
        dtype: of the batch: ``float32``, ``float16``, ``bfloat16``, or ``uint8`` (then not normalised).
        memory_format: ``contiguous_format``; or ``channels_last``, which for clips is torch's ``channels_last_3d``.

    Returns:
        a pipeline whose batches are ``dtype[B, 3, T, size, size]``, or ``[B, T, 3, size, size]`` if the dataset has
        ``layout="TCHW"``.
    """
    crop = RandomResizedCrop(size, scale=scale, interpolation=interpolation)
    return Compose([crop, RandomHorizontalFlip(), *_finish(dtype, mean, std)], memory_format=memory_format)


def val(
    size: int = 224,
    resize: int = 256,
    *,
    interpolation: str = "bilinear",
    mean: Sequence[float] = MEAN,
    std: Sequence[float] = STD,
    dtype: Any = "float32",
    memory_format: Any = "contiguous_format",
) -> Compose:
    """Resize the shorter edge to ``resize``, take the middle ``size``, normalise: one view in space of each clip.

    Several clips of a video (``VideoFolder(clips=5, sampling="uniform")``), whose scores are averaged, are the rest of
    the protocol. Arguments and result as in :func:`train`.
    """
    return Compose(
        [Resize(resize, interpolation=interpolation), CenterCrop(size), *_finish(dtype, mean, std)],
        memory_format=memory_format,
    )
