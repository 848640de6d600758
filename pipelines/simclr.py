"""Pipeline for contrastive learning, with several views of each image."""

from __future__ import annotations

from typing import Any

from gpupipe.transforms import (
    ColorJitter,
    Compose,
    GaussianBlur,
    MultiView,
    RandomApply,
    RandomGrayscale,
    RandomHorizontalFlip,
    RandomResizedCrop,
    Transform,
)
from gpupipe.transforms.fields import InterpolationName

from ._parts import finish
from .imagenet import MEAN, STD

__all__ = ["train"]


def train(
    size: int = 224,
    *,
    views: int = 2,
    strength: float = 1.0,
    blur: float = 0.5,
    interpolation: InterpolationName = "bilinear",
    dtype: Any = "float32",
    memory_format: Any = "contiguous_format",
) -> Compose:
    """Create the views of SimCLR (Chen et al., *A Simple Framework for Contrastive Learning*, 2020, appendix A).

    A view is a random resized crop with a flip, color jitter of 0.8, 0.8, 0.8 and 0.2 with probability 0.8, grayscale
    with probability 0.2, and a Gaussian blur of 0.1 to 2 pixels whose kernel is a tenth of the image, normalized as for
    ImageNet.

    Args:
        size: edge of the square views in pixels.
        views: number of views of each image.
        strength: factor on the jitter; 0.5 for CIFAR.
        blur: probability of the blur; 0 for CIFAR.
        interpolation: of the resize.
        dtype: of the batch: ``float32``, ``float16``, ``bfloat16``, or ``uint8``, which is not normalized.
        memory_format: ``contiguous_format`` or ``channels_last``.

    Returns:
        A pipeline whose images are ``views`` batches ``dtype[B, 3, size, size]``.
    """
    jitter = ColorJitter(0.8 * strength, 0.8 * strength, 0.8 * strength, 0.2 * strength)
    view: list[Transform] = [
        RandomResizedCrop(size, interpolation=interpolation),
        RandomHorizontalFlip(),
        RandomApply([jitter], p=0.8),
        RandomGrayscale(0.2),
    ]
    if blur:
        view.append(RandomApply([GaussianBlur(size // 10 | 1, (0.1, 2.0))], p=blur))
    return Compose([MultiView([*view, *finish(dtype, MEAN, STD)], views)], memory_format=memory_format)
