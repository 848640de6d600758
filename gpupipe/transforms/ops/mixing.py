"""Ops that mix the samples of a whole batch, together with their targets.

They come last, and apart from all others: see :attr:`gpupipe.types.Plan.mixing`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from .base import F64, I32, I64, Mask, Op
from .promise import ON_BATCH

__all__ = ["CutMix", "MixUp"]


@dataclass(frozen=True, eq=False, repr=False)
class Mixing(Op):
    """What all of them have."""

    PROMISES = (ON_BATCH,)

    partner: I64
    """Rows of the batch: which sample each one is mixed with."""
    factor: F64
    """The sample's own share of image and target; 1 leaves both as they are. The same for the whole batch."""
    num_classes: int | None = field(default=None, kw_only=True)
    """Integer targets become one-hot f32[B, num_classes]; ``None`` if they are shares of classes already."""

    def where(self, mask: Mask, sizes: I64) -> Op:
        return replace(self, factor=np.where(mask, self.factor, 1.0))


class MixUp(Mixing):
    """``factor * image + (1 - factor) * image of partner``, and the same of the targets (Zhang et al., *mixup*,
    2018)."""


@dataclass(frozen=True, eq=False, repr=False)
class CutMix(Mixing):
    """A window is taken from the image of ``partner``, and targets are mixed by area (Yun et al., *CutMix*, 2019):
    ``factor`` is 1 minus the window's share of the area."""

    top: I32
    left: I32
    height: I32
    width: I32

    def where(self, mask: Mask, sizes: I64) -> Op:
        height, width = (np.where(mask, n, 0).astype(np.int32) for n in (self.height, self.width))
        return replace(self, factor=np.where(mask, self.factor, 1.0), height=height, width=width)
