"""Ops that move pixels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from nvidia.dali import fn, types

from ....errors import EngineError
from ....transforms.ops import Crop, Flip, Resize
from .canvas import Array, Canvas, Input, Path, refuse

__all__ = ["crop", "flip", "resize"]

_INTERPOLATION = {
    "nearest": types.INTERP_NN,
    "nearest-exact": types.INTERP_NN,
    "bilinear": types.INTERP_LINEAR,
    "bicubic": types.INTERP_CUBIC,
    "lanczos": types.INTERP_LANCZOS3,
}


def crop(canvas: Canvas, path: Path, op: Crop) -> None:
    if op.mode != "constant":
        raise refuse(op, f'padding_mode={op.mode!r} is not in DALI; use padding_mode="constant"')
    start = canvas.feed(path, "start", types.INT32, 1, lambda op: np.stack([op.top, op.left], axis=1))
    shape = canvas.feed(path, "shape", types.INT32, 1, lambda op: np.stack([op.height, op.width], axis=1))
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


def resize(canvas: Canvas, path: Path, op: Resize) -> None:
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
        canvas.inputs.append(Input("", path, _expect(size)))
    else:
        size = canvas.feed(path, "size", types.FLOAT, 1, _size)
    canvas.image = fn.resize(
        canvas.settle(),
        size=size,
        interp_type=_INTERPOLATION[op.interpolation],
        antialias=op.antialias and op.interpolation not in ("nearest", "nearest-exact"),
    )


def _size(op: Resize) -> Array:
    return np.stack([op.height, op.width], axis=1).astype(np.float32)


def _expect(size: list[int]) -> Callable[[Resize], Array]:
    def check(op: Resize) -> Array:
        if (op.height != size[0]).any() or (op.width != size[1]).any():
            raise EngineError(f"a plan resizes to another size than the {size[0]}x{size[1]} its graph was built for")
        return np.empty(0)

    return check


def flip(canvas: Canvas, path: Path, op: Flip) -> None:
    canvas.flip(op.axis, canvas.feed(path, "mask", types.INT32, 0, lambda op: op.mask.astype(np.int32)))
