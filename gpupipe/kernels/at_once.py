"""Crops, resizes, flips, colors and blurs of bytes, with the arithmetic after them, in one call that releases Python's
lock.

A thread that calls several torch functions in a row takes Python's lock between the calls, and waits for threads that
hold it. For one image these waits cost as much as half of the work, and for the many short calls of colors, two threads
do less than one. A TorchScript function is a single call to the same torch functions, and returns the same values.
"""

# torch.jit needs annotations as objects, so they must not become strings.
import os
import threading
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..codecs.pillow import quiet
from ..transforms.ops import (
    Blur,
    Brightness,
    Contrast,
    Crop,
    Flip,
    Gray,
    Hue,
    Invert,
    Normalize,
    Op,
    Posterize,
    Resize,
    Saturation,
    Sharpness,
    Solarize,
    ToDtype,
)
from ..transforms.ops.op import Array, HasMask
from .dtype import constant, repeated
from .geometry import for_one_pixel, passes, resizes_by_torch
from .hue import tables, turns
from .levels import blur, brightness, bytes_of, contrast, hue, levels_of, luma, saturation, sharpness, solarize
from .picture import unwritten

_CROP, _BILINEAR, _BICUBIC, _SIDEWAYS, _UPSIDE_DOWN = range(5)
_BRIGHTNESS, _CONTRAST, _SATURATION, _SHARPNESS, _SOLARIZE, _GRAY, _BLUR, _HUE, _POSTERIZE, _INVERT = range(5, 15)
"""Kinds of steps. TorchScript code uses the numbers directly."""


class _End(NamedTuple):
    """What becomes of an image's bytes when they are written."""

    planar: bool
    """Whether each channel of the destination is contiguous."""
    scale: int
    """0 keeps values, 1 divides by 255, 2 multiplies by 1/255."""
    normalizes: bool
    mean: Tensor
    std: Tensor
    """[C, 1, 1], or [C * width] for at least a row of pixels if channels are not planes."""


def _put(images: list[Tensor], steps: list[list[float]], hues: list[Tensor], end: _End, outs: list[Tensor]) -> None:
    """Apply ``steps`` and arithmetic to each image u8[H, W, C], which is not modified, and write it to ``outs``, [C, h,
    w].

    Args:
        steps: five numbers per step: its kind, then top, left, height and width of a crop; height and width of a
            resize; the factor of a color; or width, height and sigma of a blur, and whether it is computed in float64.
        hues: tables of :func:`.hue.tables`, if a step changes the hue.
    """
    for i in range(len(images)):
        x, numbers = _nchw(images[i]), steps[i]
        for k in range(0, len(numbers), 5):
            x = _moved(x, int(numbers[k]), numbers[k + 1 : k + 5], end.planar)
        _write(x, end, outs[i])


def _put_colored(
    images: list[Tensor], steps: list[list[float]], hues: list[Tensor], end: _End, outs: list[Tensor]
) -> None:
    """Equivalent to :func:`_put`, with steps of all kinds. It takes longer to compile."""
    for i in range(len(images)):
        x, numbers, out = _nchw(images[i]), steps[i], outs[i]
        for k in range(0, len(numbers), 5):
            kind, four = int(numbers[k]), numbers[k + 1 : k + 5]
            x = _moved(bytes_of(x), kind, four, end.planar) if kind < 5 else _colored(x, kind, four, hues)
        if x.dtype != torch.uint8:
            x = bytes_of(x) if out.dtype == torch.uint8 else x.floor_()
        _write(x, end, out)


def _nchw(x: Tensor) -> Tensor:
    """Return [1, C, H, W], whose strides show torch that it is channels-last; see :func:`.picture.nchw`."""
    height, width, channels = x.shape
    row, column, channel = x.stride(0), x.stride(1), x.stride(2)
    return x.as_strided([1, channels, height, width], [height * row, channel, row, column])


def _write(x: Tensor, end: _End, out: Tensor) -> None:
    if end.planar:  # reordering bytes is faster than reordering floats
        x = x.contiguous()
    values = out
    if end.scale > 0 and out.dtype != torch.float32:
        values = torch.empty_like(out, dtype=torch.float32)
    values.copy_(x[0])
    if end.scale == 1:
        values.div_(255.0)
    elif end.scale == 2:
        values.mul_(1.0 / 255)
    if end.normalizes and end.planar:
        values.sub_(end.mean).div_(end.std)
    elif end.normalizes:
        rows = values.permute(1, 2, 0).view(values.shape[1], -1)
        width = rows.shape[1]
        rows.sub_(end.mean[:width]).div_(end.std[:width])
    if values.dtype != out.dtype:
        out.copy_(values)


