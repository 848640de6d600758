"""Ops that change colours."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from .base import F64, I64, HasMask, Kind, Mask, Masked, Op

__all__ = ["Brightness", "Contrast", "Gray", "Hue", "Saturation"]


@dataclass(frozen=True, eq=False)
class Gray(HasMask):
    """Take the colour out of the samples whose mask is set. ``channels`` is 1 only if all masks are set."""

    channels: Literal[1, 3] = 3
    always: bool = False
    kind: Kind = "pil"

    def where(self, mask: Mask, sizes: I64) -> Op:
        if self.channels == 1:
            return Op.where(self, mask, sizes)
        return replace(self, mask=self.mask & mask, always=False)


@dataclass(frozen=True, eq=False)
class Adjust(Masked):
    """Blend with a picture that has less of something: ``less + factor * (image - less)``, clipped, and its fraction
    cut off if the image is uint8 (Pillow's ``ImageEnhance``, and torchvision's ``_blend``)."""

    factor: F64
    kind: Kind = "pil"


class Brightness(Adjust):
    """Less of it: black."""


class Contrast(Adjust):
    """Less of it: the mean of the image in gray; of PIL images rounded."""


class Saturation(Adjust):
    """Less of it: the image in gray."""


@dataclass(frozen=True, eq=False)
class Hue(Masked):
    """Turn the hue of HSV by ``factor`` of the circle, -0.5 to 0.5."""

    factor: F64
    kind: Kind = "pil"
