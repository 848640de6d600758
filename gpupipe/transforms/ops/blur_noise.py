"""Ops that blur, and noise."""

from __future__ import annotations

from dataclasses import dataclass

from .base import F64, U64, Kind, Masked

__all__ = ["Blur", "BoxBlur", "Noise"]


@dataclass(frozen=True, eq=False)
class Blur(Masked):
    """Convolve with a Gaussian of ``sigma`` pixels, cut off at ``kernel_size`` (width, height), edges reflected."""

    sigma: F64
    kernel_size: tuple[int, int] = (3, 3)
    kind: Kind = "pil"


@dataclass(frozen=True, eq=False)
class BoxBlur(Masked):
    """Pillow's ``GaussianBlur`` of ``radius`` pixels on a uint8 image: three box filters along each axis."""

    radius: F64


@dataclass(frozen=True, eq=False)
class Noise(Masked):
    """Add normal noise, one number per value, drawn by ``seed`` of the sample."""

    seed: U64
    mean: float = 0.0
    sigma: float = 0.1
    clip: bool = True
