"""Checks of ops before anything is read."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import PipelineError
from ..transforms.ops import Gray, Op, ToDtype, Views
from .apply import head_and_tail


def check_ops(ops: Sequence[Op]) -> None:
    """Raise :class:`PipelineError` if :func:`~gpupipe.kernels.apply.apply_sample` and
    :func:`~gpupipe.kernels.apply.apply_tail` cannot run the ops on images of three channels."""
    _check_head(head_and_tail(ops)[0], 3)


def _check_head(head: Sequence[Op], channels: int) -> None:
    for op in head:
        if isinstance(op, Views):
            for branch in op.branches:
                _check_head(branch, channels)
        if isinstance(op, Gray):
            channels = op.channels
        fill = getattr(op, "fill", None) or ()
        if len(fill) not in (0, 1, channels):
            raise PipelineError(f"fill={fill} has {len(fill)} values for an image of {channels} channel(s)")
        if isinstance(op, ToDtype) and op.dtype == "bfloat16":
            raise PipelineError(
                "ToDtype(bfloat16): single images on the host cannot be bfloat16; put it at the end, with only "
                "Normalize and RandomErasing after it"
            )
