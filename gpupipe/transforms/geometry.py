"""Crops, sizes and flips. The rules are torchvision's own, in numpy, for a whole batch at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, get_args

import numpy as np

from ..errors import ConfigError
from .base import (
    F64,
    I64,
    Images,
    Transform,
    check_probability,
    interpolation_name,
    items,
    pair,
    resolves,
)
from .ops import Crop, Flip, Op, Resize as ResizeOp

__all__ = [
    "CenterCrop",
    "Pad",
    "RandomCrop",
    "RandomHorizontalFlip",
    "RandomResizedCrop",
    "RandomVerticalFlip",
    "Resize",
]

PaddingMode = Literal["constant", "edge", "reflect", "symmetric"]


def _i32(a: I64) -> np.ndarray[Any, np.dtype[np.int32]]:
    return a.astype(np.int32)


def _filled(n: int, value: int) -> I64:
    return np.full(n, value, np.int64)


def _below(u: F64, n: I64) -> I64:
    """A uniform integer in [0, n) from a uniform number in [0, 1)."""
    return np.minimum((u * n).astype(np.int64), n - 1)


def _resize(transform: Any, images: Images, height: I64, width: I64) -> ResizeOp:
    antialias = transform.antialias or images.kind == "pil"  # PIL always filters when it reduces
    if images.kind == "tensor" and transform.interpolation in ("box", "hamming"):
        raise transform.refuse(f"interpolation {transform.interpolation!r} exists for PIL images only")
    return ResizeOp(
        _i32(height), _i32(width), interpolation=transform.interpolation, antialias=antialias, kind=images.kind
    )


@dataclass(frozen=True, repr=False)
class Resize(Transform):
    """Resize to ``size``: (height, width), or one number for the shorter edge, keeping the shape.

    The longer edge is ``int(size * long / short)`` as in torchvision; with ``max_size`` it is at most that.
    ``size=None`` with ``max_size``
    makes the longer edge ``max_size``.
    """

    size: int | Sequence[int] | None
    interpolation: Any = "bilinear"
    max_size: int | None = None
    antialias: bool = True

    def __post_init__(self) -> None:
        size = self.size
        if size is None:
            if not isinstance(self.max_size, int) or self.max_size < 1:
                raise ConfigError(f"Resize(size=None) needs max_size, a positive integer, not {self.max_size!r}")
        elif len(items(size)) == 1:
            short = pair(size, "Resize: size")[0]
            if self.max_size is not None and self.max_size <= short:
                raise ConfigError(f"Resize: max_size={self.max_size} must be greater than size={short}")
            size = short
        else:
            size = pair(size, "Resize: size")
            if self.max_size is not None:
                raise ConfigError("Resize: max_size goes with one number as size, not with (height, width)")
        self.set(size=size, interpolation=interpolation_name(self.interpolation), antialias=self.antialias is not False)

    def resolve(self, u: F64, images: Images) -> tuple[tuple[Op, ...], Images]:
        h, w = images.height, images.width
        if isinstance(self.size, tuple):
            height, width = _filled(len(h), self.size[0]), _filled(len(w), self.size[1])
        else:
            short, long = np.minimum(h, w), np.maximum(h, w)
            if self.size is None:
                assert self.max_size is not None
                new_long = _filled(len(h), self.max_size)
                new_short = (self.max_size * short / long).astype(np.int64)
            else:
                assert isinstance(self.size, int)
                new_short = _filled(len(h), self.size)
                new_long = (self.size * long / short).astype(np.int64)
                if self.max_size is not None:
                    over = new_long > self.max_size
                    new_short = np.where(over, (self.max_size * new_short / new_long).astype(np.int64), new_short)
                    new_long = np.where(over, self.max_size, new_long)
            new_short = np.maximum(new_short, 1)
            height, width = np.where(w <= h, new_long, new_short), np.where(w <= h, new_short, new_long)
        return resolves((_resize(self, images, height, width),), images.sized(height, width))


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
        height, width = (_filled(len(images.sizes), n) for n in self.size)
        crop = Crop(_i32(offsets[0]), _i32(offsets[1]), _i32(height), _i32(width), padded=True)
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
            _i32(_filled(n, -top)),
            _i32(_filled(n, -left)),
            _i32(height),
            _i32(width),
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
            padded, shift = have + before + after, _filled(n, before)
            if self.pad_if_needed:
                missing = np.maximum(want - padded, 0)
                padded, shift = padded + 2 * missing, shift + missing
            if (padded < want).any():
                at = int(np.argmax(padded < want))
                raise self.refuse(
                    f"an image of {images.height[at]}x{images.width[at]} pixels is smaller than the crop; "
                    "use pad_if_needed=True, or put a Resize before it"
                )
            start.append(_below(u[:, axis], padded - want + 1) - shift)
        height, width = (_filled(n, s) for s in self.size)
        crop = Crop(
            _i32(start[0]),
            _i32(start[1]),
            _i32(height),
            _i32(width),
            padded=self.padding is not None or self.pad_if_needed,
            fill=self.fill,
            mode=self.padding_mode,
        )
        return resolves((crop,), images.sized(height, width))


@dataclass(frozen=True, repr=False)
class RandomResizedCrop(Transform):
    """A window of random area and shape, resized to ``size``: the training crop of Szegedy et al.,
    *Going deeper with convolutions* (2015), with torchvision's rule.

    Ten attempts draw an area uniform in ``scale`` and a shape log-uniform in ``ratio``; the first window that fits is
    taken at a uniform
    place. If none fits, the largest centred window within ``ratio`` is.
    """

    ATTEMPTS: ClassVar[int] = 10
    DRAWS: ClassVar[int] = 2 + 2 * ATTEMPTS

    size: int | Sequence[int]
    scale: Sequence[float] = (0.08, 1.0)
    ratio: Sequence[float] = (3.0 / 4.0, 4.0 / 3.0)
    interpolation: Any = "bilinear"
    antialias: bool = True

    def __post_init__(self) -> None:
        for name in ("scale", "ratio"):
            bounds = items(getattr(self, name))
            if len(bounds) != 2 or not 0 < bounds[0] <= bounds[1]:
                raise ConfigError(
                    f"RandomResizedCrop: {name} must be (low, high) with 0 < low <= high, not {getattr(self, name)!r}"
                )
        self.set(
            size=pair(self.size, "RandomResizedCrop: size"),
            scale=tuple(float(x) for x in self.scale),
            ratio=tuple(float(x) for x in self.ratio),
            interpolation=interpolation_name(self.interpolation),
            antialias=self.antialias is not False,
        )

    def resolve(self, u: F64, images: Images) -> tuple[tuple[Op, ...], Images]:
        assert isinstance(self.size, tuple)
        fits, height, width = self._attempts(u[:, 2:], images)
        fallback_height, fallback_width = self._fallback(images)
        height = np.where(fits, height, fallback_height)
        width = np.where(fits, width, fallback_width)
        room_h, room_w = images.height - height, images.width - width
        top = np.where(fits, _below(u[:, 0], room_h + 1), room_h // 2)
        left = np.where(fits, _below(u[:, 1], room_w + 1), room_w // 2)
        crop = Crop(_i32(top), _i32(left), _i32(height), _i32(width))
        out_h, out_w = (_filled(len(u), n) for n in self.size)
        return resolves((crop, _resize(self, images, out_h, out_w)), images.sized(out_h, out_w))

    def _attempts(self, u: F64, images: Images) -> tuple[Any, I64, I64]:
        """The first of ten windows that fits: (whether there is one bool[B], height i64[B], width i64[B])."""
        (low, high), (ratio_low, ratio_high) = self.scale, np.log(self.ratio)
        h, w = images.height[:, None], images.width[:, None]
        area = h * w * (low + (high - low) * u[:, : self.ATTEMPTS])
        shape = np.exp(ratio_low + (ratio_high - ratio_low) * u[:, self.ATTEMPTS :])
        width = np.rint(np.sqrt(area * shape)).astype(np.int64)
        height = np.rint(np.sqrt(area / shape)).astype(np.int64)
        fits = (width > 0) & (width <= w) & (height > 0) & (height <= h)
        rows, first = np.arange(len(u)), fits.argmax(axis=1)
        return fits[rows, first], height[rows, first], width[rows, first]

    def _fallback(self, images: Images) -> tuple[I64, I64]:
        """The largest window of an allowed shape: (height i64[B], width i64[B])."""
        narrowest, widest = self.ratio
        h, w = images.height, images.width
        shape = w / h
        height = np.where(shape < narrowest, np.rint(w / narrowest), h).astype(np.int64)
        width = np.where(shape > widest, np.rint(h * widest), w).astype(np.int64)
        return height, width


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
