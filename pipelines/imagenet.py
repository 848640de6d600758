"""Pipelines for training and evaluation on ImageNet."""

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
from gpupipe.transforms.fields import InterpolationName

from ._parts import finish, mixing, policy

__all__ = ["MEAN", "STD", "train", "train_light", "train_strong", "val"]

MEAN = (0.485, 0.456, 0.406)
"""Mean of ImageNet's red, green and blue in [0, 1], as used by torchvision's models."""
STD = (0.229, 0.224, 0.225)
"""Standard deviation of ImageNet's red, green and blue in [0, 1]."""


def train(
    size: int = 224,
    *,
    interpolation: InterpolationName = "bilinear",
    dtype: Any = "float32",
    memory_format: Any = "contiguous_format",
) -> Compose:
    """Apply a random resized crop and a horizontal flip, and normalize: the classic training pipeline.

    Args:
        size: edge of the square output in pixels.
        interpolation: of the resize.
        dtype: of the batch: ``float32``, ``float16``, ``bfloat16``, or ``uint8``, which is not normalized.
        memory_format: ``contiguous_format`` or ``channels_last``.

    Returns:
        A pipeline whose batches are ``dtype[B, 3, size, size]``.
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
    interpolation: InterpolationName = "bilinear",
    dtype: Any = "float32",
    memory_format: Any = "contiguous_format",
) -> Compose:
    """Extend :func:`train` by changes of brightness, contrast and saturation.

    The strengths are those of fb.resnet.torch (Gross and Wilber, *Training and investigating residual nets*, 2016) and
    of timm's default ``color_jitter=0.4``. For them see :class:`gpupipe.transforms.ColorJitter`; other arguments and
    the result are those of :func:`train`.
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
    interpolation: InterpolationName = "bilinear",
    dtype: Any = "float32",
    memory_format: Any = "contiguous_format",
) -> Compose:
    """Build the training pipeline of torchvision's newer weights, ``IMAGENET1K_V2``.

    A random resized crop of 176 pixels, flip, TrivialAugmentWide, random erasing with probability 0.1, and for each
    batch MixUp with alpha 0.2 or CutMix with alpha 1 (Vryniotis, *How to Train State-Of-The-Art Models Using
    TorchVision's Latest Primitives*, 2021, and torchvision's ``references/classification``). Evaluate those weights
    with ``val(224, 232)``.

    Args:
        size: edge of the square output in pixels.
        auto_augment: ``"ta_wide"``, ``"ra"``, ``"augmix"``, ``"imagenet"``, ``"cifar10"``, ``"svhn"`` as in
            torchvision's script, or ``None``.
        erase: probability of :class:`gpupipe.transforms.RandomErasing`.
        mixup, cutmix: alpha; 0 disables it. Both need a float ``dtype``.
        num_classes: number of classes; targets become class shares f32[B, num_classes].
        interpolation: of the resize and the warps.
        dtype, memory_format: as in :func:`train`.

    Returns:
        A pipeline whose batches are ``dtype[B, 3, size, size]`` and, with mixing, targets ``f32[B, num_classes]``.
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
    interpolation: InterpolationName = "bilinear",
    dtype: Any = "float32",
    memory_format: Any = "contiguous_format",
) -> Compose:
    """Resize the shorter edge to ``resize``, crop the center ``size`` and normalize: the classic evaluation pipeline.

    Arguments and result are those of :func:`train`.
    """
    return Compose(
        [Resize(resize, interpolation=interpolation), CenterCrop(size), *finish(dtype, MEAN, STD)],
        memory_format=memory_format,
    )
