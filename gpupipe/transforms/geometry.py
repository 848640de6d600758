"""Crops, padding and flips: torchvision's rules in numpy, for a whole batch at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal, TypeAlias, cast, get_args

import numpy as np

from ..errors import ConfigError
from . import fields
from .fields import Converted, Fill, Pair, Probability, frozen, is_integer, items
from .numbers import below, filled, i32
from .ops import Crop, Flip
from .ops.op import F64
from .transform import Images, Ops, Transform

__all__ = ["CenterCrop", "Pad", "RandomCrop", "RandomHorizontalFlip", "RandomVerticalFlip"]

PaddingMode = Literal["constant", "edge", "reflect", "symmetric"]
Sides = tuple[int, int, int, int]
"""(left, top, right, bottom)"""

Mode: TypeAlias = Converted[PaddingMode, PaddingMode]


def _sides(value: int | Sequence[int], what: str) -> Sides:
    """Convert torchvision's padding argument to (left, top, right, bottom)."""
    p = items(value)
    if len(p) not in (1, 2, 4) or not all(is_integer(n) and n >= 0 for n in p):
        raise ConfigError(f"{what} must be one, two or four numbers of pixels, none negative, not {value!r}")
    p = p * 4 if len(p) == 1 else p * 2 if len(p) == 2 else p
    return int(p[0]), int(p[1]), int(p[2]), int(p[3])


def known_mode(value: Any, what: str) -> PaddingMode:
    if value not in get_args(PaddingMode):
        raise ConfigError(f"{what} must be one of {', '.join(get_args(PaddingMode))}, not {value!r}")
    return cast(PaddingMode, value)


@frozen
class CenterCrop(Transform):
    """Crop the center ``size`` of the image. Smaller images are padded with zeros, as in torchvision.

    The offset is ``round((height - size) / 2)``, halves to even.

    Args:
        size: height and width, or one number for both.

    >>> CenterCrop(224)
    CenterCrop(size=(224, 224))
    """

    size: Pair = Converted(fields.pair)

    def resolve(self, u: F64, images: Images) -> tuple[Ops, Images]:
        offsets = []
        for have, want in zip((images.height, images.width), self.size, strict=True):
            margin = have - want
            # torchvision pads a smaller image with the smaller half of the missing pixels in front.
            offsets.append(np.where(margin >= 0, np.rint(margin / 2.0).astype(np.int64), -(-margin // 2)))
        height, width = (filled(len(images.sizes), n) for n in self.size)
        crop = Crop(i32(offsets[0]), i32(offsets[1]), i32(height), i32(width), padded=True)
        return (crop,), images.sized(height, width)


@frozen
class Pad(Transform):
    """Pad the image on all sides.

    Args:
        padding: pixels: one number, (left and right, top and bottom), or (left, top, right, bottom).
        fill: value of the new pixels, or one value per channel.
        padding_mode: ``"constant"``, ``"edge"``, ``"reflect"`` or ``"symmetric"``.

    >>> Pad((1, 2), fill=9)
    Pad(padding=(1, 2, 1, 2), fill=(9.0,), padding_mode='constant')
    """

    padding: Converted[int | Sequence[int], Sides] = Converted(_sides)
    fill: Fill = Converted(fields.fill, default=0)
    padding_mode: Mode = Converted(known_mode, default="constant")

    def resolve(self, u: F64, images: Images) -> tuple[Ops, Images]:
        # Padding is a crop whose window begins and ends outside the image.
        left, top, right, bottom = self.padding
        n = len(images.sizes)
        height, width = images.height + top + bottom, images.width + left + right
        crop = Crop(
            i32(filled(n, -top)),
            i32(filled(n, -left)),
            i32(height),
            i32(width),
            padded=True,
            fill=self.fill,
            mode=self.padding_mode,
        )
        return (crop,), images.sized(height, width)


@frozen
class RandomCrop(Transform):
    """Crop a window of ``size`` at a random position, after adding ``padding`` pixels around the image.

    ``pad_if_needed`` pads both sides by the missing pixels, as torchvision does. Without it, an image smaller than
    ``size`` raises an error that names the sizes.

    Args:
        size: height and width, or one number for both.
        padding: pixels to add: for all sides, for (left and right, top and bottom), or for (left, top, right,
            bottom).
        pad_if_needed: pad images that are smaller than the crop, instead of raising an error.
        fill: value of pixels outside the image: a number, or one per channel.
        padding_mode: ``"constant"``, ``"edge"``, ``"reflect"`` or ``"symmetric"``.

    >>> RandomCrop(32, padding=4)
    RandomCrop(size=(32, 32), padding=(4, 4, 4, 4), pad_if_needed=False, fill=(0.0,), padding_mode='constant')
    """

    DRAWS: ClassVar[int] = 2

    size: Pair = Converted(fields.pair)
    padding: Converted[int | Sequence[int] | None, Sides | None] = Converted(fields.optional(_sides), default=None)
    pad_if_needed: bool = False
    fill: Fill = Converted(fields.fill, default=0)
    padding_mode: Mode = Converted(known_mode, default="constant")

    def resolve(self, u: F64, images: Images) -> tuple[Ops, Images]:
        left, top, right, bottom = self.padding or (0, 0, 0, 0)
        start, n = [], len(images.sizes)
        axes = ((images.height, self.size[0], top, bottom), (images.width, self.size[1], left, right))
        for axis, (have, want, before, after) in enumerate(axes):
            padded, shift = have + before + after, filled(n, before)
            if self.pad_if_needed:
                # Like torchvision, pad each side by all that is missing, which leaves room for a random position.
                missing = np.maximum(want - padded, 0)
                padded, shift = padded + 2 * missing, shift + missing
            if (padded < want).any():
                at = int(np.argmax(padded < want))
                raise self.refuse(
                    f"an image of {images.height[at]}x{images.width[at]} pixels is smaller than the crop; "
                    "use pad_if_needed=True, or put a Resize before it"
                )
            # The position counts from the padded image, the op's window from the image itself.
            start.append(below(u[:, axis], padded - want + 1) - shift)
        height, width = (filled(n, s) for s in self.size)
        crop = Crop(
            i32(start[0]),
            i32(start[1]),
            i32(height),
            i32(width),
            # A setting of the graph: it must follow from the arguments, not from the sizes in a batch.
            padded=self.padding is not None or self.pad_if_needed,
            fill=self.fill,
            mode=self.padding_mode,
        )
        return (crop,), images.sized(height, width)


@frozen
class _RandomFlip(Transform):
    DRAWS: ClassVar[int] = 1
    axis: ClassVar[Literal["horizontal", "vertical"]]

    p: Probability = Converted(fields.probability, default=0.5)

    def resolve(self, u: F64, images: Images) -> tuple[Ops, Images]:
        return (Flip(u[:, 0] < self.p, axis=self.axis),), images


class RandomHorizontalFlip(_RandomFlip):
    """Flip left and right with probability ``p``.

    Args:
        p: probability of the change, 0 to 1.

    >>> RandomHorizontalFlip()
    RandomHorizontalFlip(p=0.5)
    """

    axis = "horizontal"


class RandomVerticalFlip(_RandomFlip):
    """Flip top and bottom with probability ``p``.

    Args:
        p: probability of the change, 0 to 1.

    >>> RandomVerticalFlip(0.1)
    RandomVerticalFlip(p=0.1)
    """

    axis = "vertical"
