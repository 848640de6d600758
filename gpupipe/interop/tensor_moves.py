"""Functions of torch that move the pixels of a tensor [C, H, W], as ops."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
from torch import Tensor, flip, rot90

from ..transforms.matrices import rotation_warp
from ..transforms.ops import Crop, Flip, Op
from ..transforms.transform import Images

__all__ = ["MOVES"]

_Move = Callable[[int, int], Op | None]
"""Returns the op with one row for an image of (height, width)."""
_ON = np.ones(1, np.bool_)
_AXES: dict[Any, Literal["horizontal", "vertical"]] = {
    (-1,): "horizontal", (2,): "horizontal", (-2,): "vertical", (1,): "vertical",
}  # fmt: skip


def _flipped(*dims: Any, **named: Any) -> _Move | None:
    """Read ``tensor.flip(dim)``."""
    dims = named.get("dims", dims)
    dims = tuple(dims[0]) if len(dims) == 1 and isinstance(dims[0], (list, tuple)) else tuple(dims)
    axis = _AXES.get(dims)
    return None if axis is None else lambda height, width: Flip(_ON, axis)


def _turned(k: int = 1, dims: Any = (0, 1)) -> _Move | None:
    """Read ``tensor.rot90(k, (1, 2))``."""
    axes = [_AXES.get((dim,)) for dim in dims]
    if len(axes) != 2 or None in axes or axes[0] == axes[1]:
        return None
    angle = 90.0 * (operator.index(k) * (1 if axes[0] == "vertical" else -1) % 4)

    def op(height: int, width: int) -> Op:
        images = Images(np.array([[height, width]], np.int64), kind="tensor")
        return rotation_warp(images, _ON, angle=angle, expand=True)

    return op


def _window(key: Any) -> _Move | None:
    """Read ``tensor[:, top:bottom, left:right]``."""
    if type(key) is not tuple or len(key) != 3 or not (key[0] is ... or key[0] == slice(None)):
        return None
    if any(type(part) is not slice or part.step is not None for part in key[1:]):
        return None

    def op(height: int, width: int) -> Op | None:
        (top, bottom, _), (left, right, _) = key[1].indices(height), key[2].indices(width)
        at, size = (top, left), (bottom - top, right - left)
        y, x, h, w = (np.array([n], np.int32) for n in (*at, *size))
        return Crop(y, x, h, w) if min(size) > 0 else None

    return op


MOVES: dict[Any, Callable[..., _Move | None]] = {
    Tensor.flip: _flipped,
    flip: _flipped,
    Tensor.rot90: _turned,
    rot90: _turned,
    Tensor.__getitem__: _window,
}
"""What reads the arguments after the tensor, by function. ``None``: no op does this."""
