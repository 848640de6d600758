"""Transforms that mix the images of a batch and their targets."""

from __future__ import annotations

from dataclasses import KW_ONLY, InitVar
from typing import Any, ClassVar

import numpy as np

from ..errors import ConfigError
from . import fields
from .fields import Converted, frozen
from .numbers import below, i32
from .ops import CutMix as CutMixOp, MixUp as MixUpOp
from .ops.op import F64, I64
from .transform import Images, Ops, Transform

__all__ = ["CutMix", "MixUp"]


def beta(alpha: float, u: F64) -> F64:
    """Draw f64[B] from Beta(alpha, alpha), given uniform numbers u f64[B, 2].

    Bailey's polar method gives Student's t with 2 alpha degrees of freedom, ``t = sqrt(2 alpha (u0^(-1/alpha) - 1))
    cos(2 pi u1)``, and ``1/2 + t / (2 sqrt(2 alpha + t²))`` has the symmetric beta distribution (R. W. Bailey, *Polar
    generation of random variates with the t-distribution*, Math. Comp. 62, 1994; L. Devroye, *Random variate generation
    in one line of code*, WSC 1996). The method is exact for every alpha and rejects nothing.
    """
    with np.errstate(divide="ignore", over="ignore"):
        # t² / 2 alpha. It overflows for a small alpha; the result is then 0 or 1 to the last bit.
        square = np.expm1(-np.log(u[:, 0]) / alpha) * np.cos(2 * np.pi * u[:, 1]) ** 2
        rest = 1 / (1 + square)
    low = rest / (2 * (1 + np.sqrt(1 - rest)))  # (1 - sqrt(1 - rest)) / 2 without cancellation
    # t has the sign of the cosine, and the distribution is symmetric around 1/2.
    return np.asarray(np.where(np.cos(2 * np.pi * u[:, 1]) < 0, low, 1 - low))


@frozen
class _Mixing(Transform):
    _: KW_ONLY
    alpha: Converted[float, float] = Converted(fields.positive, default=1.0)
    num_classes: Converted[int | None, int | None] = Converted(fields.optional(fields.whole(1)), default=None)
    labels_getter: InitVar[Any] = "default"

    def __post_init__(self, labels_getter: Any) -> None:
        if labels_getter not in ("default", None):
            raise ConfigError(
                f"{type(self).__name__}: labels_getter={labels_getter!r} is not supported: labels are the dataset's "
                "targets; remove it"
            )

    @property
    def on_batch(self) -> bool:
        return True

    def _partner(self, images: Images) -> I64:
        """Return the previous sample of each one, and the last for the first: ``roll(1)``, as in torchvision."""
        if images.kind == "pil" or images.dtype == "uint8":
            raise self.refuse("the images are uint8 at this point and must be floats; put ToTensor() before it")
        return np.roll(np.arange(len(images.sizes)), 1)


@frozen
class MixUp(_Mixing):
    """Mix each image and its target with the previous one in the batch (Zhang et al., *mixup*, 2018).

    The result is ``factor * x + (1 - factor) * previous``, with one factor per batch drawn from Beta(alpha, alpha).
    Targets become class shares f32[B, num_classes]; ``num_classes`` may be ``None`` if they have that form already.
    ``labels_getter`` must keep its default, because labels are the dataset's targets.

    Takes a batch of images, float ``[B, C, H, W]``, with targets i64 ``[B]`` or f32 ``[B, num_classes]``, and returns
    images of that shape with targets f32 ``[B, num_classes]``.

    Args:
        alpha: parameter of the distribution of the factor; 1 is uniform.
        num_classes: number of classes, if targets are class numbers.
        labels_getter: must keep its default.

    >>> MixUp(alpha=0.2, num_classes=1000)
    MixUp(alpha=0.2, num_classes=1000)
    """

    DRAWS: ClassVar[int] = 2

    def resolve(self, u: F64, images: Images) -> tuple[Ops, Images]:
        return (MixUpOp(self._partner(images), beta(self.alpha, u), num_classes=self.num_classes),), images


@frozen
class CutMix(_Mixing):
    """Paste a window of the previous image of the batch, and mix targets by area (Yun et al., *CutMix*, 2019).

    All images of the batch use the same window. Its center is uniform; its share of the area is 1 - Beta(alpha, alpha),
    less the part outside the image. Arguments are those of :class:`MixUp`.

    Takes a batch of images, float ``[B, C, H, W]``, with targets i64 ``[B]`` or f32 ``[B, num_classes]``, and returns
    images of that shape with targets f32 ``[B, num_classes]``.

    Args:
        alpha: parameter of the distribution of the area; 1 is uniform.
        num_classes: number of classes, if targets are class numbers.
        labels_getter: must keep its default.

    >>> CutMix(num_classes=1000)
    CutMix(alpha=1.0, num_classes=1000)
    """

    DRAWS: ClassVar[int] = 4

    def resolve(self, u: F64, images: Images) -> tuple[Ops, Images]:
        partner = self._partner(images)
        # A window that covers 1 - factor of the area has the square root of that share along both sides.
        half = 0.5 * np.sqrt(1 - beta(self.alpha, u[:, :2]))
        spans = []
        for axis, have in enumerate((images.height, images.width)):
            center = below(u[:, 2 + axis], have)
            reach = (half * have).astype(np.int64)
            start, end = np.maximum(center - reach, 0), np.minimum(center + reach, have)
            spans += [start, end - start]
        top, height, left, width = spans
        factor = 1 - height * width / (images.height * images.width)  # of the part inside the image
        op = CutMixOp(partner, factor, *map(i32, (top, left, height, width)), num_classes=self.num_classes)
        return (op,), images
