"""Changes of an image's values that happen or do not: inversion, fewer levels, sharpness, histograms, JPEG."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from ..errors import ConfigError
from . import fields, ops
from .base import Images, Ops, Transform
from .fields import Converted, Probability, frozen, items
from .numbers import by_chance, everywhere, i32
from .ops.base import F64

__all__ = [
    "JPEG",
    "RandomAdjustSharpness",
    "RandomAutocontrast",
    "RandomEqualize",
    "RandomInvert",
    "RandomPosterize",
    "RandomSolarize",
]


def _bits(value: int, what: str) -> int:
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or not 0 <= value <= 8:
        raise ConfigError(f"{what} must be an integer from 0 to 8, not {value!r}")
    return int(value)


def _quality(value: int | Sequence[int], what: str) -> tuple[int, int]:
    given: Any = items(value)
    given = given * 2 if len(given) == 1 and not isinstance(value, Sequence) else given
    whole = all(isinstance(q, (int, np.integer)) and not isinstance(q, bool) for q in given)
    if len(given) != 2 or not whole or not 1 <= given[0] <= given[1] <= 100:
        raise ConfigError(
            f"{what} must be an integer from 1 to 100, or a pair (lowest, highest) of them, not {value!r}"
        )
    return int(given[0]), int(given[1])


@frozen
class RandomInvert(Transform):
    """Replace every value by the largest one minus it, with probability ``p``.

    >>> RandomInvert()
    RandomInvert(p=0.5)
    """

    DRAWS: ClassVar[int] = 1

    p: Probability = Converted(fields.probability, default=0.5)

    def resolve(self, u: F64, images: Images) -> tuple[Ops, Images]:
        mask, always = by_chance(u[:, 0], self.p)
        return (ops.Invert(mask, always=always),), images


@frozen
class RandomPosterize(Transform):
    """Keep the upper ``bits`` (0 to 8) of every value, with probability ``p``.

    >>> RandomPosterize(4)
    RandomPosterize(bits=4, p=0.5)
    """

    DRAWS: ClassVar[int] = 1

    bits: Converted[int, int] = Converted(_bits)
    p: Probability = Converted(fields.probability, default=0.5)

    def resolve(self, u: F64, images: Images) -> tuple[Ops, Images]:
        mask, always = by_chance(u[:, 0], self.p)
        return (ops.Posterize(mask, np.full(len(u), self.bits, np.int32), always=always),), images


@frozen
class RandomSolarize(Transform):
    """Invert the values of ``threshold`` and above, with probability ``p``.

    ``threshold`` is in the image's own units: 0 to 255 of uint8, 0 to 1 of a float type.

    >>> RandomSolarize(128)
    RandomSolarize(threshold=128.0, p=0.5)
    """

    DRAWS: ClassVar[int] = 1

    threshold: Converted[float, float] = Converted(fields.number(least=-np.inf))
    p: Probability = Converted(fields.probability, default=0.5)

    def resolve(self, u: F64, images: Images) -> tuple[Ops, Images]:
        largest = 255.0 if images.dtype == "uint8" else 1.0
        if images.kind == "tensor" and self.threshold > largest:
            raise self.refuse(
                f"the image is {images.dtype} at this place, whose largest value is {largest:g}; give threshold in "
                "these units"
            )
        mask, always = by_chance(u[:, 0], self.p)
        # torch compares in float32
        threshold = self.threshold if images.kind == "pil" else float(np.float32(self.threshold))
        return (ops.Solarize(mask, np.full(len(u), threshold), always=always),), images


@frozen
class RandomAdjustSharpness(Transform):
    """Blend with a smoothed image, with probability ``p``: ``sharpness_factor`` 0 smoothes, 1 changes nothing, 2
    sharpens.

    >>> RandomAdjustSharpness(2)
    RandomAdjustSharpness(sharpness_factor=2.0, p=0.5)
    """

    DRAWS: ClassVar[int] = 1

    sharpness_factor: Converted[float, float] = Converted(fields.number(least=0.0))
    p: Probability = Converted(fields.probability, default=0.5)

    def resolve(self, u: F64, images: Images) -> tuple[Ops, Images]:
        mask, always = by_chance(u[:, 0], self.p)
        factor = np.full(len(u), self.sharpness_factor)
        return (ops.Sharpness(mask, factor, kind=images.kind, always=always),), images


@frozen
class RandomAutocontrast(Transform):
    """Stretch every channel over the whole range of values, with probability ``p``.

    >>> RandomAutocontrast(1)
    RandomAutocontrast(p=1.0)
    """

    DRAWS: ClassVar[int] = 1

    p: Probability = Converted(fields.probability, default=0.5)

    def resolve(self, u: F64, images: Images) -> tuple[Ops, Images]:
        mask, always = by_chance(u[:, 0], self.p)
        return (ops.AutoContrast(mask, kind=images.kind, always=always),), images


@frozen
class RandomEqualize(Transform):
    """Make the histogram of every channel as even as it can be, with probability ``p``.

    >>> RandomEqualize()
    RandomEqualize(p=0.5)
    """

    DRAWS: ClassVar[int] = 1

    p: Probability = Converted(fields.probability, default=0.5)

    def resolve(self, u: F64, images: Images) -> tuple[Ops, Images]:
        mask, always = by_chance(u[:, 0], self.p)
        return (ops.Equalize(mask, kind=images.kind, always=always),), images


@frozen
class JPEG(Transform):
    """Encode as JPEG (4:2:0) and decode again.

    Args:
        quality: 1 to 100, or (lowest, highest), both included. Lower means more compression.

    >>> JPEG(75)
    JPEG(quality=(75, 75))
    """

    DRAWS: ClassVar[int] = 1

    quality: Converted[int | Sequence[int], tuple[int, int]] = Converted(_quality)

    def resolve(self, u: F64, images: Images) -> tuple[Ops, Images]:
        if images.dtype != "uint8":
            raise self.refuse(f"the image is {images.dtype} at this place and must be uint8; put it before ToTensor()")
        low, high = self.quality
        quality = i32(np.minimum(low + (u[:, 0] * (high - low + 1)).astype(np.int32), high))
        return (ops.JPEG(everywhere(len(u)), quality, kind=images.kind, always=True),), images
