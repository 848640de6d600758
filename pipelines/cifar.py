"""Pipelines for training and evaluation on CIFAR-10 and CIFAR-100."""

from __future__ import annotations

from typing import Any

from gpupipe.transforms import Compose, RandomCrop, RandomErasing, RandomHorizontalFlip, Resize

from ._parts import finish, mixing, policy

__all__ = ["MEAN", "STD", "train", "val"]

MEAN = (0.4914, 0.4822, 0.4465)
"""Mean of CIFAR-10's red, green and blue in [0, 1]."""
STD = (0.2470, 0.2435, 0.2616)
"""Standard deviation of CIFAR-10's red, green and blue in [0, 1]."""


def train(
    size: int = 32,
    *,
    padding: int = 4,
    auto_augment: str | None = None,
    erase: float = 0.0,
    mixup: float = 0.0,
    cutmix: float = 0.0,
    num_classes: int | None = 10,
    dtype: Any = "float32",
    memory_format: Any = "contiguous_format",
) -> Compose:
    """Pad, crop randomly, flip and normalize (He et al., *Deep Residual Learning*, 2016, 4.2).

    Args:
        size: edge of the images and of the square output, in pixels.
        padding: zeros on every side, in pixels.
        auto_augment: ``"cifar10"``, ``"ta_wide"``, ``"ra"``, ``"augmix"`` and others, as in
            :func:`gpupipe.pipelines.imagenet.train_strong`.
        erase: probability of random erasing.
        mixup, cutmix: alpha; 0 disables it.
        num_classes: number of classes; needed by mixup and cutmix.
        dtype: of the batch: ``float32``, ``float16``, ``bfloat16``, or ``uint8``, which is not normalized.
        memory_format: ``contiguous_format`` or ``channels_last``.

    Returns:
        A pipeline whose batches are ``dtype[B, 3, size, size]``.
    """
    return Compose(
        [
            RandomCrop(size, padding=padding),
            RandomHorizontalFlip(),
            *policy(auto_augment, "nearest"),
            *finish(dtype, MEAN, STD),
            *([RandomErasing(erase)] if erase else []),
            *mixing(mixup, cutmix, num_classes),
        ],
        memory_format=memory_format,
    )


def val(size: int = 32, *, dtype: Any = "float32", memory_format: Any = "contiguous_format") -> Compose:
    """Resize to ``size`` if necessary, and normalize. Arguments and result are those of :func:`train`."""
    return Compose([Resize((size, size)), *finish(dtype, MEAN, STD)], memory_format=memory_format)
