"""Changes of values and histograms: sharpness, posterize, solarize, invert, autocontrast, equalize."""

from __future__ import annotations

from dataclasses import dataclass

from .color import SUMS, Adjust, adjusted
from .op import F64, I32, Kind, Masked
from .promise import CPU, EQUAL, Bound, Promise, Tolerance

__all__ = ["AutoContrast", "Equalize", "Invert", "Posterize", "Sharpness", "Solarize", "SolarizeAdd"]

_STEPS = "one level in the input can become many"
_STEPPED = Tolerance(EQUAL, gain=255, mean_gain=2, reason=_STEPS)


class Sharpness(Adjust):
    """Blend with the image under the filter 1 1 1, 1 5 1, 1 1 1 divided by 13, whose outermost pixels stay."""

    PROMISES = (Promise("sharpness", "sharpness", {CPU: adjusted(Bound(1, 0.001), gain=3, mean_gain=2)}),)


@dataclass(frozen=True, eq=False, repr=False)
class Posterize(Masked):
    """Keep the upper ``bits`` bits of every value, 0 to 8."""

    PROMISES = (Promise("posterize", "posterize", {CPU: _STEPPED}),)

    bits: I32


@dataclass(frozen=True, eq=False, repr=False)
class Solarize(Masked):
    """Invert values of at least ``threshold``, which is in units of the image."""

    PROMISES = (Promise("solarize", "solarize", {CPU: _STEPPED}),)

    threshold: F64


@dataclass(frozen=True, eq=False, repr=False)
class SolarizeAdd(Masked):
    """Add ``addend``, 0 to 128, to values below 128 of a uint8 image."""

    PROMISES = (Promise("solarizeadd", "timm's SolarizeAdd", {CPU: _STEPPED}),)

    addend: I32


@dataclass(frozen=True, eq=False, repr=False)
class Invert(Masked):
    """Subtract values from the largest possible value."""

    PROMISES = (Promise("invert", "invert", {CPU: Tolerance(EQUAL)}),)


@dataclass(frozen=True, eq=False, repr=False)
class AutoContrast(Masked):
    """Stretch every channel so that its lowest value becomes 0 and its highest the largest possible value."""

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
    """Equalize the histogram of every channel."""

    PROMISES = (
        Promise(
            "equalize",
            "equalize",
            {
                CPU: Tolerance(
                    Bound(1, 0.5),
                    gain=255,
                    mean_gain=3,
                    reason=f"Pillow counts in whole steps, DALI in fractions; {_STEPS}",
                )
            },
        ),
    )

    kind: Kind = "pil"
