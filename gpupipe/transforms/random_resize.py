"""Random sizes, as detection training draws them. Numbers are float32 where torchvision's are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from ..errors import ConfigError
from .base import F64, I64, Images, Transform, check_probability, interpolation_name, items, pair, resolves
from .geometry import below
from .ops import Crop, Op
from .resize import resized

__all__ = ["RandomShortestSize", "RandomZoomOut", "ScaleJitter"]

F32 = np.float32


def _resized(transform: Any, images: Images, height: I64, width: I64) -> tuple[tuple[Op, ...], Images]:
    height, width = np.maximum(height, 1), np.maximum(width, 1)
    return resolves(resized(transform, images, height, width), images.sized(height, width))


def _factors(value: Any, what: str, least: float) -> tuple[float, float]:
    bounds = items(value)
    if len(bounds) != 2 or not least <= bounds[0] <= bounds[1] or bounds[0] <= 0:
        raise ConfigError(f"{what} must be (low, high) with low <= high and low at least {least}, not {value!r}")
    return float(bounds[0]), float(bounds[1])


@dataclass(frozen=True, repr=False)
class ScaleJitter(Transform):
    """Resize so that the image would just fit into ``target_size``, times a factor uniform in ``scale_range``."""

    DRAWS: ClassVar[int] = 1

    target_size: Sequence[int]
    scale_range: Sequence[float] = (0.1, 2.0)
    interpolation: Any = "bilinear"
    antialias: bool = True

    def __post_init__(self) -> None:
        if len(items(self.target_size)) != 2:
            raise ConfigError(f"ScaleJitter: target_size must be two numbers of pixels, not {self.target_size!r}")
        self.set(
            target_size=pair(self.target_size, "ScaleJitter: target_size"),
            scale_range=_factors(self.scale_range, "ScaleJitter: scale_range", 0.0),
            interpolation=interpolation_name(self.interpolation),
            antialias=self.antialias is not False,
        )

    def resolve(self, u: F64, images: Images) -> tuple[tuple[Op, ...], Images]:
        low, high = self.scale_range
        # torchvision divides the second number by the height
        fit = np.minimum(self.target_size[1] / images.height, self.target_size[0] / images.width)
        r = fit.astype(F32) * (low + u[:, 0] * (high - low)).astype(F32)
        height, width = ((n.astype(F32) * r).astype(np.int64) for n in (images.height, images.width))
        return _resized(self, images, height, width)


@dataclass(frozen=True, repr=False)
class RandomShortestSize(Transform):
    """Resize the shorter edge to one of ``min_size``, or less where the longer one would exceed ``max_size``."""

    DRAWS: ClassVar[int] = 1

    min_size: int | Sequence[int]
    max_size: int | None = None
    interpolation: Any = "bilinear"
    antialias: bool = True

    def __post_init__(self) -> None:
        sizes = items(self.min_size)
        if not sizes or not all(isinstance(n, (int, np.integer)) and n > 0 for n in sizes):
            raise ConfigError(f"RandomShortestSize: min_size must be positive integers, not {self.min_size!r}")
        if self.max_size is not None and (not isinstance(self.max_size, int) or self.max_size < 1):
            raise ConfigError(f"RandomShortestSize: max_size must be a positive integer, not {self.max_size!r}")
        self.set(
            min_size=tuple(int(n) for n in sizes),
            interpolation=interpolation_name(self.interpolation),
            antialias=self.antialias is not False,
        )

    def resolve(self, u: F64, images: Images) -> tuple[tuple[Op, ...], Images]:
        sizes = np.array(self.min_size)
        short, long = images.sizes.min(axis=1), images.sizes.max(axis=1)
        r = sizes[below(u[:, 0], len(sizes))] / short
        if self.max_size is not None:
            r = np.minimum(r, self.max_size / long)
        return _resized(self, images, (images.height * r).astype(np.int64), (images.width * r).astype(np.int64))


@dataclass(frozen=True, repr=False)
class RandomZoomOut(Transform):
    """With probability ``p`` put the image at a random place on a canvas whose sides are larger by a factor uniform in
    ``side_range`` (Liu et al., *SSD: Single Shot MultiBox Detector*, 2016)."""

    DRAWS: ClassVar[int] = 4

    fill: float | Sequence[float] | None = 0
    side_range: Sequence[float] = (1.0, 4.0)
    p: float = 0.5

    def __post_init__(self) -> None:
        fill = (0.0,) if self.fill is None else items(self.fill)
        if len(fill) not in (1, 3) or not all(isinstance(v, (int, float)) for v in fill):
            raise ConfigError(f"RandomZoomOut: fill must be a number or three of them, not {self.fill!r}")
        self.set(
            fill=tuple(float(v) for v in fill),
            side_range=_factors(self.side_range, "RandomZoomOut: side_range", 1.0),
            p=check_probability(self.p, "RandomZoomOut: p"),
        )

    def resolve(self, u: F64, images: Images) -> tuple[tuple[Op, ...], Images]:
        assert isinstance(self.fill, tuple)
        if len(self.fill) not in (1, images.channels):
            raise self.refuse(f"fill has {len(self.fill)} numbers for an image of {images.channels} channel(s)")
        low, high = self.side_range
        drawn = u[:, 0] < self.p
        r = np.where(drawn, low + u[:, 1] * (high - low), 1.0).astype(F32)
        sides, starts = [], []
        for have, place in ((images.height, u[:, 3]), (images.width, u[:, 2])):
            side = np.where(drawn, (have.astype(F32) * r).astype(np.int64), have)
            sides.append(side)
            starts.append(((side - have).astype(F32) * place.astype(F32)).astype(np.int64))
        top, left, height, width = (n.astype(np.int32) for n in (-starts[0], -starts[1], *sides))
        crop = Crop(top, left, height, width, padded=True, fill=self.fill)
        return resolves((crop,), images.sized(sides[0], sides[1]))
