"""Ops on values and histograms: sharpness, fewer levels, inversions, stretched and even histograms, JPEG."""

from __future__ import annotations

from dataclasses import dataclass

from .base import F64, I32, Kind, Masked
from .color import SUMS, Adjust, adjusted
from .promise import CPU, EQUAL, Bound, Promise, Tolerance

__all__ = ["JPEG", "AutoContrast", "Equalize", "Invert", "Posterize", "Sharpness", "Solarize", "SolarizeAdd"]

_STEPS = "one level in its input can become many"
_STEPPED = Tolerance(EQUAL, gain=255, mean_gain=2, reason=_STEPS)


class Sharpness(Adjust):
    """Less of it: the image under the filter 1 1 1, 1 5 1, 1 1 1 over 13, whose outermost pixels stay."""

    PROMISES = (Promise("sharpness", "sharpness", {CPU: adjusted(Bound(1, 0.001), gain=3, mean_gain=2)}),)


@dataclass(frozen=True, eq=False, repr=False)
class Posterize(Masked):
    """Keep the upper ``bits`` of every value, 0 to 8."""

    PROMISES = (Promise("posterize", "posterize", {CPU: _STEPPED}),)

    bits: I32


@dataclass(frozen=True, eq=False, repr=False)
class Solarize(Masked):
    """Invert the values of ``threshold`` and above; in the image's own units."""

    PROMISES = (Promise("solarize", "solarize", {CPU: _STEPPED}),)

    threshold: F64


@dataclass(frozen=True, eq=False, repr=False)
class SolarizeAdd(Masked):
    """Add ``addend``, 0 to 128, to the values below 128 of a uint8 image."""

    PROMISES = (Promise("solarizeadd", "timm's SolarizeAdd", {CPU: _STEPPED}),)

    addend: I32


@dataclass(frozen=True, eq=False, repr=False)
class Invert(Masked):
    """The largest value minus the value."""

    PROMISES = (Promise("invert", "invert", {CPU: Tolerance(EQUAL)}),)


@dataclass(frozen=True, eq=False, repr=False)
class AutoContrast(Masked):
    """Stretch every channel so that its lowest value becomes 0 and its highest the largest."""

    PROMISES = (
        Promise(
            "autocontrast",
            "autocontrast",
            {CPU: Tolerance(Bound(1, 0.1), gain=255, mean_gain=3, reason=f"{SUMS}; {_STEPS}")},
        ),
    )

    kind: Kind = "pil"


@dataclass(frozen=True, eq=False, repr=False)
class Equalize(Masked):
    """Spread every channel so that its histogram is as even as it can be."""

    PROMISES = (
        Promise(
            "equalize",
            "equalize",
            {
                CPU: Tolerance(
                    Bound(1, 0.5),
                    gain=255,
                    mean_gain=3,
                    reason=f"Pillow counts in whole steps, DALI in fractions of them; {_STEPS}",
                )
            },
        ),
    )

    kind: Kind = "pil"


@dataclass(frozen=True, eq=False, repr=False)
class JPEG(Masked):
    """Encode as JPEG of ``quality`` 1 to 100 and decode again."""

    PROMISES = (
        Promise(
            "jpeg",
            "JPEG",
            {CPU: Tolerance(EQUAL, gain=255, mean_gain=2, reason=f"the same libjpeg-turbo; {_STEPS}")},
        ),
    )

    quality: I32
    kind: Kind = "pil"
