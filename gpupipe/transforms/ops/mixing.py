"""Ops that mix the samples of a batch, together with their targets.

They run last, separate from all other ops; see :attr:`gpupipe.types.Plan.mixing`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from .op import F64, I32, I64, Mask, Op
from .promise import ON_BATCH

__all__ = ["CutMix", "MixUp"]


@dataclass(frozen=True, eq=False, repr=False)
class Mixing(Op):
    """Base class of mixing ops."""

    PROMISES = (ON_BATCH,)

    partner: I64
    """Row of the batch that each sample is mixed with."""
    factor: F64
    """The sample's own share of image and target, equal for the whole batch. 1 leaves both unchanged."""
    num_classes: int | None = field(default=None, kw_only=True)
    """Number of classes of integer targets, which become one-hot f32[B, num_classes]. ``None`` if targets are class
    shares already."""

    def where(self, mask: Mask, sizes: I64) -> Op:
        return replace(self, factor=np.where(mask, self.factor, 1.0))


class MixUp(Mixing):
    """Compute ``factor * own + (1 - factor) * partner`` for images and targets (Zhang et al., *mixup*, 2018)."""


@dataclass(frozen=True, eq=False, repr=False)
class CutMix(Mixing):
    """Paste a window of the ``partner`` image and mix targets by area (Yun et al., *CutMix*, 2019).

    ``factor`` is 1 minus the window's share of the area.
    """

    top: I32
    left: I32
    height: I32
    width: I32

    def where(self, mask: Mask, sizes: I64) -> Op:
        # A window without pixels pastes nothing.
        height, width = (np.where(mask, n, 0).astype(np.int32) for n in (self.height, self.width))
        return replace(self, factor=np.where(mask, self.factor, 1.0), height=height, width=width)
