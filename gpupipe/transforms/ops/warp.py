"""Affine maps, perspective and elastic fields."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from .base import F64, I32, I64, U64, Kind, Mask, Masked, Op

__all__ = ["Elastic", "Perspective", "Warp"]


@dataclass(frozen=True, eq=False)
class Warp(Masked):
    """An affine map. ``matrix`` f64[B, 6] leads from the pixels of the output to those of the input.

    Of PIL images as in ``Image.transform(AFFINE)``: ``x_in = a (x + 0.5) + b (y + 0.5) + c``. Of tensors relative to
    the centre of the image, as torchvision's ``affine`` hands it to its grid. See :mod:`gpupipe.transforms.matrices`,
    which makes these.
    """

    geometric = True

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

    geometric = True

    coefficients: F64
    interpolation: str = "bilinear"
    fill: tuple[float, ...] | None = (0.0,)
    kind: Kind = "pil"


@dataclass(frozen=True, eq=False)
class Elastic(Masked):
    """Move every pixel by a smooth random field, drawn by ``seed`` of the sample."""

    geometric = True

    seed: U64
    alpha: tuple[float, float] = (50.0, 50.0)
    sigma: tuple[float, float] = (5.0, 5.0)
    interpolation: str = "bilinear"
    fill: tuple[float, ...] | None = (0.0,)
    kind: Kind = "pil"
