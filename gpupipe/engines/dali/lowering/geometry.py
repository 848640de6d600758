"""Crops, resizes and flips."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ....errors import EngineError
from ....transforms import ops
from ....transforms.ops.op import Array
from ..api import fn, types
from .canvas import Canvas, Input, OpAddress
from .registry import canvas_lowering

_INTERPOLATION = {
    "nearest": "INTERP_NN",
    "nearest-exact": "INTERP_NN",
    "bilinear": "INTERP_LINEAR",
    "bicubic": "INTERP_CUBIC",
    "lanczos": "INTERP_LANCZOS3",
}


@canvas_lowering(ops.Crop, unless=lambda op: op.mode != "constant")
def crop(canvas: Canvas, address: OpAddress, op: ops.Crop) -> None:
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


def is_another_filter(op: ops.Resize) -> bool:
    """Return whether torch's filter differs from DALI's.

    On tensors and arrays "nearest" takes other pixels, and torch's bicubic filter without antialias is different.
    """
    if op.interpolation not in _INTERPOLATION:
        return True
    return op.kind != "pil" and (op.interpolation == "nearest" or (op.interpolation == "bicubic" and not op.antialias))


def interpolation_of(name: str) -> Any:
    """Return DALI's interpolation by torchvision's name."""
    return getattr(types, _INTERPOLATION[name])


@canvas_lowering(ops.Resize, far=True, unless=is_another_filter)
def resize(canvas: Canvas, address: OpAddress, op: ops.Resize) -> None:
    size: Any
    if (op.height == op.height[0]).all() and (op.width == op.width[0]).all():
        # Equal for images of all sizes, so it is part of the graph. A plan that disagrees must raise an error.
        size = [int(op.height[0]), int(op.width[0])]
        canvas.inputs.append(Input("", address, _expect(size)))
    else:
        size = canvas.feed(address, "size", types.FLOAT, 1, size_of)
    canvas.image = fn.resize(
        canvas.settle(),
        size=size,
        interp_type=interpolation_of(op.interpolation),
        antialias=op.antialias and op.interpolation not in ("nearest", "nearest-exact"),
    )


def size_of(op: ops.Resize | ops.Warp) -> Array:
    """Return height and width, f32[B, 2]."""
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
