"""Plans applied: the ops on one image in Pillow and numpy, and the rest of them on the batch in torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from ..errors import PipelineError
from ..transforms.ops import Call, Crop, Erase, Flip, Op, ToDtype, Views
from ..transforms.ops.base import Array
from .dtype import to_dtype
from .picture import Picture, array, chw, hwc, planes, to_bytes
from .registry import (
    ARITHMETIC,
    BATCH_FORMS,
    FORMS,
    LEVEL_FORMS,
    Form,
    change_of,
    different_sizes,
    is_arithmetic,
    works_together,
)

__all__ = ["Arrays", "apply_batch", "apply_sample", "apply_tail", "apply_together", "head_and_tail"]

Arrays = Array | tuple[Array, ...]
"""One image, or one for each view."""


def head_and_tail(ops: Sequence[Op]) -> tuple[tuple[Op, ...], tuple[Op, ...]]:
    """(ops for each sample, tail for the batch)

    The tail is the longest suffix of what is cheaper on the batch. Mirroring and cutting out commute with arithmetic on
    single values, so they are moved before it: a pipeline that flips after ``ToTensor`` still ships bytes from the
    workers instead of floats. Of several views each has its own tail.
    """
    head: list[Op] = []
    tail: list[Op] = []
    for op in ops:
        if isinstance(op, Views):
            parts = [head_and_tail([*tail, *branch]) for branch in op.branches]
            views = (Views(tuple(part[i] for part in parts)) for i in (0, 1))
            return (*head, next(views)), (next(views),)
        if is_arithmetic(op) or isinstance(op, Erase) or any(isinstance(o, Call) and o.batch for o in (*tail, op)):
            tail.append(op)  # after a function that gets the whole batch there are no single images any more
        elif isinstance(op, (Crop, Flip)) and not _matters(op) and all(map(is_arithmetic, tail)):
            head.append(op)
        else:
            head += [*tail, op]
            tail = []
    return tuple(head), tuple(tail)


def _matters(op: Crop | Flip) -> bool:
    """Whether it writes values of its own, for which it matters what was done before."""
    return isinstance(op, Crop) and op.padded


def apply_sample(image: Picture, ops: Sequence[Op], i: int, forms: Mapping[type[Op], Form] = FORMS) -> Arrays:
    """Row ``i`` of ``ops`` on one image.

    Args:
        image: u8 or f32[H, W, C], or a PIL image in mode RGB or L.
        ops: any, in order; see :func:`head_and_tail` for those that are cheaper on the batch.
        i: which row of the ops' arrays.
        forms: of each op; those of the reference by default.

    Returns:
        u8, f16 or f32[H', W', C'], possibly a view of ``image``, or what a function of the user's made of it; of
        several views a tuple of such.
    """
    levels: Tensor | None = None  # f32[1, C, H, W] in the image's place: what level forms made
    for op in ops:
        if op.passes(i):
            continue
        form = forms.get(type(op))
        change = LEVEL_FORMS.get(type(op)) if form is None and getattr(op, "kind", None) == "pil" else None
        if change is not None:
            levels = planes(image)[None].to(torch.float32, copy=True) if levels is None else levels.floor_()
            levels = change(levels, op.take(slice(i, i + 1)))
            continue
        if levels is not None:
            image, levels = hwc(to_bytes(levels)[0]), None
        if isinstance(op, Views):
            own = not op.sendable and isinstance(image, Image.Image)  # a function may draw into the image
            views = (apply_sample(image.copy() if own else image, b, i, forms) for b in op.branches)
            return tuple(views)  # type: ignore[arg-type]
        image = form(image, op, i) if form is not None else _as_batch(image, op, i)
    return array(image) if levels is None else hwc(to_bytes(levels)[0])


def _as_batch(image: Picture, op: Op, i: int) -> Picture:
    """An op that has a form for batches alone."""
    one = op.take(slice(i, i + 1))
    # What torchvision computes of a tensor depends, in the last bit of floats, on how it lies in memory.
    x = planes(image) if getattr(op, "kind", None) == "pil" else chw(image)
    if is_arithmetic(op):
        return hwc(apply_batch(x[None], (one,))[0])
    return hwc(change_of(op)(x.clone()[None], one)[0])  # which may write to what it gets


def apply_together(x: Tensor, ops: Sequence[Op], forms: Mapping[type[Op], Form] = FORMS) -> Tensor | tuple[Tensor, ...]:
    """:func:`apply_sample` of several images of one size, on the CPU: what makes the same bits of all of them in one
    call does so, and the rest is done image by image.

    Args:
        x: [n, C, H, W], which may be written to.
        ops: with n rows.

    Returns [n, C', H', W'], or a tuple of such for several views. Raises ValueError if images come out in different
    sizes.
    """
    at = 0
    while at < len(ops):
        op = ops[at]
        if isinstance(op, Views):
            return tuple(apply_together(x.clone(), branch, forms) for branch in op.branches)  # type: ignore[misc]
        end = next((n for n in range(at, len(ops)) if _at_once(ops[n]) or isinstance(ops[n], Views)), len(ops))
        if end > at:
            x, at = _one_by_one(x, ops[at:end], forms), end
            continue
        if is_arithmetic(op):
            x = ARITHMETIC[type(op)](x, op, torch.preserve_format, True)
        else:
            x = BATCH_FORMS[type(op)](x.contiguous() if getattr(op, "kind", None) == "pil" else x, op)
        at += 1
    return x


def _at_once(op: Op) -> bool:
    """Whether all images of a group go through the op in one call."""
    if isinstance(op, Crop):
        return bool((op.height == op.height[0]).all() and (op.width == op.width[0]).all())
    return is_arithmetic(op) or works_together(op)


def _one_by_one(x: Tensor, ops: Sequence[Op], forms: Mapping[type[Op], Form]) -> Tensor:
    made = [apply_sample(image, ops, i, forms) for i, image in enumerate(x.permute(0, 2, 3, 1).numpy())]
    if len({image.shape for image in made}) > 1:  # type: ignore[union-attr]
        raise different_sizes()
    return torch.from_numpy(np.stack(made)).permute(0, 3, 1, 2)


def apply_tail(batch: Any, ops: Sequence[Op], memory_format: str = "contiguous_format") -> Any:
    """The second part of :func:`head_and_tail` on a whole batch, on its device.

    Args:
        batch: [B, H, W, C], or what functions made of images; or a tuple of such for several views; left as it is.
        ops: the second part of :func:`head_and_tail`.
        memory_format: ``"contiguous_format"`` or ``"channels_last"``.

    Returns:
        [B, C, H, W] in that memory format, or a tuple of such.
    """
    if isinstance(batch, tuple):
        (views,) = ops
        assert isinstance(views, Views)
        return tuple(apply_tail(b, branch, memory_format) for b, branch in zip(batch, views.branches, strict=True))
    return apply_batch(batch.permute(0, 3, 1, 2) if batch.ndim == 4 else batch, ops, memory_format)


def apply_batch(
    batch: Tensor, ops: Sequence[Op], memory_format: str = "preserve_format", out: Tensor | None = None
) -> Tensor:
    """Ops on a batch [B, C, H, W] on any device, which is left as it is unless it lies in ``out``; arithmetic also on
    one image [C, H, W]. Returns it in ``memory_format``; or ``out``, which has the type and the shape that the ops
    make. What functions made that is no image is contiguous."""
    layout = getattr(torch, memory_format if batch.ndim == 4 else "contiguous_format")
    x, inplace = batch, out is not None and out.data_ptr() == batch.data_ptr()
    for op in ops:
        ours = inplace or x.data_ptr() != batch.data_ptr()  # the caller's memory is not written to
        if out is not None and isinstance(op, ToDtype) and not ours:
            x = to_dtype(x, op, layout, ours, out)
        elif is_arithmetic(op):
            x = ARITHMETIC[type(op)](x, op, layout, ours)
        elif type(op) in BATCH_FORMS:
            x = BATCH_FORMS[type(op)](x if ours else x.clone(), op)
        else:
            raise PipelineError(f"{type(op).__name__} has no form for a whole batch")
    if out is not None:
        return x if x.data_ptr() == out.data_ptr() else out.copy_(x)
    return x if layout is torch.preserve_format else x.contiguous(memory_format=layout)
