"""Changes of color."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from .op import F64, I32, I64, Dtype, HasMask, Kind, Mask, Masked, Op
from .promise import CPU, EQUAL, Bound, Promise, Tolerance

__all__ = ["Brightness", "ChannelPermutation", "Contrast", "Gray", "Hue", "Saturation"]

SUMS = "sums close to a whole number truncate differently"
_GRAYS = "torchvision truncates the gray value, DALI rounds it"


def adjusted(bound: Bound, *, gain: float, mean_gain: float = 1.5, why: str = SUMS) -> Tolerance:
    """Return the tolerance of a blend, which multiplies differences by its factor."""
    return Tolerance(bound, gain=gain, mean_gain=mean_gain, reason=f"for factors of up to 2: {why}")


@dataclass(frozen=True, eq=False, repr=False)
class Gray(HasMask):
    """Convert the samples in the mask to grayscale. ``channels`` is 1 only if the mask selects all samples."""

    PROMISES = (
        Promise(
            "gray pil",
            "grayscale of PIL images",
            {
                CPU: Tolerance(
                    Bound(1, 0.01), reason="sums 0.299 R + 0.587 G + 0.114 B that end in .5 round differently"
                )
            },
        ),
        Promise(
            "gray tensor",
            "grayscale of tensors",
            {CPU: Tolerance(Bound(1, 1), reason="torchvision truncates, DALI rounds")},
        ),
    )

    channels: Literal[1, 3] = 3
    always: bool = False
    kind: Kind = "pil"

    def promise(self, dtype: Dtype) -> str:
        return f"gray {self.kind}"

    def where(self, mask: Mask, sizes: I64) -> Op:
        # A batch cannot have one channel in some images only: raise.
        if self.channels == 1:
            return Op.where(self, mask, sizes)
        return replace(self, mask=self.mask & mask, always=False)


@dataclass(frozen=True, eq=False, repr=False)
class Adjust(Masked):
    """Blend with a reduced image: ``reduced + factor * (image - reduced)``, clipped, and truncated if the image is
    uint8.

    This is Pillow's ``ImageEnhance`` and torchvision's ``_blend``.
    """

    factor: F64
    kind: Kind = "pil"


class Brightness(Adjust):
    """Blend with black."""

    PROMISES = (Promise("brightness", "brightness", {CPU: adjusted(Bound(1, 0.01), gain=2)}),)


class Contrast(Adjust):
    """Blend with the mean gray value of the image, rounded for PIL images."""

    PROMISES = (
        Promise("contrast pil", "contrast of PIL images", {CPU: adjusted(Bound(1, 0.01), gain=3)}),
        Promise("contrast tensor", "contrast of tensors", {CPU: adjusted(Bound(1, 1), gain=3, why=_GRAYS)}),
    )

    def promise(self, dtype: Dtype) -> str:
        return f"contrast {self.kind}"


class Saturation(Adjust):
    """Blend with the image in grayscale."""

    PROMISES = (
        Promise("saturation pil", "saturation of PIL images", {CPU: adjusted(Bound(1, 0.01), gain=3)}),
        Promise("saturation tensor", "saturation of tensors", {CPU: adjusted(Bound(1, 0.5), gain=3, why=_GRAYS)}),
    )

    def promise(self, dtype: Dtype) -> str:
        return f"saturation {self.kind}"


@dataclass(frozen=True, eq=False, repr=False)
class Hue(Masked):
    """Rotate the hue of HSV by ``factor`` of the circle, -0.5 to 0.5."""

    PROMISES = (
        Promise(
            "hue",
            "hue",
            {
                CPU: Tolerance(
                    EQUAL,
                    gain=4,
                    mean_gain=2,
                    reason="the same code on the batch; one level in a pale color can turn its hue",
                )
            },
        ),
    )

    factor: F64
    kind: Kind = "pil"


@dataclass(frozen=True, eq=False, repr=False)
class ChannelPermutation(Masked):
    """Reorder the channels: channel k becomes the previous channel ``permutation[:, k]``, i32[B, C]."""

    PROMISES = (Promise("channelpermutation", "channel permutation", {CPU: Tolerance(EQUAL)}),)

    permutation: I32
