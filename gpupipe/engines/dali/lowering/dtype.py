"""Data type and range of values, which are deferred, so that one operator at the end does both."""

from __future__ import annotations

import numpy as np

from ....transforms import ops
from .canvas import Canvas, OpAddress
from .registry import canvas_lowering


@canvas_lowering(ops.ToDtype)
def to_dtype(canvas: Canvas, address: OpAddress, op: ops.ToDtype) -> None:
    if canvas.dtype == "uint8":
        canvas.arithmetic(np.zeros(1), np.full(1, 255.0 if op.scale else 1.0))
    canvas.dtype = op.dtype


@canvas_lowering(ops.Normalize)
def normalize(canvas: Canvas, address: OpAddress, op: ops.Normalize) -> None:
    canvas.arithmetic(np.array(op.mean), np.array(op.std))
