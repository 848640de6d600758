"""Blur with torchvision's arguments and distributions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, TypeAlias

import numpy as np

from ..errors import ConfigError
from . import fields
from .fields import Converted, Pair, frozen
from .numbers import between, everywhere
from .ops import Blur, BoxBlur
from .ops.op import F64
from .transform import Images, Ops, Transform

__all__ = ["GaussianBlur", "PILGaussianBlur"]

Deviations: TypeAlias = Converted[float | Sequence[float], tuple[float, float]]


def _odd(value: int | Sequence[int], what: str) -> tuple[int, int]:
    size = fields.pair(value, what)
    if not all(n % 2 for n in size):
        raise ConfigError(f"{what} must be odd, not {value!r}")
    return size


@frozen
class GaussianBlur(Transform):
    """Blur with a Gaussian whose standard deviation is uniform in ``sigma``, (low, high) pixels.

    Args:
        kernel_size: one odd number, or one for x and one for y.
        sigma: (low, high), or one number.

    >>> GaussianBlur(23, sigma=1.5)
    GaussianBlur(kernel_size=(23, 23), sigma=(1.5, 1.5))
    """

    DRAWS: ClassVar[int] = 1

    kernel_size: Pair = Converted(_odd)
    sigma: Converted[float | Sequence[float], tuple[float, float]] = Converted(
        fields.interval(above=0, single=True), default=(0.1, 2.0)
    )

    def resolve(self, u: F64, images: Images) -> tuple[Ops, Images]:
        # Reflection does not repeat the edge pixel, so it reaches at most one pixel less than the side.
        small = (images.width <= self.kernel_size[0] // 2) | (images.height <= self.kernel_size[1] // 2)
        if small.any():
            h, w = images.sizes[int(np.argmax(small))]
            raise self.refuse(
                f"an image of {h}x{w} pixels is too small to reflect half of the kernel at its edges; "
                "use a smaller kernel_size, or put a Resize before it"
            )
        sigma = between(u[:, 0], *self.sigma)
        op = Blur(everywhere(len(u)), sigma, kernel_size=self.kernel_size, kind=images.kind, always=True)
        return (op,), images


@frozen
class PILGaussianBlur(Transform):
    """Blur PIL images with Pillow's ``ImageFilter.GaussianBlur``, as MoCo, SimSiam and DINO do.

    The radius, which is the standard deviation in pixels, is uniform in ``radius`` (low, high). Pillow approximates the
    Gaussian with box filters, which is faster than :class:`GaussianBlur`.

    Takes and returns a PIL image, of the same size.

    Args:
        radius: standard deviation in pixels, or (low, high), of which each image draws one.

    >>> PILGaussianBlur((0.1, 2.0))
    PILGaussianBlur(radius=(0.1, 2.0))
    """

    DRAWS: ClassVar[int] = 1

    radius: Deviations = Converted(fields.interval(0, single=True))

    def resolve(self, u: F64, images: Images) -> tuple[Ops, Images]:
        if images.kind != "pil":
            raise self.refuse("the image is a tensor at this point; put it before ToTensor, or use GaussianBlur")
        return (BoxBlur(everywhere(len(u)), between(u[:, 0], *self.radius), always=True),), images
