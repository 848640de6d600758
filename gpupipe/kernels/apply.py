"""Applies plans: ops on one image in Pillow and numpy, and the remaining ops on the batch in torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from ..errors import PipelineError
from ..transforms.ops import Crop, Erase, Flip, Op, ToDtype, Views, Warp
from ..transforms.ops.op import Array
from .dtype import to_dtype
from .picture import Picture, array, chw, hwc, planes
from .registry import (
    ARITHMETIC,
    BATCH_FORMS,
    FORMS,
    Form,
    change_of,
    different_sizes,
    is_arithmetic,
    works_together,
)

Arrays = Array | tuple[Array, ...]
"""One image, or one for each view."""


def head_and_tail(ops: Sequence[Op]) -> tuple[tuple[Op, ...], tuple[Op, ...]]:
    """Split ops into (ops for each sample, tail for the batch).

    The tail is the longest suffix of ops that are cheaper on the batch. Flips and crops commute with pointwise
    arithmetic, so they are moved before it: a pipeline that flips after ``ToTensor`` still sends bytes from the workers
    instead of floats. Each of several views has its own tail.
    """
    head: list[Op] = []
    tail: list[Op] = []
    for op in ops:
        if isinstance(op, Views):
            parts = [head_and_tail([*tail, *branch]) for branch in op.branches]
            views = (Views(tuple(part[i] for part in parts)) for i in (0, 1))
            return (*head, next(views)), (next(views),)
        if is_arithmetic(op) or isinstance(op, Erase):
            tail.append(op)
        elif isinstance(op, (Crop, Flip)) and not _matters(op) and all(map(is_arithmetic, tail)):
            head.append(op)
        else:
            head += [*tail, op]
            tail = []
    return tuple(head), tuple(tail)


def _matters(op: Crop | Flip) -> bool:
    """Return whether the op writes values of its own, so that the ops before it matter."""
    return isinstance(op, Crop) and op.padded


def apply_sample(image: Picture, ops: Sequence[Op], i: int, forms: Mapping[type[Op], Form] = FORMS) -> Arrays:
    """Apply row ``i`` of ``ops`` to one image.

    Args:
        image: u8 or f32[H, W, C], or a PIL image in mode RGB or L.
        ops: any ops, in order; :func:`head_and_tail` gives those that are cheaper on the batch.
        i: row of the ops' arrays.
        forms: form of each op; by default those of the reference.

    Returns:
        u8, f16 or f32[H', W', C'], possibly a view of ``image``; a tuple of these for several views.
    """
    for op in ops:
        if op.passes(i):
            continue
        if isinstance(op, Views):
            own = isinstance(image, Image.Image) and not op.sendable  # a function may draw into the image
            views = (apply_sample(image.copy() if own else image, b, i, forms) for b in op.branches)
            return tuple(views)  # type: ignore[arg-type]
        form = forms.get(type(op))
        image = form(image, op, i) if form is not None else _as_batch(image, op, i)
    return array(image)


def _as_batch(image: Picture, op: Op, i: int) -> Picture:
    """Apply an op that only has a batch form."""
    one = op.take(slice(i, i + 1))
    # The last bit of torchvision's floats depends on the memory layout of a tensor.
    x = planes(image) if getattr(op, "kind", None) == "pil" else chw(image)
    if is_arithmetic(op):
        return hwc(apply_batch(x[None], (one,))[0])
    return hwc(change_of(op)(x.clone()[None], one)[0])  # the form may write to its input


def apply_together(x: Tensor, ops: Sequence[Op], forms: Mapping[type[Op], Form] = FORMS) -> Tensor | tuple[Tensor, ...]:
    """Apply ops to several images of one size, on the CPU, with the results of :func:`apply_sample`.

    Ops that give bit-identical results for several images in one call use one; the others run image by image.

    Args:
        x: [n, C, H, W], which may be modified.
        ops: ops with n rows.

    Returns [n, C', H', W'], or a tuple of these for several views. Raises ValueError if images come out in different
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
    """Return whether all images of a group go through the op in one call."""
    if isinstance(op, (Crop, Warp)) and not bool((op.height == op.height[0]).all() and (op.width == op.width[0]).all()):
        return False
    return is_arithmetic(op) or works_together(op)


def _one_by_one(x: Tensor, ops: Sequence[Op], forms: Mapping[type[Op], Form]) -> Tensor:
    made = [apply_sample(image, ops, i, forms) for i, image in enumerate(x.permute(0, 2, 3, 1).numpy())]
    if len({image.shape for image in made}) > 1:  # type: ignore[union-attr]
        raise different_sizes()
    return torch.from_numpy(np.stack(made)).permute(0, 3, 1, 2)


def apply_tail(batch: Any, ops: Sequence[Op], memory_format: str = "contiguous_format") -> Any:
    """Apply the tail from :func:`head_and_tail` to a whole batch, on its device.

    Args:
        batch: [B, H, W, C], or a tuple of these for several views. It is not modified.
        ops: the tail.
        memory_format: ``"contiguous_format"`` or ``"channels_last"``.

    Returns:
        [B, C, H, W] in that memory format, or a tuple of these.
    """
    if isinstance(batch, tuple):
        (views,) = ops
        assert isinstance(views, Views)
        return tuple(apply_tail(b, branch, memory_format) for b, branch in zip(batch, views.branches, strict=True))
    return apply_batch(batch.permute(0, 3, 1, 2), ops, memory_format)


def apply_batch(
    batch: Tensor, ops: Sequence[Op], memory_format: str = "preserve_format", out: Tensor | None = None
) -> Tensor:
    """Apply ops to a batch [B, C, H, W] on any device. Arithmetic also works on one image [C, H, W].

    The batch is not modified unless it lies in ``out``. Returns the result in ``memory_format``, or ``out``, which must
    have the resulting type and shape.
    """
    layout = getattr(torch, memory_format if batch.ndim == 4 else "contiguous_format")
    x, inplace = batch, out is not None and out.data_ptr() == batch.data_ptr()
    for op in ops:
        ours = inplace or x.data_ptr() != batch.data_ptr()  # never write to the caller's memory
        if out is not None and isinstance(op, ToDtype) and not ours:
            x = to_dtype(x, op, layout, ours, out)
        elif is_arithmetic(op):
            x = ARITHMETIC[type(op)](x, op, layout, ours)
        elif type(op) in BATCH_FORMS:
            x = BATCH_FORMS[type(op)](x if ours else x.clone(), op)
        else:
            raise PipelineError(f"{type(op).__name__} cannot work on a whole batch")
    if out is not None:
        return x if x.data_ptr() == out.data_ptr() else out.copy_(x)
    return x if layout is torch.preserve_format else x.contiguous(memory_format=layout)
