"""Transforms of whole batches and their targets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from ..errors import ConfigError
from .base import F64, I64, Images, Transform, resolves
from .geometry import below
from .ops import CutMix as CutMixOp, MixUp as MixUpOp, Op

__all__ = ["CutMix", "MixUp", "beta"]


def beta(alpha: float, u: F64) -> F64:
    """f64[B] distributed as Beta(alpha, alpha), of uniforms u f64[B, 2].

    Bailey's polar method gives Student's t with 2 alpha degrees of freedom, ``t = sqrt(2 alpha (u0^(-1/alpha) - 1))
    cos(2 pi u1)``, and ``1/2 + t / (2 sqrt(2 alpha + t²))`` has the symmetric beta distribution (R. W. Bailey, *Polar
    generation of random variates with the t-distribution*, Math. Comp. 62, 1994; L. Devroye, *Random variate generation
    in one line of code*, WSC 1996). Exact for every alpha, without rejection.
    """
    with np.errstate(divide="ignore", over="ignore"):
        # t² / 2 alpha. For a small alpha it overflows, and the result is 0 or 1 to the last bit.
        square = np.expm1(-np.log(u[:, 0]) / alpha) * np.cos(2 * np.pi * u[:, 1]) ** 2
        rest = 1 / (1 + square)
    low = rest / (2 * (1 + np.sqrt(1 - rest)))  # (1 - sqrt(1 - rest)) / 2, whose digits would cancel
    return np.asarray(np.where(np.cos(2 * np.pi * u[:, 1]) < 0, low, 1 - low))


@dataclass(frozen=True, repr=False, init=False)
class _Mixing(Transform):
    alpha: float
    num_classes: int | None

    def __init__(self, *, alpha: float = 1.0, num_classes: int | None = None, labels_getter: Any = "default"):
        name = type(self).__name__
        if isinstance(alpha, bool) or not isinstance(alpha, (int, float)) or not 0 < alpha < np.inf:
            raise ConfigError(f"{name}: alpha must be a positive number, not {alpha!r}")
        if num_classes is not None and (type(num_classes) is not int or num_classes < 1):
            raise ConfigError(f"{name}: num_classes must be a positive integer or None, not {num_classes!r}")
        if labels_getter not in ("default", None):
            raise ConfigError(
                f"{name}: labels_getter={labels_getter!r}: the labels are the dataset's targets, so leave it out"
            )
        self.set(alpha=float(alpha), num_classes=num_classes)

    @property
    def on_batch(self) -> bool:
        return True

    def _partner(self, images: Images) -> I64:
        """The sample before, of the first one the last: ``roll(1)``, as in torchvision."""
        if images.kind == "pil" or images.dtype == "uint8":
            raise self.refuse("the images are uint8 at this place and must be floats; put ToTensor() before it")
        return np.roll(np.arange(len(images.sizes)), 1)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(alpha={self.alpha!r}, num_classes={self.num_classes!r})"


@dataclass(frozen=True, repr=False, init=False)
class MixUp(_Mixing):
    """``factor * image + (1 - factor) * the image before it in the batch``, and the same of the targets, with one
    factor of Beta(alpha, alpha) for the batch (Zhang et al., *mixup: Beyond Empirical Risk Minimization*, 2018).

    The targets become shares of classes f32[B, num_classes]; ``num_classes`` may be ``None`` where they are that
    already. ``labels_getter`` takes no function: the labels are the dataset's targets.
    """

    DRAWS: ClassVar[int] = 2

    def resolve(self, u: F64, images: Images) -> tuple[tuple[Op, ...], Images]:
        return resolves((MixUpOp(self._partner(images), beta(self.alpha, u), num_classes=self.num_classes),), images)


@dataclass(frozen=True, repr=False, init=False)
class CutMix(_Mixing):
    """A window out of the image before it in the batch, and targets mixed by area (Yun et al., *CutMix*, 2019). The
    window's centre is anywhere; its share of the area is 1 - Beta(alpha, alpha), less what lies outside. One window
    for the batch.
    """

    DRAWS: ClassVar[int] = 4

    def resolve(self, u: F64, images: Images) -> tuple[tuple[Op, ...], Images]:
        partner = self._partner(images)
        half = 0.5 * np.sqrt(1 - beta(self.alpha, u[:, :2]))
        spans = []
        for axis, have in enumerate((images.height, images.width)):
            centre = below(u[:, 2 + axis], have)
            reach = (half * have).astype(np.int64)
            start, end = np.maximum(centre - reach, 0), np.minimum(centre + reach, have)
            spans += [start, end - start]
        top, height, left, width = spans
        factor = 1 - height * width / (images.height * images.width)
        top, left, height, width = (n.astype(np.int32) for n in (top, left, height, width))
        op = CutMixOp(partner, factor, top, left, height, width, self.num_classes)
        return resolves((op,), images)
