"""A whole pipeline on the graph: as many ops as DALI has, and the rest of them on the finished batch in torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ...errors import PipelineError
from ...transforms.ops import Call, Op, ToDtype, Views
from ..forms import has_batch_form
from .lowering import Canvas, lacks, paint

__all__ = ["GraphEnd", "Output", "cut", "lower"]


@dataclass(frozen=True)
class GraphEnd:
    """Where the graph ends: the number of ops it does, and of several views of each."""

    shared: int
    branches: tuple[int, ...] = ()

    def rest(self, ops: Sequence[Op]) -> tuple[tuple[Op, ...], ...]:
        """What is left for torch, for each output of the graph. ``ops`` are a plan's."""
        if not self.branches:
            return (tuple(ops[self.shared :]),)
        return tuple(branch[n:] for branch, n in zip(ops[self.shared].branches, self.branches, strict=True))

    def names(self, ops: Sequence[Op]) -> list[str]:
        """The ops that torch does, each once."""
        return list(dict.fromkeys(type(op).__name__ for rest in self.rest(ops) for op in rest))


class Output(NamedTuple):
    """One output of the graph."""

    node: Any
    layout: str
    """``"HWC"`` or ``"CHW"``."""
    dtype: str
    """What its values are to be; DALI writes no bfloat16."""


Size = tuple[int, int] | None


def cut(ops: Sequence[Op], common: Callable[[], Size] = lambda: None) -> GraphEnd:
    """Where the graph has to end for a skeleton.

    Args:
        ops: of a pipeline.
        common: asked for the size (height, width) of the images as decoded if it is the same for all, where that
            matters; it may have to look at all of them.

    Raises :class:`PipelineError` naming what neither can do.
    """
    n, size = _reach(ops, None)
    if n == len(ops) - 1 and isinstance(ops[n], Views):
        return GraphEnd(n, tuple(_checked(branch, size, common) for branch in ops[n].branches))
    return GraphEnd(_checked(ops, None, common))


def _checked(ops: Sequence[Op], size: Size, common: Callable[[], Size]) -> int:
    n, size = _reach(ops, size)
    if n == len(ops):
        return n
    first = ops[n]
    named = f"{first.name}" if isinstance(first, Call) else type(first).__name__
    for op in ops[n:]:
        if not has_batch_form(op):
            what = f"{op.name}, a function," if isinstance(op, Call) else type(op).__name__
            after = "" if op is first else f" after {named}, which DALI lacks,"
            raise PipelineError(
                f"the DALI engine cannot run {what}{after} and it has no form for a whole batch; "
                + ("Lambda(..., batch=True) gets the batch on the device; " if isinstance(op, Call) else "")
                + 'put it elsewhere, or use engine="torch"'
            )
    if size is None and (common() is None or any(hasattr(op, "height") for op in ops[:n])):
        raise PipelineError(
            f"the DALI engine cannot run {named} on images of different sizes, because DALI lacks it and it is done on "
            'the whole batch; put a RandomResizedCrop, CenterCrop or Resize((h, w)) before it, or use engine="torch"'
        )
    return n


def _reach(ops: Sequence[Op], size: Size) -> tuple[int, Size]:
    """(how many of the ops DALI can do, size of the image there if it is the same for all)"""
    floats = False
    for n, op in enumerate(ops):
        if lacks(op, floats):
            return n, size
        floats = floats or (isinstance(op, ToDtype) and op.dtype != "uint8")
        size = _after(op, size)
    return len(ops), size


def _after(op: Any, size: Size) -> Size:
    if not hasattr(op, "height"):
        return size
    one = len(np.unique(op.height)) == 1 and len(np.unique(op.width)) == 1
    return (int(op.height[0]), int(op.width[0])) if one else None


def lower(
    canvas: Canvas, ops: Sequence[Op], memory_format: str, common: Callable[[], Size] = lambda: None
) -> tuple[list[Output], GraphEnd]:
    """Put the ops on the canvas: (the outputs, where the graph ends).

    A graph that torch goes on from hands bytes out as they lie, [H, W, C].

    Raises :class:`PipelineError` naming what DALI cannot do.
    """
    where = cut(ops, common)
    paint(canvas, ops[: where.shared])
    if not where.branches:
        return [_finish(canvas, memory_format, whole=where.shared == len(ops))], where
    canvas.settle()  # one decode for all
    outputs = []
    for k, (branch, n) in enumerate(zip(ops[where.shared].branches, where.branches, strict=True)):
        view = canvas.fork()
        paint(view, branch[:n], (where.shared, k))
        outputs.append(_finish(view, memory_format, whole=n == len(branch)))
    return outputs, where


def _finish(canvas: Canvas, memory_format: str, *, whole: bool) -> Output:
    layout = "HWC" if memory_format == "channels_last" or (canvas.dtype == "uint8" and not whole) else "CHW"
    return Output(canvas.finish(layout), layout, canvas.dtype)
