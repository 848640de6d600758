"""Crops, padding and flips. The rules are torchvision's own, in numpy, for a whole batch at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

import numpy as np

from ..errors import ConfigError
from .base import F64, I64, Images, Transform, check_probability, items, pair, resolves
from .ops import Crop, Flip, Op

__all__ = [
    "CenterCrop",
    "Pad",
    "RandomCrop",
    "RandomHorizontalFlip",
    "RandomVerticalFlip",
    "below",
    "filled",
    "i32",
]

PaddingMode = Literal["constant", "edge", "reflect", "symmetric"]


def i32(a: I64) -> np.ndarray[Any, np.dtype[np.int32]]:
    return a.astype(np.int32)


def filled(n: int, value: int) -> I64:
    return np.full(n, value, np.int64)


def below(u: F64, n: I64 | int) -> I64:
    """A uniform integer in [0, n) from a uniform number in [0, 1)."""
    return np.minimum((u * n).astype(np.int64), n - 1)


@dataclass(frozen=True, repr=False)
class CenterCrop(Transform):
    """The middle ``size`` of the image. A smaller image is filled with zeros, as in torchvision.

    The offset is ``round((height - size) / 2)``, halves to even.
    """

    size: int | Sequence[int]

    def __post_init__(self) -> None:
        self.set(size=pair(self.size, "CenterCrop: size"))

    def resolve(self, u: F64, images: Images) -> tuple[tuple[Op, ...], Images]:
        offsets = []
        assert isinstance(self.size, tuple)
        for have, want in zip((images.height, images.width), self.size, strict=True):
            margin = have - want
            offsets.append(np.where(margin >= 0, np.rint(margin / 2.0).astype(np.int64), -(-margin // 2)))
        height, width = (filled(len(images.sizes), n) for n in self.size)
        crop = Crop(i32(offsets[0]), i32(offsets[1]), i32(height), i32(width), padded=True)
        return resolves((crop,), images.sized(height, width))


def _fill(fill: Any, what: str) -> tuple[float, ...]:
    values = items(fill)
    if len(values) not in (1, 3) or not all(isinstance(v, (int, float)) for v in values):
        raise ConfigError(f"{what}: fill must be a number or three of them, not {fill!r}")
    return tuple(float(v) for v in values)


def _padding(padding: int | Sequence[int], what: str) -> tuple[int, int, int, int]:
    """(left, top, right, bottom) of torchvision's padding argument."""
    p = items(padding)
    if len(p) not in (1, 2, 4) or not all(isinstance(n, int) and n >= 0 for n in p):
        raise ConfigError(f"{what}: padding must be one, two or four numbers of pixels, none negative, not {padding!r}")
    p = p * 4 if len(p) == 1 else p * 2 if len(p) == 2 else p
    return p[0], p[1], p[2], p[3]


def _padding_mode(mode: str, what: str) -> PaddingMode:
    if mode not in get_args(PaddingMode):
        raise ConfigError(f"{what}: padding_mode must be one of {', '.join(get_args(PaddingMode))}, not {mode!r}")
    return mode  # type: ignore[return-value]


@dataclass(frozen=True, repr=False)
class Pad(Transform):
    """Add ``padding`` pixels around the image: one number, (left and right, top and bottom), or
    (left, top, right, bottom)."""

    padding: int | Sequence[int]
    fill: float | Sequence[float] = 0
    padding_mode: PaddingMode = "constant"

    def __post_init__(self) -> None:
        self.set(
            padding=_padding(self.padding, "Pad"),
            fill=_fill(self.fill, "Pad"),
            padding_mode=_padding_mode(self.padding_mode, "Pad"),
        )

    def resolve(self, u: F64, images: Images) -> tuple[tuple[Op, ...], Images]:
        assert isinstance(self.padding, tuple) and isinstance(self.fill, tuple)
        left, top, right, bottom = self.padding
        n = len(images.sizes)
        height, width = images.height + top + bottom, images.width + left + right
        crop = Crop(
            i32(filled(n, -top)),
            i32(filled(n, -left)),
            i32(height),
            i32(width),
            padded=True,
            fill=self.fill,
            mode=self.padding_mode,
        )
        return resolves((crop,), images.sized(height, width))


@dataclass(frozen=True, repr=False)
class RandomCrop(Transform):
    """A window of ``size`` at a random place, after ``padding`` pixels were added around the image.

    ``pad_if_needed`` adds what is missing on both sides, as torchvision does. Without it, an image that is smaller
    than ``size``
    is an error that names the sizes.
    """

    DRAWS: ClassVar[int] = 2

    size: int | Sequence[int]
    padding: int | Sequence[int] | None = None
    pad_if_needed: bool = False
    fill: float | Sequence[float] = 0
    padding_mode: PaddingMode = "constant"

    def __post_init__(self) -> None:
        self.set(
            size=pair(self.size, "RandomCrop: size"),
            padding=None if self.padding is None else _padding(self.padding, "RandomCrop"),
            fill=_fill(self.fill, "RandomCrop"),
            padding_mode=_padding_mode(self.padding_mode, "RandomCrop"),
        )

    def resolve(self, u: F64, images: Images) -> tuple[tuple[Op, ...], Images]:
        assert isinstance(self.size, tuple) and isinstance(self.fill, tuple)
        left, top, right, bottom = self.padding or (0, 0, 0, 0)  # type: ignore[misc]
        start, n = [], len(images.sizes)
        axes = ((images.height, self.size[0], top, bottom), (images.width, self.size[1], left, right))
        for axis, (have, want, before, after) in enumerate(axes):
            padded, shift = have + before + after, filled(n, before)
            if self.pad_if_needed:
                missing = np.maximum(want - padded, 0)
                padded, shift = padded + 2 * missing, shift + missing
            if (padded < want).any():
                at = int(np.argmax(padded < want))
                raise self.refuse(
                    f"an image of {images.height[at]}x{images.width[at]} pixels is smaller than the crop; "
                    "use pad_if_needed=True, or put a Resize before it"
                )
            start.append(below(u[:, axis], padded - want + 1) - shift)
        height, width = (filled(n, s) for s in self.size)
        crop = Crop(
            i32(start[0]),
            i32(start[1]),
            i32(height),
            i32(width),
            padded=self.padding is not None or self.pad_if_needed,
            fill=self.fill,
            mode=self.padding_mode,
        )
        return resolves((crop,), images.sized(height, width))


@dataclass(frozen=True, repr=False)
class _RandomFlip(Transform):
    DRAWS: ClassVar[int] = 1
    axis: ClassVar[Literal["horizontal", "vertical"]]

    p: float = 0.5

    def __post_init__(self) -> None:
        self.set(p=check_probability(self.p, f"{type(self).__name__}: p"))

    def resolve(self, u: F64, images: Images) -> tuple[tuple[Op, ...], Images]:
        return resolves((Flip(u[:, 0] < self.p, axis=self.axis),), images)


class RandomHorizontalFlip(_RandomFlip):
    """Mirror left and right with probability ``p``."""

    axis = "horizontal"


class RandomVerticalFlip(_RandomFlip):
    """Mirror top and bottom with probability ``p``."""

    axis = "vertical"
