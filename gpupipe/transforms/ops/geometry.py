"""Crops, resizes and flips."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from .base import I32, I64, HasMask, Kind, Mask, Op

__all__ = ["Crop", "Flip", "Resize"]


@dataclass(frozen=True, eq=False)
class Crop(Op):
    """A window of the image. If ``padded``, it may reach outside, and what is outside is filled."""

    geometric = True

    top: I32
    left: I32
    height: I32
    width: I32
    padded: bool = False
    fill: tuple[float, ...] = (0.0,)
    """One value for all channels, or one each; in the image's own units."""
    mode: Literal["constant", "edge", "reflect", "symmetric"] = "constant"

    def where(self, mask: Mask, sizes: I64) -> Op:
        whole: dict[str, Any] = {"top": 0, "left": 0, "height": sizes[:, 0], "width": sizes[:, 1]}
        return replace(self, **{k: np.where(mask, getattr(self, k), v).astype(np.int32) for k, v in whole.items()})


@dataclass(frozen=True, eq=False)
class Resize(Op):
    """Resample to ``height`` x ``width`` pixels."""

    geometric = True

    height: I32
    width: I32
    interpolation: str = "bilinear"
    antialias: bool = True
    kind: Kind = "pil"

    def where(self, mask: Mask, sizes: I64) -> Op:
        height = np.where(mask, self.height, sizes[:, 0]).astype(np.int32)
        width = np.where(mask, self.width, sizes[:, 1]).astype(np.int32)
        return replace(self, height=height, width=width)


@dataclass(frozen=True, eq=False)
class Flip(HasMask):
    """Mirror the samples whose mask is set."""

    geometric = True

    axis: Literal["horizontal", "vertical"] = "horizontal"
