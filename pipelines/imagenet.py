"""The pipelines that ImageNet models are trained and evaluated with."""

from __future__ import annotations

from typing import Any

from gpupipe.transforms import (
    CenterCrop,
    ColorJitter,
    Compose,
    RandomErasing,
    RandomHorizontalFlip,
    RandomResizedCrop,
    Resize,
)

from ._parts import finish, mixing, policy

__all__ = ["MEAN", "STD", "train", "train_light", "train_strong", "val"]

MEAN = (0.485, 0.456, 0.406)
"""Mean of ImageNet's red, green and blue in 0..1, as every torchvision model uses it."""
STD = (0.229, 0.224, 0.225)
"""Standard deviation, likewise."""


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
        [RandomResizedCrop(size, interpolation=interpolation), RandomHorizontalFlip(), *finish(dtype, MEAN, STD)],
        memory_format=memory_format,
    )


def train_light(
    size: int = 224,
    *,
    brightness: float = 0.4,
    contrast: float = 0.4,
    saturation: float = 0.4,
    interpolation: str = "bilinear",
    dtype: Any = "float32",
    memory_format: Any = "contiguous_format",
) -> Compose:
    """:func:`train` with some change of brightness, contrast and saturation, as in fb.resnet.torch (Gross and Wilber,
    *Training and investigating residual nets*, 2016) and timm's default ``color_jitter=0.4``.

    Arguments and result as in :func:`train`; of the jitter as in :class:`gpupipe.transforms.ColorJitter`.
    """
    return Compose(
        [
            RandomResizedCrop(size, interpolation=interpolation),
            RandomHorizontalFlip(),
            ColorJitter(brightness, contrast, saturation),
            *finish(dtype, MEAN, STD),
        ],
        memory_format=memory_format,
    )


def train_strong(
    size: int = 176,
    *,
    auto_augment: str | None = "ta_wide",
    erase: float = 0.1,
    mixup: float = 0.2,
    cutmix: float = 1.0,
    num_classes: int | None = 1000,
    interpolation: str = "bilinear",
    dtype: Any = "float32",
    memory_format: Any = "contiguous_format",
) -> Compose:
    """The pipeline of torchvision's newer weights, ``IMAGENET1K_V2`` (Vryniotis, *How to Train State-Of-The-Art Models
    Using TorchVision's Latest Primitives*, 2021, and ``references/classification`` of torchvision).

    Random resized crop of 176 pixels, flip, TrivialAugmentWide, random erasing with probability 0.1, and for each batch
    MixUp of alpha 0.2 or CutMix of alpha 1. Those weights are evaluated with ``val(224, 232)``.

    Args:
        size: edge of the square output in pixels.
        auto_augment: ``"ta_wide"``, ``"ra"``, ``"augmix"``, ``"imagenet"``, ``"cifar10"``, ``"svhn"`` as in
            torchvision's script, or ``None``.
        erase: probability of :class:`gpupipe.transforms.RandomErasing`.
        mixup, cutmix: alpha; 0 leaves that out. Both need a float ``dtype``.
        num_classes: of the targets, which become shares f32[B, num_classes].
        interpolation: of the resize and the warps.
        dtype, memory_format: as in :func:`train`.

    Returns:
        a pipeline whose batches are ``dtype[B, 3, size, size]`` and, if they are mixed, ``f32[B, num_classes]``.
    """
    return Compose(
        [
            RandomResizedCrop(size, interpolation=interpolation),
            RandomHorizontalFlip(),
            *policy(auto_augment, interpolation),
            *finish(dtype, MEAN, STD),
            *([RandomErasing(erase)] if erase else []),
            *mixing(mixup, cutmix, num_classes),
        ],
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
        [Resize(resize, interpolation=interpolation), CenterCrop(size), *finish(dtype, MEAN, STD)],
        memory_format=memory_format,
    )