def _moved(x: Tensor, kind: int, numbers: list[float], planar: bool) -> Tensor:
    a, b, c, d = int(numbers[0]), int(numbers[1]), int(numbers[2]), int(numbers[3])
    if kind == 0:
        # Copy, because torch does not detect the memory layout of a window, and then resizes half as fast.
        return x[:, :, a : a + c, b : b + d].contiguous(memory_format=torch.channels_last)
    if kind == 1 or kind == 2:
        x = for_one_pixel(x, a, b)
    if kind == 1:
        return torch.ops.aten._upsample_bilinear2d_aa(x, [a, b], False, None, None)  # type: ignore[no-any-return]
    if kind == 2:
        return torch.ops.aten._upsample_bicubic2d_aa(x, [a, b], False, None, None)  # type: ignore[no-any-return]
    if planar:  # mirroring rows of single bytes is faster
        x = x.contiguous()
    return x.flip(-1 if kind == 3 else -2)


def _colored(x: Tensor, kind: int, numbers: list[float], hues: list[Tensor]) -> Tensor:
    if kind == 12:
        return hue(bytes_of(x), torch.tensor(int(numbers[0]), dtype=torch.uint8, device="cpu"), hues)
    if kind == 13:
        return bytes_of(x).bitwise_and(int(numbers[0]))
    if kind == 14:
        return bytes_of(x).bitwise_not()
    x = levels_of(x)
    if kind == 11:
        values = x[0].to(torch.float64) if numbers[3] == 1.0 else x[0]
        made = blur(values, int(numbers[0]), int(numbers[1]), numbers[2])
        return made.round_().to(torch.float32).contiguous()[None]
    number = torch.tensor(numbers[0], dtype=torch.float32, device="cpu")
    if kind == 5:
        return brightness(x, number)
    if kind == 6:
        return contrast(x, number)
    if kind == 7:
        return saturation(x, number)
    if kind == 8:
        return sharpness(x, number)
    if kind == 9:
        return solarize(x, number)
    return luma(x).repeat(1, x.shape[1], 1, 1)


@lru_cache
def _compiled(function: Callable[..., None]) -> Callable[..., None]:
    """Return a function compiled by TorchScript.

    Return the plain function, which takes the lock between calls, in a forked child without source to compile, or if
    torch no longer has TorchScript, which is deprecated.
    """
    global _has_compiled
    if _is_forked:
        return function
    with _compiling, quiet():  # other threads decode, and filters of warnings belong to the process
        _has_compiled = True
        try:
            compiled: Callable[..., None] = torch.jit.script(function)
            return compiled
        except (AttributeError, OSError, RuntimeError):
            return function


_is_forked = False
"""Whether threads of the parent may have held TorchScript's locks during a fork. A child can never release them: of 300
children beside three threads, two waited forever."""


_has_compiled = False
_compiling = threading.Lock()


def _in_forked_child() -> None:
    global _is_forked, _compiling
    _is_forked |= _has_compiled
    _compiling = threading.Lock()
    _compiled.cache_clear()


os.register_at_fork(after_in_child=_in_forked_child)


