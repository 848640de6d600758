"""Clips: T images with the same numbers, and the layout of a batch of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor

from ..datasets.base import Layout
from ..transforms.ops import Op, Views
from .apply import apply_tail
from .registry import is_arithmetic

__all__ = ["clip_tail", "repeat_per_frame", "to_clip_layout", "unflatten"]


def unflatten(images: Any, shape: tuple[int, ...]) -> Any:
    """[B, T, ...] of [B * T, ...], or a tuple of such."""
    if isinstance(images, tuple):
        return tuple(unflatten(view, shape) for view in images)
    return images.view(*shape, *images.shape[1:])


def repeat_per_frame(ops: Sequence[Op], frames: int) -> tuple[Op, ...]:
    """Ops for B * T images: row i of each for all T frames of clip i."""
    rows: Any = None
    made = []
    for op in ops:
        if op.rows and rows is None:
            rows = np.repeat(np.arange(op.rows), frames)
        made.append(op.take(rows) if op.rows else op)
    return tuple(made)


def to_clip_layout(images: Tensor, frames: int, layout: Layout, memory_format: str) -> Tensor:
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
        what :func:`to_clip_layout` does, or a tuple of such.
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
    return to_clip_layout(
        apply_tail(batch.flatten(0, 1), repeat_per_frame(ops, frames), memory_format), frames, layout, memory_format
    )
