"""Ops that change values and leave pixels where they are."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from .base import F64, I32, I64, U64, Kind, Mask, Masked, Op

__all__ = [
    "JPEG",
    "AutoContrast",
    "Blur",
    "BoxBlur",
    "Brightness",
    "Contrast",
    "Equalize",
    "Erase",
    "Gray",
    "Hue",
    "Invert",
    "Noise",
    "Posterize",
    "Saturation",
    "Sharpness",
    "Solarize",
    "SolarizeAdd",
]


@dataclass(frozen=True, eq=False)
class Gray(Op):
    """Take the colour out of the samples whose mask is set. ``channels`` is 1 only where all masks are set."""

    mask: Mask
    channels: Literal[1, 3] = 3
    always: bool = False
    kind: Kind = "pil"

    def where(self, mask: Mask, sizes: I64) -> Op:
        if self.channels == 1:
            return super().where(mask, sizes)
        return replace(self, mask=self.mask & mask, always=False)


@dataclass(frozen=True, eq=False)
class _Adjust(Masked):
    """Blend with a picture that has less of something: ``less + factor * (image - less)``, clipped, and its fraction
    cut off where the image is uint8 (Pillow's ``ImageEnhance``, and torchvision's ``_blend``)."""

    factor: F64
    kind: Kind = "pil"


class Brightness(_Adjust):
    """Less of it: black."""


class Contrast(_Adjust):
    """Less of it: the mean of the image in gray; of PIL images rounded."""


class Saturation(_Adjust):
    """Less of it: the image in gray."""


class Sharpness(_Adjust):
    """Less of it: the image under the filter 1 1 1, 1 5 1, 1 1 1 over 13, whose outermost pixels stay."""


@dataclass(frozen=True, eq=False)
class Hue(Masked):
    """Turn the hue of HSV by ``factor`` of the circle, -0.5 to 0.5."""

    factor: F64
    kind: Kind = "pil"


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


@dataclass(frozen=True, eq=False)
class Erase(Masked):
    """Overwrite a window of a tensor with ``value``: one for all channels or one each; ``None``: normal noise drawn by
    ``seed`` of the sample, one number per value, or without ``per_pixel`` one per channel."""

    top: I32
    left: I32
    height: I32
    width: I32
    seed: U64
    value: tuple[float, ...] | None = (0.0,)
    per_pixel: bool = True
