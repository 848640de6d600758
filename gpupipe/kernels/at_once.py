"""Crops, resizes and flips of bytes, with the arithmetic after them, in one call that releases Python's lock.

A thread that calls several torch functions in a row takes Python's lock between the calls, and waits for threads that
hold it. For one image these waits cost as much as half of the work. A TorchScript function is a single call to the same
torch functions, and returns the same values.
"""

# torch.jit needs annotations as objects, so they must not become strings.
import os
import warnings
from collections.abc import Callable, Sequence
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from ..transforms.ops import Crop, Flip, Normalize, Op, Resize, ToDtype
from ..transforms.ops.op import Array
from .dtype import constant
from .geometry import resizes_by_torch
from .picture import nchw

_CROP, _BILINEAR, _BICUBIC, _SIDEWAYS, _UPSIDE_DOWN = range(5)
"""Kinds of steps. TorchScript code uses the numbers directly."""


def _put(
    x: Tensor, steps: list[int], planar: bool, out: Tensor, scale: int, normalizes: bool, mean: Tensor, std: Tensor
) -> None:
    """Apply ``steps`` and arithmetic to an image u8[1, C, H, W], which is not modified, and write it to ``out`` [C, h,
    w].

    Args:
        steps: five numbers per step: its kind, then top, left, height and width of a crop, or height and width of a
            resize.
        planar: whether each channel of ``out`` is contiguous.
        scale: 0 keeps values, 1 divides by 255, 2 multiplies by 1/255.
    """
    for k in range(0, len(steps), 5):
        kind, a, b, c, d = steps[k], steps[k + 1], steps[k + 2], steps[k + 3], steps[k + 4]
        if kind == 0:
            # Copy, because torch does not detect the memory layout of a window, and then resizes half as fast.
            x = x[:, :, a : a + c, b : b + d].contiguous(memory_format=torch.channels_last)
        elif kind == 1:
            x = torch.ops.aten._upsample_bilinear2d_aa(x, [a, b], False, None, None)
        elif kind == 2:
            x = torch.ops.aten._upsample_bicubic2d_aa(x, [a, b], False, None, None)
        else:
            if planar:  # mirroring rows of single bytes is faster
                x = x.contiguous()
            x = x.flip(-1 if kind == 3 else -2)
    if planar:  # reordering bytes is faster than reordering floats
        x = x.contiguous()
    out.copy_(x[0])
    if scale == 1:
        out.div_(255.0)
    elif scale == 2:
        out.mul_(1.0 / 255)
    if normalizes:
        out.sub_(mean).div_(std)


@lru_cache
def _compiled() -> Callable[..., None]:
    """Return :func:`_put` compiled by TorchScript.

    Return the plain function, which takes the lock between calls, in a forked child without source to compile, or if
    torch no longer has TorchScript, which is deprecated.
    """
    if _is_forked:
        return _put
    try:
        with warnings.catch_warnings():
            for kind in (DeprecationWarning, FutureWarning):  # torch's releases differ
                warnings.simplefilter("ignore", kind)
            compiled: Callable[..., None] = torch.jit.script(_put)
            return compiled
    except (AttributeError, OSError, RuntimeError):
        return _put


_is_forked = False
"""Whether threads of the parent may have held TorchScript's locks during a fork. A child can never release them: of 300
children beside three threads, two waited forever."""


def _in_forked_child() -> None:
    global _is_forked
    _is_forked |= _compiled.cache_info().currsize > 0
    _compiled.cache_clear()


os.register_at_fork(after_in_child=_in_forked_child)


class Moves:
    """Crops, resizes and flips of a batch's images, as steps of :meth:`AtOnce.put`.

    Args:
        ops: with a row for each image; see :meth:`last_of`.
    """

    def __init__(self, ops: Sequence[Op]):
        self.ops = ops
        self._numbers = [_numbers(op) for op in ops]

    @staticmethod
    def last_of(ops: Sequence[Op]) -> int:
        """Return how many of the last ops can be steps."""
        n = len(ops)
        while n and _can_move(ops[n - 1]):
            n -= 1
        return len(ops) - n

    def steps(self, image: Array, row: int) -> tuple[list[int], tuple[int, int]] | None:
        """Return the steps of image ``row`` and its resulting (height, width).

        Return ``None`` if they cannot be run at once, because the image does not consist of bytes or a window exceeds
        it.
        """
        if image.dtype != np.uint8 or image.ndim != 3:
            return None
        steps: list[int] = []
        height, width = image.shape[:2]
        for kind, rows in self._numbers:
            numbers = rows[row]
            if kind == _CROP:
                top, left, h, w = numbers
                if top < 0 or left < 0 or top + h > height or left + w > width:
                    return None
                needed = (h, w) != (height, width)
                height, width = h, w
            elif kind in (_BILINEAR, _BICUBIC):
                needed = numbers[:2] != [height, width]
                height, width = numbers[:2]
            else:
                needed = bool(numbers[0])
            if needed:
                steps += (kind, *numbers)
        return steps, (height, width)


class AtOnce:
    """Writes images to their places in a batch. Thread-safe.

    Args:
        tail: arithmetic; see :meth:`first_of`.
        layout: memory format of the places.
    """

    def __init__(self, tail: Sequence[Op], layout: torch.memory_format):
        self._run = _compiled()
        self._planar = layout is torch.contiguous_format
        self._scale, self._normalizes, self._mean, self._std = 0, False, _NONE, _NONE
        for op in tail:
            if isinstance(op, ToDtype):
                self._scale = 1 if op.kind == "pil" else 2
            elif isinstance(op, Normalize):
                cpu = torch.device("cpu")
                self._normalizes = True
                self._mean, self._std = (constant(values, torch.float32, cpu) for values in (op.mean, op.std))

    @staticmethod
    def first_of(tail: Sequence[Op]) -> int:
        """Return how many of the first ops this class supports: conversion of bytes to float32 in [0, 1], and
        normalization."""
        if not tail or not isinstance(first := tail[0], ToDtype) or not first.scale or first.dtype != "float32":
            return 0
        return 1 + (len(tail) > 1 and isinstance(tail[1], Normalize))

    def put(self, image: Array, steps: list[int], out: Tensor) -> None:
        """Apply the steps of :class:`Moves` to ``image`` u8[H, W, C], which is not modified, and write it to ``out``
        [C, h, w]."""
        self._run(nchw(image), steps, self._planar, out, self._scale, self._normalizes, self._mean, self._std)


_NONE = torch.empty(0, device="cpu")


def _can_move(op: Op) -> bool:
    if isinstance(op, Resize):
        return resizes_by_torch(op)
    return isinstance(op, (Crop, Flip))


def _numbers(op: Op) -> tuple[int, list[list[int]]]:
    """Return (kind of step, its four numbers for each image)."""
    if isinstance(op, Crop):
        return _CROP, np.stack([op.top, op.left, op.height, op.width], axis=1).tolist()
    if isinstance(op, Resize):
        none = np.zeros_like(op.height)
        kind = _BILINEAR if op.interpolation == "bilinear" else _BICUBIC
        return kind, np.stack([op.height, op.width, none, none], axis=1).tolist()
    assert isinstance(op, Flip)
    kind = _SIDEWAYS if op.axis == "horizontal" else _UPSIDE_DOWN
    return kind, [[int(drawn), 0, 0, 0] for drawn in op.mask.tolist()]
