"""Clips: T images with the same numbers, and the layout of a batch of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor

from ..datasets.base import Layout
from ..transforms.ops import Op, Views
from ..types import Plan
from .apply import Arrays, apply_tail, head_and_tail
from .registry import is_arithmetic
from .stacking import stack_images

__all__ = ["clip_tail", "finish_plan", "lay_out_plan", "repeat_per_frame", "stack_plan"]


def unflatten(images: Any, shape: tuple[int, ...]) -> Any:
    """[B, T, ...] of [B * T, ...], or a tuple of such."""
    if isinstance(images, tuple):
        return tuple(unflatten(view, shape) for view in images)
    return images.view(*shape, *images.shape[1:])


def repeat_per_frame(ops: Sequence[Op], frames: int) -> tuple[Op, ...]:
    """Ops for B * T images: row i of each for all T frames of clip i."""
    if frames == 1:
        return tuple(ops)
    rows: Any = None
    made = []
    for op in ops:
        if op.rows and rows is None:
            rows = np.repeat(np.arange(op.rows), frames)
        made.append(op.take(rows) if op.rows else op)
    return tuple(made)


def _to_clip_layout(images: Tensor, frames: int, layout: Layout, memory_format: str) -> Tensor:
    """A batch of clips out of [B * T, C, H, W].

    Returns [B, C, T, H, W] of ``"CTHW"``, in torch's ``channels_last_3d`` if ``memory_format`` is
    ``"channels_last"``; [B, T, C, H, W] of ``"TCHW"``, each frame in ``memory_format``. Costs a copy only for
    contiguous ``CTHW``.
    """
    clips = images.view(len(images) // frames, frames, *images.shape[1:])
    if layout == "TCHW":
        return clips
    clips = clips.transpose(1, 2)
    return clips if memory_format == "channels_last" else clips.contiguous()


def clip_tail(batch: Any, ops: Sequence[Op], memory_format: str, layout: Layout) -> Any:
    """:func:`~gpupipe.kernels.apply.apply_tail` for clips.

    Args:
        batch: [B, T, H, W, C], or a tuple of such for several views; left as it is.
        ops: with B rows.

    Returns:
        what :func:`_to_clip_layout` does, or a tuple of such.
    """
    if isinstance(batch, tuple):
        (views,) = ops
        assert isinstance(views, Views)
        return tuple(
            clip_tail(b, branch, memory_format, layout) for b, branch in zip(batch, views.branches, strict=True)
        )
    frames, height = batch.shape[1:3]
    if layout == "CTHW" and all(map(is_arithmetic, ops)):
        # To arithmetic on single values a clip is one tall image, which comes out in the order wanted.
        tall = apply_tail(batch.flatten(1, 2), ops, memory_format)
        return tall.unflatten(2, (frames, height))
    return _to_clip_layout(
        apply_tail(batch.flatten(0, 1), repeat_per_frame(ops, frames), memory_format), frames, layout, memory_format
    )


def stack_plan(plan: Plan, images: Sequence[Arrays]) -> Any:
    """The images of a plan as a batch: [B, H, W, C], for clips [B, T, H, W, C], for several views a tuple of these."""
    batch = stack_images(images)
    return batch if plan.frames is None else unflatten(batch, plan.frames.shape)


def finish_plan(plan: Plan, batch: Any, memory_format: str, layout: Layout) -> Any:
    """What :func:`stack_plan` gave, after those of the plan's ops that work on a whole batch.

    Returns [B, C, H, W], for clips what :func:`_to_clip_layout` does, for several views a tuple of these.
    """
    assert plan.ops is not None
    tail = head_and_tail(plan.ops)[1]
    if plan.frames is None:
        return apply_tail(batch, tail, memory_format)
    return clip_tail(batch, tail, memory_format, layout)


def lay_out_plan(plan: Plan, images: Tensor, layout: Layout, memory_format: str) -> Tensor:
    """The finished images [B, C, H, W] of a plan, as they are; the frames [B * T, C, H, W] of clips as
    :func:`_to_clip_layout` has them."""
    return images if plan.frames is None else _to_clip_layout(images, plan.frames.shape[1], layout, memory_format)
