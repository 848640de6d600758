"""Clips: T images with the same numbers. Decoded by PyAV in a worker, and put into the layout of their dataset."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from typing import Any

import numpy as np
from torch import Tensor

from ...datasets.base import Dataset, Layout
from ...datasets.video.decode import decode_clip
from ...planning import complete
from ...transforms.compose import Compose
from ...transforms.ops import Op, Views
from ...types import Plan
from .apply import apply_sample, apply_tail, split
from .forms import POINTWISE
from .jobs import Decoded, bad_sample, stacked

__all__ = ["DecodeClips", "arranged", "clip_reference", "clip_tail", "pyav_version", "spread"]


@dataclass(frozen=True)
class DecodeClips:
    """The job of :class:`~gpupipe.engines.torch.jobs.Decode` for clips: images are u8[B, T, H, W, C]."""

    dataset: Dataset
    pipeline: Compose

    def __call__(self, plan: Plan) -> Decoded:
        dataset = self.dataset
        bad = dataset.bad(plan.indices)
        if bad:
            return Decoded(None, None, None, bad)
        plan = complete(plan, self.pipeline)
        assert plan.ops is not None and plan.frames is not None
        head = split(plan.ops)[0]
        images: list[Any] = []
        for row, index in enumerate(plan.indices.tolist()):
            try:
                clip = decode_clip(dataset.entry(index), plan.frames[row], upright=dataset.upright)
                images.extend(apply_sample(frame, head, row) for frame in clip)
            except Exception as e:
                bad.append(bad_sample(dataset, index, e))
        if bad:
            return Decoded(None, None, None, bad)
        return Decoded(_unflatten(stacked(images), plan.frames.shape), None, None, [])


def clip_reference(dataset: Dataset, plan: Plan, pipeline: Compose) -> Any:
    """:func:`~gpupipe.engines.torch.apply.reference` of clips."""
    plan = complete(plan, pipeline)
    assert plan.ops is not None and plan.frames is not None
    head, tail = split(plan.ops)
    images = [
        apply_sample(frame, head, row)
        for row, index in enumerate(plan.indices.tolist())
        for frame in decode_clip(dataset.entry(index), plan.frames[row], upright=dataset.upright)
    ]
    return clip_tail(_unflatten(stacked(images), plan.frames.shape), tail, pipeline.memory_format, dataset.layout)


def pyav_version() -> str:
    """What decodes, with its version."""
    return f"PyAV {metadata.version('av')}"


def _unflatten(images: Any, shape: tuple[int, ...]) -> Any:
    """[B, T, ...] of [B * T, ...], or a tuple of such."""
    if isinstance(images, tuple):
        return tuple(_unflatten(view, shape) for view in images)
    return images.view(*shape, *images.shape[1:])


def spread(ops: Sequence[Op], frames: int) -> tuple[Op, ...]:
    """Ops for B * T images: row i of each for all T frames of clip i."""
    rows: Any = None
    made = []
    for op in ops:
        numbers = _numbers(op)
        if numbers and rows is None:
            rows = np.repeat(np.arange(numbers), frames)
        made.append(op.take(rows) if numbers else op)
    return tuple(made)


def _numbers(op: Op) -> int:
    """How many rows an op has; 0 where it has none."""
    for values in op.numbers().values():
        return len(values)
    branches = getattr(op, "branches", ())
    return max((_numbers(inner) for branch in branches for inner in branch), default=0)


def arranged(images: Tensor, frames: int, layout: Layout, memory_format: str) -> Tensor:
    """A batch of clips out of [B * T, C, H, W].

    Returns [B, C, T, H, W] of ``"CTHW"``, in torch's ``channels_last_3d`` where ``memory_format`` is
    ``"channels_last"``; [B, T, C, H, W] of ``"TCHW"``, each frame in ``memory_format``. Costs a copy only for
    contiguous ``CTHW``.
    """
    clips = images.view(len(images) // frames, frames, *images.shape[1:])
    if layout == "TCHW":
        return clips
    clips = clips.transpose(1, 2)
    return clips if memory_format == "channels_last" else clips.contiguous()


def clip_tail(batch: Any, ops: Sequence[Op], memory_format: str, layout: Layout) -> Any:
    """:func:`~gpupipe.engines.torch.apply.apply_tail` for clips.

    Args:
        batch: [B, T, H, W, C], or a tuple of such for several views; left as it is.
        ops: with B rows.

    Returns:
        what :func:`arranged` does, or a tuple of such.
    """
    if isinstance(batch, tuple):
        (views,) = ops
        assert isinstance(views, Views)
        return tuple(
            clip_tail(b, branch, memory_format, layout) for b, branch in zip(batch, views.branches, strict=True)
        )
    frames, height = batch.shape[1:3]
    if layout == "CTHW" and all(isinstance(op, POINTWISE) for op in ops):
        # To arithmetic on single values a clip is one tall image, which comes out in the order wanted.
        tall = apply_tail(batch.flatten(1, 2), ops, memory_format)
        return tall.unflatten(2, (frames, height))
    return arranged(apply_tail(batch.flatten(0, 1), spread(ops, frames), memory_format), frames, layout, memory_format)
