"""Gaussian blur as two one-dimensional filters, which takes a third of the time of ``gaussian_blur``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ....transforms import ops
from ....transforms.ops.op import Array
from ..api import fn, types
from .canvas import Selected
from .registry import lowering


@lowering(ops.Blur)
def blur(drawn: Selected, op: ops.Blur) -> Any:
    out = drawn.image  # the filter is symmetric, so flips may be deferred
    width, height = op.kernel_size
    for name, size, axis in (("across", width, 1), ("down", height, 0)):
        kernel = drawn.number(name, types.FLOAT, 2, _kernels(size, axis))
        out = fn.filter(out, drawn.beside(kernel), dtype=types.FLOAT)
    return fn.cast(out, dtype=types.UINT8) if drawn.canvas.dtype == "uint8" else out


def _kernels(size: int, axis: int) -> Callable[[ops.Blur], Array]:
    """f32[B, 1, size] or f32[B, size, 1]: normalized Gaussians, reflected at the edges without repeating them."""

    def read(op: ops.Blur) -> Array:
        place = np.arange(size) - size // 2
        weight = np.exp(-(place**2) / (2 * op.sigma[:, None] ** 2))
        return np.expand_dims(weight / weight.sum(axis=1, keepdims=True), 2 - axis).astype(np.float32)

    return read
