"""Ops that move pixels."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from .base import F64, I32, I64, U64, Kind, Mask, Masked, Op

__all__ = ["Crop", "Elastic", "Flip", "Perspective", "Resize", "Warp"]


@dataclass(frozen=True, eq=False)
class Crop(Op):
    """A window of the image. Where ``padded``, it may reach outside, and what is outside is filled."""

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
class Flip(Op):
    """Mirror the samples whose mask is set."""

    mask: Mask
    axis: Literal["horizontal", "vertical"] = "horizontal"

    def where(self, mask: Mask, sizes: I64) -> Op:
        return replace(self, mask=self.mask & mask)


@dataclass(frozen=True, eq=False)
class Warp(Masked):
    """An affine map. ``matrix`` f64[B, 6] leads from the pixels of the output to those of the input.

    Of PIL images as in ``Image.transform(AFFINE)``: ``x_in = a (x + 0.5) + b (y + 0.5) + c``. Of tensors relative to
    the centre of the image, as torchvision's ``affine`` hands it to its grid. See :mod:`gpupipe.transforms.matrices`,
    which makes these.
    """

    matrix: F64
    height: I32
    """Of the output."""
    width: I32
    source: I32
    """[B, 2]: height and width of the input."""
    turns: I32
    """0 to 3: an exact rotation by so many quarters, anticlockwise, for which torchvision transposes the pixels;
    -1 where ``matrix`` counts alone."""
    interpolation: str = "nearest"
    fill: tuple[float, ...] | None = (0.0,)
    """``None`` is black too, but on tensors torchvision blends the border with it once and not twice."""
    kind: Kind = "pil"

    def where(self, mask: Mask, sizes: I64) -> Op:
        height = np.where(mask, self.height, sizes[:, 0]).astype(np.int32)
        width = np.where(mask, self.width, sizes[:, 1]).astype(np.int32)
        return replace(self, mask=self.mask & mask, always=False, height=height, width=width)


@dataclass(frozen=True, eq=False)
class Perspective(Masked):
    """A map of planes in space. ``coefficients`` f64[B, 8] as Pillow's ``Image.transform(PERSPECTIVE)`` takes them."""

    coefficients: F64
    interpolation: str = "bilinear"
    fill: tuple[float, ...] | None = (0.0,)
    kind: Kind = "pil"


@dataclass(frozen=True, eq=False)
class Elastic(Masked):
    """Move every pixel by a smooth random field, drawn by ``seed`` of the sample."""

    seed: U64
    alpha: tuple[float, float] = (50.0, 50.0)
    sigma: tuple[float, float] = (5.0, 5.0)
    interpolation: str = "bilinear"
    fill: tuple[float, ...] | None = (0.0,)
    kind: Kind = "pil"
