"""Ops on values and histograms: sharpness, fewer levels, inversions, stretched and even histograms, JPEG."""

from __future__ import annotations

from dataclasses import dataclass

from .base import F64, I32, Kind, Masked
from .color import Adjust

__all__ = ["JPEG", "AutoContrast", "Equalize", "Invert", "Posterize", "Sharpness", "Solarize", "SolarizeAdd"]


class Sharpness(Adjust):
    """Less of it: the image under the filter 1 1 1, 1 5 1, 1 1 1 over 13, whose outermost pixels stay."""


@dataclass(frozen=True, eq=False)
class Posterize(Masked):
    """Keep the upper ``bits`` of every value, 0 to 8."""

    bits: I32


@dataclass(frozen=True, eq=False)
class Solarize(Masked):
    """Invert the values of ``threshold`` and above; in the image's own units."""

    threshold: F64


@dataclass(frozen=True, eq=False)
class SolarizeAdd(Masked):
    """Add ``addend``, 0 to 128, to the values below 128 of a uint8 image."""

    addend: I32


@dataclass(frozen=True, eq=False)
class Invert(Masked):
    """The largest value minus the value."""


@dataclass(frozen=True, eq=False)
class AutoContrast(Masked):
    """Stretch every channel so that its lowest value becomes 0 and its highest the largest."""

    kind: Kind = "pil"


@dataclass(frozen=True, eq=False)
class Equalize(Masked):
    """Spread every channel so that its histogram is as even as it can be."""

    kind: Kind = "pil"


@dataclass(frozen=True, eq=False)
class JPEG(Masked):
    """Encode as JPEG of ``quality`` 1 to 100 and decode again."""

    quality: I32
    kind: Kind = "pil"
