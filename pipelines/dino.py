"""Pipeline for self-distillation, with large and small views of each image."""

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
    RandomSolarize,
    Transform,
)
from gpupipe.transforms.fields import InterpolationName

from ._parts import finish
from .imagenet import MEAN, STD

__all__ = ["train"]

_KERNEL = 23


def train(
    size: int = 224,
    *,
    small_size: int = 96,
    small: int = 8,
    large_scale: tuple[float, float] = (0.4, 1.0),
    small_scale: tuple[float, float] = (0.05, 0.4),
    interpolation: InterpolationName = "bicubic",
    dtype: Any = "float32",
    memory_format: Any = "contiguous_format",
) -> Compose:
    """Create two large and ``small`` small views (Caron et al., *Emerging Properties in Self-Supervised Vision
    Transformers*, 2021, and its code).

    All views get flip, color jitter and grayscale. The first large view is always blurred. The second is blurred with
    probability 0.1 and solarized with probability 0.2. Small views are blurred with probability 0.5. DINO's code uses
    Pillow's approximation of a Gaussian blur; this pipeline uses the Gaussian itself, of 0.1 to 2 pixels.

    Args:
        size, small_size: edges of the square views in pixels.
        small: number of small views.
        large_scale, small_scale: share of the image's area that a crop covers.
        interpolation: of the resize.
        dtype: of the batch: ``float32``, ``float16``, ``bfloat16``, or ``uint8``, which is not normalized.
        memory_format: ``contiguous_format`` or ``channels_last``.

    Returns:
        A pipeline whose images are two batches ``dtype[B, 3, size, size]``, then ``small`` batches ``dtype[B, 3,
        small_size, small_size]``.
    """

    def view(edge: int, scale: tuple[float, float], blur: float, solarize: float = 0.0) -> list[Transform]:
        return [
            RandomResizedCrop(edge, scale=scale, interpolation=interpolation),
            RandomHorizontalFlip(),
            RandomApply([ColorJitter(0.4, 0.4, 0.2, 0.1)], p=0.8),
            RandomGrayscale(0.2),
            RandomApply([GaussianBlur(_KERNEL, (0.1, 2.0))], p=blur),
            *([RandomSolarize(128, solarize)] if solarize else []),
            *finish(dtype, MEAN, STD),
        ]

    large = [view(size, large_scale, 1.0), view(size, large_scale, 0.1, 0.2)]
    return Compose(
        [MultiView([*large, *(view(small_size, small_scale, 0.5) for _ in range(small))])],
        memory_format=memory_format,
    )
