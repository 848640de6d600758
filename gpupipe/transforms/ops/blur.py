"""Blur."""

from __future__ import annotations

from dataclasses import dataclass

from .op import F64, Dtype, Kind, Masked
from .promise import CPU, ON_BATCH, Bound, Promise, Tolerance

__all__ = ["Blur", "BoxBlur"]


@dataclass(frozen=True, eq=False, repr=False)
class Blur(Masked):
    """Convolve with a Gaussian of ``sigma`` pixels, truncated to ``kernel_size`` (width, height), reflecting edges."""

    PROMISES = (
        Promise(
            "blur uint8", "blur", {CPU: Tolerance(Bound(1, 0.001), reason="sums that end in .5 round differently")}
        ),
        Promise(
            "blur float", "blur of floats", {CPU: Tolerance(Bound(0.001, 0.0005), reason="sums in a different order")}
        ),
    )

    sigma: F64
    kernel_size: tuple[int, int] = (3, 3)
    kind: Kind = "pil"

    def promise(self, dtype: Dtype) -> str:
        return "blur uint8" if dtype == "uint8" else "blur float"


@dataclass(frozen=True, eq=False, repr=False)
class BoxBlur(Masked):
    """Pillow's ``GaussianBlur`` of ``radius`` pixels on a uint8 image: three box filters along each axis."""

    PROMISES = (Promise("boxblur", "timm's GaussianBlur", ON_BATCH.tolerances),)

    radius: F64
