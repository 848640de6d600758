"""MixUp and CutMix: what changes a whole batch together with its targets, on its device, the same for all engines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import PipelineError
from ..transforms.ops import CutMix, MixUp, Op

__all__ = ["mix"]


def mix(images: Tensor, target: Any, ops: Sequence[Op]) -> tuple[Tensor, Tensor]:
    """Apply :class:`MixUp` and :class:`CutMix` to a batch.

    Args:
        images: float [B, C, H, W]; left as it is.
        target: i64[B] classes, or shares of classes [B, num_classes].
        ops: a plan's, of these two kinds.

    Returns:
        images, and shares of classes f32[B, num_classes].
    """
    for op in ops:
        assert isinstance(op, (MixUp, CutMix))
        target = _shares(target, op.num_classes)
        if (op.factor == 1).all():
            continue
        partner = torch.from_numpy(op.partner).to(images.device, non_blocking=True)
        images = _blend(images, partner, op.factor) if isinstance(op, MixUp) else _paste(images, partner, op)
        target = _blend(target, partner, op.factor)
    return images, target


def _shares(target: Any, num_classes: int | None) -> Tensor:
    if not isinstance(target, Tensor):
        raise PipelineError(f"MixUp and CutMix need one tensor of targets, not {type(target).__name__}")
    if target.ndim == 1 and not target.is_floating_point():
        if num_classes is None:
            raise PipelineError("MixUp and CutMix of integer targets need num_classes=...")
        return torch.nn.functional.one_hot(target, num_classes).to(torch.float32)
    return target


def _blend(x: Tensor, partner: Tensor, factor: Any) -> Tensor:
    """``factor * x + (1 - factor) * x[partner]``, rounded as torchvision rounds it."""
    return x[partner].mul_(_column(1.0 - factor, x)).add_(x.mul(_column(factor, x)))


def _column(values: Any, x: Tensor) -> Tensor:
    column = torch.from_numpy(np.ascontiguousarray(values)).to(x.dtype)
    return column.to(x.device, non_blocking=True).view(-1, *[1] * (x.ndim - 1))


def _paste(images: Tensor, partner: Tensor, op: CutMix) -> Tensor:
    out = images.clone()
    windows, of = np.unique(np.stack([op.top, op.left, op.height, op.width], axis=1), axis=0, return_inverse=True)
    for k, (top, left, height, width) in enumerate(windows.tolist()):
        if height and width:
            there = (..., slice(top, top + height), slice(left, left + width))
            mine = torch.from_numpy(np.flatnonzero(of.reshape(-1) == k)).to(images.device, non_blocking=True)
            out[(mine, *there)] = images[(partner[mine], *there)]
    return out
