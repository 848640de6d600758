"""The pipelines that CIFAR-10 and CIFAR-100 models are trained and evaluated with."""

from __future__ import annotations

from typing import Any

from gpupipe.transforms import Compose, RandomCrop, RandomErasing, RandomHorizontalFlip, Resize

from ._parts import finish, mixing, policy

__all__ = ["MEAN", "STD", "train", "val"]

MEAN = (0.4914, 0.4822, 0.4465)
"""Mean of CIFAR-10's red, green and blue in 0..1."""
STD = (0.2470, 0.2435, 0.2616)
"""Standard deviation, likewise."""


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
    """Pad by ``padding``, take a random window of ``size``, flip, normalise (He et al., *Deep Residual Learning*, 2016,
    4.2).

    Args:
        size: edge of the square output, and of the images, in pixels.
        padding: zeros on every side, in pixels.
        auto_augment: ``"cifar10"``, ``"ta_wide"``, ``"ra"``, ``"augmix"`` and so on, as in
            :func:`gpupipe.pipelines.imagenet.train_strong`.
        erase: probability of random erasing.
        mixup, cutmix: alpha; 0 leaves that out.
        num_classes: of the targets, if they are mixed.
        dtype: of the batch: ``float32``, ``float16``, ``bfloat16``, or ``uint8`` (then not normalised).
        memory_format: ``contiguous_format`` or ``channels_last``.

    Returns:
        a pipeline whose batches are ``dtype[B, 3, size, size]``.
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
    """Normalise. Images of another size than ``size`` are resized to it. Arguments and result as in :func:`train`."""
    return Compose([Resize((size, size)), *finish(dtype, MEAN, STD)], memory_format=memory_format)
