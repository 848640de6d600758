"""Affine maps and perspective."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from .op import F64, I32, I64, Dtype, Kind, Mask, Masked, Op
from .promise import CPU, EQUAL, GRAPH, ON_BATCH, Bound, Promise, Tolerance

__all__ = ["Perspective", "Warp"]

_TIES = (
    "DALI computes positions in float32, Pillow in 16.16 fixed point or float64; for a position between two pixels, "
    "DALI may take the other one"
)
_RIM = "a position on the rim of the image, within the last bit of a float32, may count as outside"
_PLACES = "both compute positions in float32, in a different order"


def _row(what: str, interpolation: str, kind: Kind, dtype: Dtype) -> str:
    """Return the key of a map's promise."""
    if interpolation == "bicubic":  # not supported by DALI
        return ON_BATCH.key
    if interpolation != "bilinear":
        return f"{what} nearest"
    return f"{what} bilinear {kind} {'uint8' if dtype == 'uint8' else 'float'}"


def _promises(key: str, what: str, nearest: Bound, pil: Bound) -> tuple[Promise, ...]:
    """Return the promises of a map: for nearest neighbors, and for bilinear interpolation of PIL images, tensors and
    floats."""
    cases = (
        ("nearest", "nearest", nearest, _TIES),
        ("bilinear pil uint8", "bilinear, of PIL images", pil, _RIM),
        ("bilinear tensor uint8", "bilinear, of tensors", Bound(1, 0.01), "sums that end in .5 round differently"),
        ("bilinear tensor float", "bilinear, of floats", Bound(0.2, 0.002), _PLACES),
    )
    found = (
        Promise(f"{key} {kind}", f"{what}, {shown}", {CPU: Tolerance(EQUAL), GRAPH: Tolerance(bound, reason=why)})
        for kind, shown, bound, why in cases
    )
    return *found, ON_BATCH


@dataclass(frozen=True, eq=False, repr=False)
class Warp(Masked):
    """Apply an affine map. ``matrix`` f64[B, 6] maps output pixels to input pixels.

    Positions of PIL images follow ``Image.transform(AFFINE)``: ``x_in = a (x + 0.5) + b (y + 0.5) + c``. Positions of
    tensors are relative to the center of the image, as torchvision's ``affine`` passes them to its grid.
    :mod:`gpupipe.transforms.matrices` creates these ops.
    """

    PROMISES = _promises("warp", "rotate, affine", Bound(255, 0.02, 0.0005), Bound(255, 0.02, 0.0003))
    geometric = True

    matrix: F64
    height: I32
    """Height of the output."""
    width: I32
    source: I32
    """[B, 2]: height and width of the input."""
    turns: I32
    """0 to 3: an exact rotation by that many quarters anticlockwise, for which torchvision transposes pixels; -1 if
    only ``matrix`` counts."""
    interpolation: str = "nearest"
    fill: tuple[float, ...] | None = (0.0,)
    """``None`` is black too, but torchvision then blends the border of tensors once instead of twice."""
    kind: Kind = "pil"

    def promise(self, dtype: Dtype) -> str:
        return _row("warp", self.interpolation, self.kind, dtype)

    def where(self, mask: Mask, sizes: I64) -> Op:
        height = np.where(mask, self.height, sizes[:, 0]).astype(np.int32)
        width = np.where(mask, self.width, sizes[:, 1]).astype(np.int32)
        return replace(self, mask=self.mask & mask, always=False, height=height, width=width)


@dataclass(frozen=True, eq=False, repr=False)
class Perspective(Masked):
    """Apply a perspective map. ``coefficients`` f64[B, 8] are those of Pillow's ``Image.transform(PERSPECTIVE)``."""

    PROMISES = _promises("perspective", "perspective", Bound(255, 0.1, 0.0015), Bound(255, 0.04, 0.0005))
    geometric = True

    coefficients: F64
    interpolation: str = "bilinear"
    fill: tuple[float, ...] | None = (0.0,)
    kind: Kind = "pil"

    def promise(self, dtype: Dtype) -> str:
        return _row("perspective", self.interpolation, self.kind, dtype)
