"""Crops, resizes and flips."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from nvidia.dali import fn, types

from ....errors import EngineError
from ....transforms import ops
from ....transforms.ops.base import Array
from .canvas import Canvas, Input, OpAddress, refuse
from .registry import canvas_lowering

_INTERPOLATION = {
    "nearest": types.INTERP_NN,
    "nearest-exact": types.INTERP_NN,
    "bilinear": types.INTERP_LINEAR,
    "bicubic": types.INTERP_CUBIC,
    "lanczos": types.INTERP_LANCZOS3,
}


@canvas_lowering(ops.Crop)
def crop(canvas: Canvas, address: OpAddress, op: ops.Crop) -> None:
    if op.mode != "constant":
        raise refuse(op, f'padding_mode={op.mode!r} is not in DALI; use padding_mode="constant"')
    start = canvas.feed(address, "start", types.INT32, 1, lambda op: np.stack([op.top, op.left], axis=1))
    shape = canvas.feed(address, "shape", types.INT32, 1, lambda op: np.stack([op.height, op.width], axis=1))
    if op.padded:
        canvas.image = fn.slice(
            canvas.settle(),
            start=start,
            shape=shape,
            axes=[0, 1],
            out_of_bounds_policy="pad",
            fill_values=list(op.fill),
        )
    else:
        canvas.window(start, shape)


@canvas_lowering(ops.Resize)
def resize(canvas: Canvas, address: OpAddress, op: ops.Resize) -> None:
    if op.interpolation not in _INTERPOLATION:
        raise refuse(op, f"interpolation {op.interpolation!r} is not in DALI; use bilinear, bicubic or lanczos")
    if op.kind == "tensor" and op.interpolation == "nearest":
        raise refuse(op, 'on a tensor, torch\'s "nearest" takes other pixels than DALI; use "nearest-exact"')
    if op.kind == "tensor" and op.interpolation == "bicubic" and not op.antialias:
        raise refuse(op, "without antialias, torch's bicubic filter is another one than DALI's; use antialias=True")
    size: Any
    if (op.height == op.height[0]).all() and (op.width == op.width[0]).all():
        # The same for images of all sizes, so it belongs to the graph; a plan that disagrees must not pass silently.
        size = [int(op.height[0]), int(op.width[0])]
        canvas.inputs.append(Input("", address, _expect(size)))
    else:
        size = canvas.feed(address, "size", types.FLOAT, 1, _size)
    canvas.image = fn.resize(
        canvas.settle(),
        size=size,
        interp_type=_INTERPOLATION[op.interpolation],
        antialias=op.antialias and op.interpolation not in ("nearest", "nearest-exact"),
    )


def _size(op: ops.Resize) -> Array:
    return np.stack([op.height, op.width], axis=1).astype(np.float32)


def _expect(size: list[int]) -> Callable[[ops.Resize], Array]:
    def check(op: ops.Resize) -> Array:
        if (op.height != size[0]).any() or (op.width != size[1]).any():
            raise EngineError(f"a plan resizes to another size than the {size[0]}x{size[1]} its graph was built for")
        return np.empty(0)

    return check


@canvas_lowering(ops.Flip)
def flip(canvas: Canvas, address: OpAddress, op: ops.Flip) -> None:
    canvas.flip(op.axis, canvas.feed(address, "mask", types.INT32, 0, lambda op: op.mask.astype(np.int32)))
