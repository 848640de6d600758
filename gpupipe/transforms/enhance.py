"""Random changes of pixel values: inversion, posterization, solarization, sharpness, histograms."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from . import fields, ops
from .fields import Converted, Probability, frozen
from .numbers import by_chance
from .ops import Op
from .ops.op import F64, Mask
from .transform import Images, Ops, Transform

__all__ = [
    "RandomAdjustSharpness",
    "RandomAutocontrast",
    "RandomEqualize",
    "RandomInvert",
    "RandomPosterize",
    "RandomSolarize",
]


@frozen
class _ByChance(Transform):
    DRAWS: ClassVar[int] = 1

    p: Probability = Converted(fields.probability, default=0.5)

    def resolve(self, u: F64, images: Images) -> tuple[Ops, Images]:
        return (self._op(*by_chance(u[:, 0], self.p), images),), images

    def _op(self, mask: Mask, always: bool, images: Images) -> Op:
        raise NotImplementedError


class RandomInvert(_ByChance):
    """Subtract every value from the largest possible value, with probability ``p``.

    Args:
        p: probability of the change, 0 to 1.

    >>> RandomInvert()
    RandomInvert(p=0.5)
    """

    def _op(self, mask: Mask, always: bool, images: Images) -> Op:
        return ops.Invert(mask, always=always)


@frozen
class RandomPosterize(Transform):
    """Keep the upper ``bits`` (0 to 8) bits of every value, with probability ``p``.

    Args:
        bits: bits to keep, 0 to 8.
        p: probability of the change, 0 to 1.

    >>> RandomPosterize(4)
    RandomPosterize(bits=4, p=0.5)
    """

    DRAWS: ClassVar[int] = 1

    bits: Converted[int, int] = Converted(fields.whole(0, 8))
    p: Probability = Converted(fields.probability, default=0.5)

    def resolve(self, u: F64, images: Images) -> tuple[Ops, Images]:
        mask, always = by_chance(u[:, 0], self.p)
        return (ops.Posterize(mask, np.full(len(u), self.bits, np.int32), always=always),), images


@frozen
class RandomSolarize(Transform):
    """Invert values of at least ``threshold``, with probability ``p``.

    ``threshold`` is in units of the image: 0 to 255 for uint8, 0 to 1 for floats.

    Args:
        threshold: smallest value that is inverted, 0 to 255 for u8, 0 to 1 for floats.
        p: probability of the change, 0 to 1.

    >>> RandomSolarize(128)
    RandomSolarize(threshold=128.0, p=0.5)
    """

    DRAWS: ClassVar[int] = 1

    threshold: Converted[float, float] = Converted(fields.number(least=-np.inf))
    p: Probability = Converted(fields.probability, default=0.5)

    def resolve(self, u: F64, images: Images) -> tuple[Ops, Images]:
        largest = 255.0 if images.dtype == "uint8" else 1.0
        # torchvision checks tensors only.
        if images.kind == "tensor" and self.threshold > largest:
            raise self.refuse(
                f"the image is {images.dtype} at this point, whose largest value is {largest:g}; give threshold in "
                "these units"
            )
        mask, always = by_chance(u[:, 0], self.p)
        # torch compares in float32
        threshold = self.threshold if images.kind == "pil" else float(np.float32(self.threshold))
        return (ops.Solarize(mask, np.full(len(u), threshold), always=always),), images


@frozen
class RandomAdjustSharpness(Transform):
    """Adjust the sharpness with probability ``p``, by blending with a smoothed image.

    A ``sharpness_factor`` of 0 smooths, 1 changes nothing, and 2 sharpens.

    Args:
        sharpness_factor: 0 blurs, 1 changes nothing, 2 doubles the sharpness.
        p: probability of the change, 0 to 1.

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


class RandomAutocontrast(_ByChance):
    """Stretch every channel to the whole range of values, with probability ``p``.

    Args:
        p: probability of the change, 0 to 1.

    >>> RandomAutocontrast(1)
    RandomAutocontrast(p=1.0)
    """

    def _op(self, mask: Mask, always: bool, images: Images) -> Op:
        return ops.AutoContrast(mask, kind=images.kind, always=always)


class RandomEqualize(_ByChance):
    """Equalize the histogram of every channel, with probability ``p``.

    Args:
        p: probability of the change, 0 to 1.

    >>> RandomEqualize()
    RandomEqualize(p=0.5)
    """

    def _op(self, mask: Mask, always: bool, images: Images) -> Op:
        return ops.Equalize(mask, kind=images.kind, always=always)
