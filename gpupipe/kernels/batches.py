"""Batches of samples with one or more pictures each, which share the numbers of a plan."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..media import Medium
from ..transforms.ops import Op, Views
from ..types import Plan
from .apply import Arrays, apply_tail, head_and_tail
from .registry import is_arithmetic
from .stacking import stack_images


def repeat_rows(ops: Sequence[Op], count: int) -> tuple[Op, ...]:
    """Return ops for B * ``count`` pictures, in which row i of each op applies to all pictures of sample i."""
    if count == 1:
        return tuple(ops)
    rows: Any = None
    made = []
    for op in ops:
        if op.rows and rows is None:
            rows = np.repeat(np.arange(op.rows), count)
        made.append(op.take(rows) if op.rows else op)
    return tuple(made)


def stack_plan(plan: Plan, pictures: Sequence[Arrays]) -> Any:
    """Stack the pictures of a plan to a batch [B, T, H, W, C], without T if it is 1; a tuple of batches for several
    views."""
    return _unflatten(stack_images(pictures), plan.pictures)


def finish_plan(plan: Plan, batch: Any, memory_format: str, medium: Medium) -> Any:
    """Apply the plan's batch ops to the result of :func:`stack_plan`.

    Returns [B, C, H, W], or for clips the layout of :meth:`gpupipe.media.Clip.arrange`; a tuple of these for several
    views.
    """
    assert plan.ops is not None
    return _finished(batch, head_and_tail(plan.ops)[1], plan.pictures, memory_format, medium)


def _finished(batch: Any, ops: Sequence[Op], count: int, memory_format: str, medium: Medium) -> Any:
    if isinstance(batch, tuple):
        (views,) = ops
        assert isinstance(views, Views)
        pairs = zip(batch, views.branches, strict=True)
        return tuple(_finished(b, branch, count, memory_format, medium) for b, branch in pairs)
    if count == 1:
        return medium.arrange(apply_tail(batch, ops, memory_format), count, memory_format)
    if all(map(is_arithmetic, ops)):
        # Arithmetic on single values can treat a clip as one tall image, and write the requested layout.
        turned = medium.turn(apply_tail(batch.flatten(1, 2), ops, memory_format), count)
        if turned is not None:
            return turned
    pictures = apply_tail(batch.flatten(0, 1), repeat_rows(ops, count), memory_format)
    return medium.arrange(pictures, count, memory_format)


def _unflatten(pictures: Any, count: int) -> Any:
    if isinstance(pictures, tuple):
        return tuple(_unflatten(view, count) for view in pictures)
    return pictures if count == 1 else pictures.unflatten(0, (-1, count))
