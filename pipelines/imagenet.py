"""The pipelines that ImageNet models are trained and evaluated with."""

from __future__ import annotations

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

MEAN = (0.485, 0.456, 0.406)
"""Mean of ImageNet's red, green and blue in 0..1, as every torchvision model uses it."""
STD = (0.229, 0.224, 0.225)
"""Standard deviation, likewise."""


def _finish(dtype: Any) -> list[Transform]:
    name = str(dtype).removeprefix("torch.")
    if name == "uint8":
        return [ToImage()]
    if name == "float32":
        return [ToTensor(), Normalize(MEAN, STD)]
    return [ToTensor(), Normalize(MEAN, STD), ToDtype(name)]


def train(
    size: int = 224,
    *,
    interpolation: str = "bilinear",
    dtype: Any = "float32",
    memory_format: Any = "contiguous_format",
) -> Compose:
    """Random resized crop, horizontal flip, normalise: the classic training pipeline.

    Args:
        size: edge of the square output in pixels.
        interpolation: of the resize.
        dtype: of the batch: ``float32``, ``float16``, ``bfloat16``, or ``uint8`` (then not normalised).
        memory_format: ``contiguous_format`` or ``channels_last``.

    Returns:
        a pipeline whose batches are ``dtype[B, 3, size, size]``.
    """
    return Compose(
        [RandomResizedCrop(size, interpolation=interpolation), RandomHorizontalFlip(), *_finish(dtype)],
        memory_format=memory_format,
    )


def val(
    size: int = 224,
    resize: int = 256,
    *,
    interpolation: str = "bilinear",
    dtype: Any = "float32",
    memory_format: Any = "contiguous_format",
) -> Compose:
    """Resize the shorter edge to ``resize``, take the middle ``size``, normalise: the classic evaluation pipeline.

    Arguments and result as in :func:`train`.
    """
    return Compose(
        [Resize(resize, interpolation=interpolation), CenterCrop(size), *_finish(dtype)],
        memory_format=memory_format,
    )
