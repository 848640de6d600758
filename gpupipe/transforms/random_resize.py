"""Random sizes for detection training. Numbers are float32 where torchvision's are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from ..errors import ConfigError
from . import fields
from .fields import Converted, Fill, Flag, Interpolation, Probability, Range, frozen, items
from .numbers import below
from .ops import Crop
from .ops.op import F64, I64
from .resize import resized
from .transform import Images, Ops, Transform

__all__ = ["RandomResize", "RandomShortestSize", "RandomZoomOut", "ScaleJitter"]


def _resized(transform: Any, images: Images, height: I64, width: I64) -> tuple[Ops, Images]:
    # A long, flat image may come out with an edge of 0.
    height, width = np.maximum(height, 1), np.maximum(width, 1)
    return resized(transform, images, height, width), images.sized(height, width)


def _two(value: Sequence[int], what: str) -> tuple[int, int]:
    if len(items(value)) != 2:
        raise ConfigError(f"{what} must be two numbers of pixels, not {value!r}")
    return fields.pair(value, what)


def _sizes(value: int | Sequence[int], what: str) -> tuple[int, ...]:
    sizes = items(value)
    if not sizes or not all(isinstance(n, (int, np.integer)) and n > 0 for n in sizes):
        raise ConfigError(f"{what} must be positive integers, not {value!r}")
    return tuple(int(n) for n in sizes)


@frozen
class ScaleJitter(Transform):
    """Resize so that the image just fits into ``target_size``, times a factor uniform in ``scale_range``.

    Args:
        target_size: (height, width).
        scale_range: (low, high) of the factor.
        interpolation: a member of torchvision's ``InterpolationMode`` or its name, such as ``"bilinear"``.
        antialias: ``False`` shrinks tensors without a filter. PIL images are always filtered.

    >>> ScaleJitter((480, 640)).scale_range
    (0.1, 2.0)
    """

    DRAWS: ClassVar[int] = 1

    target_size: Converted[Sequence[int], tuple[int, int]] = Converted(_two)
    scale_range: Range = Converted(fields.interval(above=0), default=(0.1, 2.0))
    interpolation: Interpolation = Converted(fields.interpolation, default="bilinear")
    antialias: Flag = Converted(fields.antialias, default=True)

    def resolve(self, u: F64, images: Images) -> tuple[Ops, Images]:
        low, high = self.scale_range
        # torchvision divides the second number by the height
        fit = np.minimum(self.target_size[1] / images.height, self.target_size[0] / images.width)
        r = fit.astype(np.float32) * (low + u[:, 0] * (high - low)).astype(np.float32)
        height, width = ((n.astype(np.float32) * r).astype(np.int64) for n in (images.height, images.width))
        return _resized(self, images, height, width)


@frozen
class RandomShortestSize(Transform):
    """Resize the shorter edge to a size drawn from ``min_size``, or less if the longer edge would exceed ``max_size``.

    Args:
        min_size: length of the shorter edge, or several, of which each image draws one.
        max_size: limit of the longer edge.
        interpolation: a member of torchvision's ``InterpolationMode`` or its name, such as ``"bilinear"``.
        antialias: ``False`` shrinks tensors without a filter. PIL images are always filtered.

    >>> RandomShortestSize([480, 512], max_size=640).min_size
    (480, 512)
    """

    DRAWS: ClassVar[int] = 1

    min_size: Converted[int | Sequence[int], tuple[int, ...]] = Converted(_sizes)
    max_size: Converted[int | None, int | None] = Converted(fields.optional(fields.whole(1)), default=None)
    interpolation: Interpolation = Converted(fields.interpolation, default="bilinear")
    antialias: Flag = Converted(fields.antialias, default=True)

    def resolve(self, u: F64, images: Images) -> tuple[Ops, Images]:
        sizes = np.array(self.min_size)
        short, long = images.sizes.min(axis=1), images.sizes.max(axis=1)
        r = sizes[below(u[:, 0], len(sizes))] / short
        if self.max_size is not None:
            r = np.minimum(r, self.max_size / long)
        return _resized(self, images, (images.height * r).astype(np.int64), (images.width * r).astype(np.int64))


@frozen
class RandomResize(Transform):
    """Resize the shorter edge to a size drawn from ``min_size`` to ``max_size - 1``.

    Args:
        min_size: smallest length of the shorter edge.
        max_size: one more than the largest length of the shorter edge.
        interpolation: a member of torchvision's ``InterpolationMode`` or its name, such as ``"bilinear"``.
        antialias: ``False`` shrinks tensors without a filter. PIL images are always filtered.

    >>> RandomResize(240, 960).max_size
    960
    """

    DRAWS: ClassVar[int] = 1

    min_size: int
    max_size: int
    interpolation: Interpolation = Converted(fields.interpolation, default="bilinear")
    antialias: Flag = Converted(fields.antialias, default=True)

    def __post_init__(self) -> None:
        sizes = self.min_size, self.max_size
        if not all(isinstance(n, int) for n in sizes) or not 0 < self.min_size < self.max_size:
            raise ConfigError(f"RandomResize: sizes must be integers with 0 < min_size < max_size, not {sizes}")

    def resolve(self, u: F64, images: Images) -> tuple[Ops, Images]:
        shorter = self.min_size + below(u[:, 0], self.max_size - self.min_size)
        longer = (shorter * images.sizes.max(axis=1) / images.sizes.min(axis=1)).astype(np.int64)
        upright = images.width <= images.height
        return _resized(self, images, np.where(upright, longer, shorter), np.where(upright, shorter, longer))


@frozen
class RandomZoomOut(Transform):
    """Place the image at a random position on a larger canvas, with probability ``p``.

    The sides of the canvas are larger by a factor uniform in ``side_range`` (Liu et al., *SSD: Single Shot MultiBox
    Detector*, 2016).

    Args:
        fill: value of pixels outside the image: a number, or one per channel.
        side_range: (low, high) of the canvas's sides, as multiples of the image's.
        p: probability of the change, 0 to 1.

    >>> RandomZoomOut()
    RandomZoomOut(fill=(0.0,), side_range=(1.0, 4.0), p=0.5)
    """

    DRAWS: ClassVar[int] = 4

    fill: Fill = Converted(fields.fill, default=0)
    side_range: Range = Converted(fields.interval(1), default=(1.0, 4.0))
    p: Probability = Converted(fields.probability, default=0.5)

    def resolve(self, u: F64, images: Images) -> tuple[Ops, Images]:
        if len(self.fill) not in (1, images.channels):
            raise self.refuse(f"fill has {len(self.fill)} numbers for an image of {images.channels} channel(s)")
        low, high = self.side_range
        drawn = u[:, 0] < self.p
        # Images that do not draw it get a canvas of their own size.
        r = np.where(drawn, low + u[:, 1] * (high - low), 1.0).astype(np.float32)
        sides, starts = [], []
        # torchvision draws the position along the width first.
        for have, place in ((images.height, u[:, 3]), (images.width, u[:, 2])):
            side = np.where(drawn, (have.astype(np.float32) * r).astype(np.int64), have)
            sides.append(side)
            starts.append(((side - have).astype(np.float32) * place.astype(np.float32)).astype(np.int64))
        # The canvas is a crop whose window begins outside the image.
        top, left, height, width = (n.astype(np.int32) for n in (-starts[0], -starts[1], *sides))
        crop = Crop(top, left, height, width, padded=True, fill=self.fill, mask=drawn)
        return (crop,), images.sized(sides[0], sides[1])
