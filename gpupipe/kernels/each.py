"""Applies ops to a batch on its device, also those that make images of different sizes on the way."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..errors import PipelineError
from ..transforms.ops import Call, Crop, Op, Resize, Views, Warp
from .apply import apply_batch
from .geometry import interpolate
from .registry import different_sizes


def apply_each(batch: Tensor, ops: Sequence[Op], memory_format: str = "contiguous_format") -> Any:
    """Apply ops to a batch [B, C, H, W], which is not modified. Nothing is copied to the host.

    Ops with a form for batches run on all images at once. From a crop to windows of different sizes to the resize that
    makes them equal, ops run image by image.

    Returns [B, C', H', W'] in ``memory_format``, or a tuple of these for several views.

    Raises:
        PipelineError: an op has no form for a batch, or is a function of single images.
        ValueError: images come out in different sizes.
    """
    x: Tensor | list[Tensor] = batch
    at = 0
    while at < len(ops):
        op = ops[at]
        if isinstance(op, Views):
            whole = _joined(x)
            return tuple(apply_each(whole, (*branch, *ops[at + 1 :]), memory_format) for branch in op.branches)
        if isinstance(op, Call) and not op.batch:
            raise PipelineError(
                f"{op.name} is a function of single images, which cannot be applied to a batch on {batch.device}; "
                "wrap it in Lambda(..., batch=True), or augment before the batch is moved"
            )
        end = next((n for n in range(at, len(ops)) if not _at_once(ops[n])), len(ops))
        if isinstance(x, Tensor) and end > at:
            x, at = apply_batch(x, ops[at:end]), end
            continue
        rows = [x[i : i + 1] for i in range(len(x))] if isinstance(x, Tensor) else x
        rows = [_one(row, op.take(slice(i, i + 1)) if op.rows else op) for i, row in enumerate(rows)]
        x = torch.cat(rows) if len({row.shape for row in rows}) == 1 else rows
        at += 1
    return apply_batch(_joined(x), (), memory_format)


def _at_once(op: Op) -> bool:
    """Return whether images of one size go through the op in one call, and come out in one size."""
    if isinstance(op, (Crop, Warp)):
        return bool((op.height == op.height[0]).all() and (op.width == op.width[0]).all())
    return not isinstance(op, (Call, Resize, Views)) or (isinstance(op, Call) and op.batch)


def _one(x: Tensor, op: Op) -> Tensor:
    if not isinstance(op, Resize):
        return apply_batch(x, (op,))
    height, width = int(op.height[0]), int(op.width[0])
    if x.shape[2:] == (height, width):
        return x
    return interpolate(x, height, width, op.interpolation, op.antialias)


def _joined(x: Tensor | list[Tensor]) -> Tensor:
    if isinstance(x, Tensor):
        return x
    raise different_sizes()
