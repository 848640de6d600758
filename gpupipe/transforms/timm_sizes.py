"""timm's transforms to a common size that torchvision lacks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np

from . import fields
from .fields import Converted, Fill, InterpolationName, Pair, Range, TorchvisionEnum, frozen, items
from .geometry import CenterCrop, Mode, known_mode
from .ops import Crop
from .ops.op import F64
from .resize import resized
from .transform import Images, Ops, Transform

Several: TypeAlias = Converted[
    TorchvisionEnum | InterpolationName | Sequence[TorchvisionEnum | InterpolationName], tuple[str, ...]
]


def _several(value: Any, what: str) -> tuple[str, ...]:
    return tuple(fields.interpolation(v, what) for v in items(value))


def _bounds(value: Sequence[float], what: str) -> tuple[float, float]:
    low, high = fields.numbers(2)(value, what)
    return low, high


@frozen
class CenterCropOrPad(CenterCrop):
    """Crop like :class:`CenterCrop`, with a choice of the padding of smaller images."""

    fill: Fill = Converted(fields.fill, default=0)
    padding_mode: Mode = Converted(known_mode, default="constant")

    def resolve(self, u: F64, images: Images) -> tuple[Ops, Images]:
        ops, images = super().resolve(u, images)
        crops = (replace(op, fill=self.fill, mode=self.padding_mode) for op in ops if isinstance(op, Crop))
        return tuple(crops), images


@frozen
class ResizeKeepRatio(Transform):
    """Resize to at least ``size`` (``longest=0``) or at most ``size`` (``longest=1``), keeping the aspect ratio.

    A random zoom and a random stretch may change that. Each edge becomes ``round(edge / ratio)`` times the factors,
    halves to even. With ``random_scale_area`` the zoom is one over the square root of the drawn number, which is then a
    share of the area.
    """

    size: Pair = Converted(fields.pair)
    longest: float = 0.0
    interpolation: Several = Converted(_several, default="bilinear")
    random_scale_prob: float = 0.0
    random_scale_range: Range = Converted(_bounds, default=(0.85, 1.05))
    random_scale_area: bool = False
    random_aspect_prob: float = 0.0
    random_aspect_range: Range = Converted(_bounds, default=(0.9, 1.11))
    antialias: bool = True

    @property
    def draws(self) -> int:
        return 5

    def resolve(self, u: F64, images: Images) -> tuple[Ops, Images]:
        by_edge = images.sizes / np.array(self.size, np.float64)
        ratio = by_edge.max(axis=1) * self.longest + by_edge.min(axis=1) * (1.0 - self.longest)
        low, high = self.random_scale_range
        scale = low + (high - low) * u[:, 1]
        scale = np.where(u[:, 0] < self.random_scale_prob, scale**-0.5 if self.random_scale_area else scale, 1.0)
        narrow, wide = np.log(self.random_aspect_range)
        # The ratio's square root goes to each edge, to one as a factor and to the other as a divisor.
        aspect = np.exp((narrow + (wide - narrow) * u[:, 3]) / 2)
        aspect = np.where(u[:, 2] < self.random_aspect_prob, aspect, 1.0)
        factors = np.stack([scale / aspect, scale * aspect], axis=1)
        sizes = np.maximum(np.rint(images.sizes * factors / ratio[:, None]).astype(np.int64), 1)
        ops = resized(self, images, sizes[:, 0], sizes[:, 1], u[:, 4])
        return ops, images.sized(sizes[:, 0], sizes[:, 1])