class Steps:
    """Ops of a batch's images, the last ones of each image as steps of :meth:`AtOnce.put`.

    Args:
        ops: any ops, with a row for each image.
        count: number of images.
    """

    def __init__(self, ops: Sequence[Op], count: int):
        self._ops = ops
        self._numbers = [_numbers(op) if _can_be_step(op) else None for op in ops]
        kinds = [found[0] for found in self._numbers if found is not None]
        self.hues = tables(torch.device("cpu")) if _HUE in kinds else []
        """Tables of the hues, if any op needs them."""
        self.has_colors = any(kind >= _BRIGHTNESS for kind in kinds)
        starts = np.zeros(count, np.int64)
        for n, (op, found) in enumerate(zip(ops, self._numbers, strict=True), 1):
            if found is None:
                starts[op.mask if isinstance(op, HasMask) else slice(None)] = n
        self.starts: list[int] = starts.tolist()
        """For each image, the first op from which on all ops are steps, or pass it."""

    def before(self, row: int) -> Sequence[Op]:
        """Return the ops before the steps of an image."""
        return self._ops[: self.starts[row]]

    def ops(self, row: int) -> Sequence[Op]:
        """Return the ops that are steps of an image."""
        return self._ops[self.starts[row] :]

    def of(self, image: Array, row: int) -> tuple[list[float], tuple[int, int]] | None:
        """Return the steps of image ``row`` and its resulting (height, width).

        Return ``None`` if they cannot be run at once, because the image does not consist of bytes, a color is not one
        of three channels, or a window exceeds the image.
        """
        if image.dtype != np.uint8 or image.ndim != 3 or (self.has_colors and image.shape[2] != 3):
            return None
        steps: list[float] = []
        height, width = image.shape[:2]
        for found in self._numbers[self.starts[row] :]:
            if found is None or (numbers := found[1][row]) is None:
                continue
            kind = found[0]
            if kind == _CROP:
                top, left, h, w = numbers
                if top < 0 or left < 0 or top + h > height or left + w > width:
                    return None
                needed = (h, w) != (height, width)
                height, width = int(h), int(w)
            elif kind in _RESIZES.values():
                needed = numbers[:2] != [height, width]
                to = int(numbers[0]), int(numbers[1])
                for size in passes((height, width), to)[:-1] if numbers[2] else ():
                    steps += (kind, *size, 0.0, 0.0)
                height, width = to
            elif kind == _BLUR and (width <= numbers[0] // 2 or height <= numbers[1] // 2):
                return None  # the form raises torch's error
            else:
                needed = True
            if needed:
                steps += (kind, *numbers)
        return steps, (height, width)


_FIRST = 100
"""Calls that are not optimized, of all threads together."""


class AtOnce:
    """Writes images to their places in a batch, several in one call. Thread-safe. Views with the same arithmetic share
    one object."""

    def __init__(self, end: _End):
        self._end = end
        """With the constants of planes."""
        self._calls = 0

    @staticmethod
    def of(tail: Sequence[Op], layout: torch.memory_format) -> "AtOnce":
        """Return an object for arithmetic, see :meth:`first_of`, and the memory format of the places."""
        scale = 0
        mean: tuple[float, ...] = ()
        std: tuple[float, ...] = ()
        for op in tail[:2]:
            if isinstance(op, ToDtype):
                scale = 1 if op.kind == "pil" else 2
            elif isinstance(op, Normalize):
                mean, std = op.mean, op.std
        return _at_once(layout is torch.contiguous_format, scale, mean, std)

    @staticmethod
    def first_of(tail: Sequence[Op]) -> int:
        """Return how many of the first ops this class supports: conversion of bytes to float32 in [0, 1], and
        normalization, perhaps with a conversion to fewer bits after it."""
        if not tail or not isinstance(first := tail[0], ToDtype) or not first.scale or first.dtype != "float32":
            return 0
        if len(tail) < 2 or not isinstance(tail[1], Normalize):
            return 1
        return 2 + (len(tail) > 2 and isinstance(tail[2], ToDtype))

    def put(self, images: Sequence[Array], numbers: list[list[float]], steps: Steps, outs: list[Tensor]) -> None:
        """Apply ``numbers``, from :meth:`Steps.of`, to images u8[H, W, C], which are not modified, and write them to
        ``outs``, [C, h, w].

        Args:
            steps: any of those that made the numbers, if possible one that has colors and hues.
        """
        arrays = [unwritten(image) for image in images]
        end = self._end
        if end.normalizes and not end.planar:
            channels, width = outs[0].shape[0], max(out.shape[2] for out in outs)
            mean, std = repeated(end.mean, channels, width), repeated(end.std, channels, width)
            end = end._replace(mean=mean, std=std)
        put = _compiled(_put_colored if steps.has_colors else _put)
        # The first batch does not wait for TorchScript's optimizer, which takes as long as a batch and saves 2 percent.
        # Each thread has its own setting.
        self._calls += 1
        with nullcontext() if self._calls > _FIRST else torch.jit.optimized_execution(False):
            put(arrays, numbers, steps.hues, end, outs)


@lru_cache
def _at_once(planar: bool, scale: int, mean: tuple[float, ...], std: tuple[float, ...]) -> AtOnce:
    values = (constant(v, torch.float32, torch.device("cpu")) for v in (mean, std))
    return AtOnce(_End(planar, scale, bool(mean), *values))


def _can_be_step(op: Op) -> bool:
    if isinstance(op, Resize):
        return resizes_by_torch(op)
    if isinstance(op, Gray) and op.channels == 1:
        return False
    return type(op) in _KINDS and getattr(op, "kind", "pil") == "pil"


_RESIZES = {"bilinear": _BILINEAR, "bicubic": _BICUBIC}
_KINDS: dict[type[Op], Callable[[Any], tuple[Any, ...]]] = {
    Crop: lambda op: (_CROP, op.top, op.left, op.height, op.width),
    # The last number: whether in Pillow's order.
    Resize: lambda op: (_RESIZES[op.interpolation], op.height, op.width, op.kind == "pil"),
    Flip: lambda op: (_SIDEWAYS if op.axis == "horizontal" else _UPSIDE_DOWN,),
    Brightness: lambda op: (_BRIGHTNESS, op.factor),
    Contrast: lambda op: (_CONTRAST, op.factor),
    Saturation: lambda op: (_SATURATION, op.factor),
    Sharpness: lambda op: (_SHARPNESS, op.factor),
    Solarize: lambda op: (_SOLARIZE, np.ceil(op.threshold)),
    Posterize: lambda op: (_POSTERIZE, 256 - (1 << (8 - op.bits))),
    Invert: lambda op: (_INVERT,),
    Gray: lambda op: (_GRAY,),
    # Scripts may allow torch to multiply float32 with fewer bits, which some CPUs do, but not float64.
    Blur: lambda op: (_BLUR, *op.kernel_size, op.sigma, torch.get_float32_matmul_precision() != "highest"),
    Hue: lambda op: (_HUE, turns(op)),
}
"""For each op, its kind of step and the numbers of it, each for all images or for each one."""


def _numbers(op: Op) -> tuple[int, list[list[float] | None]]:
    """Return (kind of step, its four numbers for each image, ``None`` if the op passes the image)."""
    kind, *numbers = _KINDS[type(op)](op)
    table = np.zeros((op.rows, 4))
    for column, number in enumerate(numbers):
        table[:, column] = number
    rows: list[Any] = table.tolist()
    for passed in np.flatnonzero(~op.mask).tolist() if isinstance(op, HasMask) else ():
        rows[passed] = None
    return kind, rows
