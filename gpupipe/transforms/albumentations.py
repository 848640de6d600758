"""Transforms of albumentations that differ from torchvision's: sizes and windows round differently, and OpenCV resizes.

All other albumentations transforms are translated to torchvision's, which treat arrays as they treat images.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

import numpy as np

from . import fields
from .fields import Converted, Interpolation, Pair, frozen
from .numbers import filled, i32
from .ops import Crop, Dtype, Normalize as NormalizeOp, ToDtype as ToDtypeOp
from .ops.op import F64, I64
from .resize import resized
from .transform import Images, Ops, Transform


@frozen
class ToArray(Transform):
    """Convert images to numpy arrays. Resizes that follow are those of OpenCV, which does not filter when it shrinks.

    >>> ToArray()
    ToArray()
    """

    def resolve(self, u: F64, images: Images) -> tuple[Ops, Images]:
        return (), replace(images, kind="array")


@frozen
class ToTensorV2(Transform):
    """Convert an array to a tensor with channels first, keeping the data type.

    >>> ToTensorV2()
    ToTensorV2()
    """

    def resolve(self, u: F64, images: Images) -> tuple[Ops, Images]:
        return (), replace(images, kind="tensor")


@frozen
class CenterCrop(Transform):
    """Crop the center ``size`` of the image, which must not be smaller. Offsets are rounded down; torchvision rounds to
    nearest.

    Takes and returns a PIL image, or a tensor u8 or float ``[1 or 3, H, W]``, of ``size``.

    Args:
        size: height and width, or one number for both.

    >>> CenterCrop((224, 192))
    CenterCrop(size=(224, 192))
    """

    size: Pair = Converted(fields.pair)

    def resolve(self, u: F64, images: Images) -> tuple[Ops, Images]:
        margins = images.sizes - np.array(self.size)
        if (margins < 0).any():
            height, width = images.sizes[int(np.argmax((margins < 0).any(axis=1)))]
            raise self.refuse(
                f"an image of {height}x{width} pixels is smaller than the crop; put a SmallestMaxSize before it"
            )
        top, left = (margins // 2).T
        height, width = (filled(len(margins), n) for n in self.size)
        return (Crop(i32(top), i32(left), i32(height), i32(width)),), images.sized(height, width)


@frozen
class _MaxSize(Transform):
    """Scale both edges by the same factor and round, halves to even."""

    longest: ClassVar[bool]

    max_size: int
    interpolation: Interpolation = Converted(fields.interpolation, default="bilinear")
    # resized() reads it: OpenCV never filters when it shrinks.
    antialias: ClassVar[bool] = False

    def resolve(self, u: F64, images: Images) -> tuple[Ops, Images]:
        factor = self.max_size / (images.sizes.max(axis=1) if self.longest else images.sizes.min(axis=1))

        def scaled(have: I64) -> I64:
            # A very flat image must not round to an edge of 0.
            edge: I64 = np.maximum(np.rint(have * factor), 1).astype(np.int64)
            return edge

        height, width = scaled(images.height), scaled(images.width)
        return resized(self, images, height, width), images.sized(height, width)


@frozen
class SmallestMaxSize(_MaxSize):
    """Resize so that the shorter edge is ``max_size``. The longer edge is rounded to nearest; torchvision rounds down.

    >>> SmallestMaxSize(256)
    SmallestMaxSize(max_size=256, interpolation='bilinear')
    """

    longest: ClassVar[bool] = False


@frozen
class LongestMaxSize(_MaxSize):
    """Resize so that the longer edge is ``max_size``, keeping the aspect ratio.

    >>> LongestMaxSize(256, "nearest")
    LongestMaxSize(max_size=256, interpolation='nearest')
    """

    longest: ClassVar[bool] = True


@frozen
class ToFloat(Transform):
    """Convert values in [0, 255] to float32 in [0, 1].

    >>> ToFloat()
    ToFloat()
    """

    def resolve(self, u: F64, images: Images) -> tuple[Ops, Images]:
        return _float(images, scale=True), replace(images, dtype="float32")


@frozen
class Normalize(Transform):
    """Compute ``(x - mean) / std`` per channel in float32. Values are not scaled first: bytes stay in [0, 255].

    Takes and returns a float tensor ``[1 or 3, H, W]``.

    Args:
        mean: a number, or one per channel.
        std: a number, or one per channel; not zero.
        inplace: accepted for compatibility with torchvision; it has no effect on the result.

    >>> Normalize((127.5,), (255.0,))
    Normalize(mean=(127.5,), std=(255.0,))
    """

    mean: Converted[float | Sequence[float], tuple[float, ...]] = Converted(fields.floats)
    std: Converted[float | Sequence[float], tuple[float, ...]] = Converted(fields.floats)

    def resolve(self, u: F64, images: Images) -> tuple[Ops, Images]:
        if {len(self.mean), len(self.std)} - {1, images.channels}:
            raise self.refuse(f"{len(self.mean)} means and {len(self.std)} deviations for {images.channels} channel(s)")
        op = NormalizeOp(self.mean, self.std)
        return (*_float(images, scale=False), op), replace(images, dtype="float32")


def _float(images: Images, *, scale: bool) -> Ops:
    wanted: Dtype = "float32"
    # The kind only selects the arithmetic: "pil" divides by 255, "tensor" would multiply by 1/255 and round
    # differently.
    return () if images.dtype == wanted else (ToDtypeOp(wanted, scale=scale, kind="pil"),)
