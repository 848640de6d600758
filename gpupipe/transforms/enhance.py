"""Changes of an image's values that happen or do not: inversion, fewer levels, sharpness, histograms, JPEG."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from ..errors import ConfigError
from .base import F64, Images, Transform, check_probability, items, resolves
from .ops import JPEG as JPEGOp, AutoContrast, Equalize, Invert, Op, Posterize, Sharpness, Solarize
from .ops.base import Mask

__all__ = [
    "JPEG",
    "RandomAdjustSharpness",
    "RandomAutocontrast",
    "RandomEqualize",
    "RandomInvert",
    "RandomPosterize",
    "RandomSolarize",
]


@dataclass(frozen=True, repr=False)
class _ByChance(Transform):
    DRAWS: ClassVar[int] = 1

    def __post_init__(self) -> None:
        self.set(p=check_probability(getattr(self, "p"), f"{type(self).__name__}: p"))  # noqa: B009

    def resolve(self, u: F64, images: Images) -> tuple[tuple[Op, ...], Images]:
        p = getattr(self, "p")  # noqa: B009
        return resolves((self._op(u[:, 0] < p, p == 1.0, images),), images)

    def _op(self, mask: Mask, always: bool, images: Images) -> Op:
        raise NotImplementedError


@dataclass(frozen=True, repr=False)
class RandomInvert(_ByChance):
    """Replace every value by the largest one minus it, with probability ``p``."""

    p: float = 0.5

    def _op(self, mask: Mask, always: bool, images: Images) -> Op:
        return Invert(mask, always=always)


@dataclass(frozen=True, repr=False)
class RandomPosterize(_ByChance):
    """Keep the upper ``bits`` (0 to 8) of every value, with probability ``p``."""

    bits: int
    p: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        if isinstance(self.bits, bool) or not isinstance(self.bits, (int, np.integer)) or not 0 <= self.bits <= 8:
            raise ConfigError(f"RandomPosterize: bits must be an integer from 0 to 8, not {self.bits!r}")
        self.set(bits=int(self.bits))

    def _op(self, mask: Mask, always: bool, images: Images) -> Op:
        return Posterize(mask, np.full(len(mask), self.bits, np.int32), always=always)


@dataclass(frozen=True, repr=False)
class RandomSolarize(_ByChance):
    """Invert the values of ``threshold`` and above, with probability ``p``.

    ``threshold`` is in the image's own units: 0 to 255 of uint8, 0 to 1 of a float type.
    """

    threshold: float
    p: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        self.set(threshold=_number(self.threshold, "RandomSolarize: threshold", lowest=-np.inf))

    def _op(self, mask: Mask, always: bool, images: Images) -> Op:
        largest = 255.0 if images.dtype == "uint8" else 1.0
        if images.kind == "tensor" and self.threshold > largest:
            raise self.refuse(
                f"the image is {images.dtype} at this place, whose largest value is {largest:g}; give threshold in "
                "these units"
            )
        return Solarize(mask, np.full(len(mask), self.threshold), always=always)


@dataclass(frozen=True, repr=False)
class RandomAdjustSharpness(_ByChance):
    """Blend with a smoothed image, with probability ``p``: ``sharpness_factor`` 0 smoothes, 1 changes nothing, 2
    sharpens."""

    sharpness_factor: float
    p: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        self.set(sharpness_factor=_number(self.sharpness_factor, "RandomAdjustSharpness: sharpness_factor"))

    def _op(self, mask: Mask, always: bool, images: Images) -> Op:
        return Sharpness(mask, np.full(len(mask), self.sharpness_factor), kind=images.kind, always=always)


@dataclass(frozen=True, repr=False)
class RandomAutocontrast(_ByChance):
    """Stretch every channel over the whole range of values, with probability ``p``."""

    p: float = 0.5

    def _op(self, mask: Mask, always: bool, images: Images) -> Op:
        return AutoContrast(mask, kind=images.kind, always=always)


@dataclass(frozen=True, repr=False)
class RandomEqualize(_ByChance):
    """Make the histogram of every channel as even as it can be, with probability ``p``."""

    p: float = 0.5

    def _op(self, mask: Mask, always: bool, images: Images) -> Op:
        return Equalize(mask, kind=images.kind, always=always)


@dataclass(frozen=True, repr=False)
class JPEG(Transform):
    """Encode as JPEG (4:2:0) and decode again.

    Args:
        quality: 1 to 100, or (lowest, highest), both included. Lower means more compression.
    """

    DRAWS: ClassVar[int] = 1

    quality: int | Sequence[int]

    def __post_init__(self) -> None:
        given: Any = items(self.quality)
        given = given * 2 if len(given) == 1 and not isinstance(self.quality, Sequence) else given
        whole = all(isinstance(q, (int, np.integer)) and not isinstance(q, bool) for q in given)
        if len(given) != 2 or not whole or not 1 <= given[0] <= given[1] <= 100:
            raise ConfigError(
                "JPEG: quality must be an integer from 1 to 100, or a pair (lowest, highest) of them, "
                f"not {self.quality!r}"
            )
        self.set(quality=(int(given[0]), int(given[1])))

    def resolve(self, u: F64, images: Images) -> tuple[tuple[Op, ...], Images]:
        if images.dtype != "uint8":
            raise self.refuse(f"the image is {images.dtype} at this place and must be uint8; put it before ToTensor()")
        low, high = items(self.quality)
        quality = np.minimum(low + (u[:, 0] * (high - low + 1)).astype(np.int32), high).astype(np.int32)
        return resolves((JPEGOp(np.ones(len(u), np.bool_), quality, kind=images.kind, always=True),), images)


def _number(value: Any, what: str, lowest: float = 0.0) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float, np.number)) or not lowest <= value < np.inf:
        least = f" of at least {lowest:g}" if np.isfinite(lowest) else ""
        raise ConfigError(f"{what} must be a number{least}, not {value!r}")
    return float(value)
