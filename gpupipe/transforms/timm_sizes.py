"""timm's ways to a common size, beside torchvision's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from .base import F64, Images, Transform, interpolation_name, items, pair, resolves
from .geometry import CenterCrop, Pad
from .ops import Op
from .resize import resized

__all__ = ["CenterCropOrPad", "ResizeKeepRatio"]


@dataclass(frozen=True, repr=False)
class CenterCropOrPad(CenterCrop):
    """:class:`CenterCrop` with a choice of what surrounds a smaller image."""

    fill: float | Sequence[float] = 0
    padding_mode: Literal["constant", "edge", "reflect", "symmetric"] = "constant"

    def __post_init__(self) -> None:
        super().__post_init__()
        pad = Pad(0, self.fill, self.padding_mode)  # which checks both
        self.set(fill=pad.fill, padding_mode=pad.padding_mode)

    def resolve(self, u: F64, images: Images) -> tuple[tuple[Op, ...], Images]:
        (crop,), images = super().resolve(u, images)
        return resolves((replace(crop, fill=self.fill, mode=self.padding_mode),), images)  # type: ignore[call-arg]


@dataclass(frozen=True, repr=False)
class ResizeKeepRatio(Transform):
    """Resize so that both edges are ``size`` or more (``longest=0``) or less (``longest=1``), keeping the shape but for
    a random zoom and a random stretch.

    Each edge becomes ``round(edge / ratio)`` times the factors, halves to even. With ``random_scale_area`` the zoom is
    one over the square root of the number drawn, as for a share of the area.
    """

    size: int | Sequence[int]
    longest: float = 0.0
    interpolation: Any = "bilinear"
    random_scale_prob: float = 0.0
    random_scale_range: Sequence[float] = (0.85, 1.05)
    random_scale_area: bool = False
    random_aspect_prob: float = 0.0
    random_aspect_range: Sequence[float] = (0.9, 1.11)
    antialias: bool = True

    def __post_init__(self) -> None:
        self.set(
            size=pair(self.size, "ResizeKeepRatio: size"),
            interpolation=tuple(map(interpolation_name, items(self.interpolation))),
            random_scale_range=tuple(map(float, self.random_scale_range)),
            random_aspect_range=tuple(map(float, self.random_aspect_range)),
        )

    @property
    def draws(self) -> int:
        return 5

    def resolve(self, u: F64, images: Images) -> tuple[tuple[Op, ...], Images]:
        by_edge = images.sizes / np.array(self.size, np.float64)
        ratio = by_edge.max(axis=1) * self.longest + by_edge.min(axis=1) * (1.0 - self.longest)
        low, high = self.random_scale_range
        scale = low + (high - low) * u[:, 1]
        scale = np.where(u[:, 0] < self.random_scale_prob, scale**-0.5 if self.random_scale_area else scale, 1.0)
        narrow, wide = np.log(self.random_aspect_range)
        aspect = np.exp((narrow + (wide - narrow) * u[:, 3]) / 2)
        aspect = np.where(u[:, 2] < self.random_aspect_prob, aspect, 1.0)
        factors = np.stack([scale / aspect, scale * aspect], axis=1)
        sizes = np.maximum(np.rint(images.sizes * factors / ratio[:, None]).astype(np.int64), 1)
        ops = resized(self, images, sizes[:, 0], sizes[:, 1], u[:, 4])
        return resolves(ops, images.sized(sizes[:, 0], sizes[:, 1]))
