"""A whole pipeline on the graph, up to where the graph ends (:mod:`.graph_end`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from ...transforms.ops import Op
from .graph_end import GraphEnd
from .lowering import Canvas, paint


class Output(NamedTuple):
    """One output of the graph."""

    node: Any
    layout: str
    """``"HWC"`` or ``"CHW"``."""
    dtype: str
    """Data type of the values; DALI cannot write bfloat16."""


def lower(canvas: Canvas, ops: Sequence[Op], memory_format: str, end: GraphEnd) -> list[Output]:
    """Put the ops on the canvas: the outputs, one for each view that the graph makes.

    A graph that is gone on from hands bytes out as they lie, [H, W, C].
    """
    paint(canvas, ops[: end.shared])
    if not end.branches:
        return [_finish(canvas, memory_format, whole=end.shared == len(ops))]
    canvas.settle()  # one decode for all
    outputs = []
    for k, (branch, n) in enumerate(zip(ops[end.shared].branches, end.branches, strict=True)):
        view = canvas.fork()
        paint(view, branch[:n], (end.shared, k))
        outputs.append(_finish(view, memory_format, whole=n == len(branch)))
    return outputs


def _finish(canvas: Canvas, memory_format: str, *, whole: bool) -> Output:
    layout = "HWC" if memory_format == "channels_last" or (canvas.dtype == "uint8" and not whole) else "CHW"
    return Output(canvas.finish(layout), layout, canvas.dtype)
