"""A batch on the CPU whose images are written one by one, each by the thread that has it."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...kernels.apply import apply_batch, apply_sample, apply_together, head_and_tail
from ...kernels.at_once import AtOnce, Steps
from ...kernels.geometry import joined_crops
from ...kernels.picture import chw, planes
from ...kernels.registry import FAST_FORMS, FORMS, different_sizes, group_size
from ...reading.buffers import BatchPool
from ...transforms.ops import Crop, Op, Resize, ToDtype, Views
from ...transforms.ops.op import Array

_ALL = {**FORMS, **FAST_FORMS}


class ImageBatch:
    """A batch under construction.

    With user code for single images, results are bit-identical to the reference. Otherwise
    :data:`~.registry.FAST_FORMS` are used.

    Args:
        count: number of images.
        ops: ops with a row for each image.
        memory: memory of the batch.
        memory_format: memory format of the batch, ``"contiguous_format"`` or ``"channels_last"``.
        whole: whether to run the ops that are cheaper on a batch as well; otherwise they are left, as bytes are faster
            to copy.
        pinned: whether the batch is in pinned memory.
    """

    def __init__(
        self,
        count: int,
        ops: Sequence[Op],
        memory: BatchPool,
        memory_format: str = "contiguous_format",
        *,
        whole: bool = True,
        pinned: bool = False,
    ):
        self._count, self._memory, self._pinned = count, memory, pinned
        self._layout = getattr(torch, memory_format)
        self.head, tail = head_and_tail(ops)
        self._pieces: list[Tensor] | None = None
        """Images of different sizes, one after another in one piece of memory."""
        self._sizes: list[list[int]] = []
        """Height and width of each of them."""
        # Images of different sizes each get their own part of the memory, so they are not padded to one size.
        if self.head and isinstance(padding := self.head[-1], Crop) and padding.content is not None:
            self.head = self.head[:-1]
            if (padding.content != padding.content[:1]).any():
                self._sizes = padding.content.tolist()
        self.head = joined_crops(self.head)
        self.has_views = bool(tail) and isinstance(tail[0], Views)
        tails = tail[0].branches if self.has_views else (tail,)
        self.rest = tuple(() if whole else tail for tail in tails)
        """Remaining ops for the whole batch, for each view."""
        fast = all(op.sendable for op in self.head)
        self.forms = _ALL if fast else FORMS
        views = self.head[-1] if self.has_views else None
        self._shared = self.head[:-1] if isinstance(views, Views) else ()
        branches = views.branches if isinstance(views, Views) else (self.head,)
        self._branches = [Steps(ops, count) for ops in branches] if self.forms is _ALL else []
        """Ops of each view, after the shared ones."""
        self._no_steps = Steps((), count)
        self._richest = max(self._branches, key=lambda s: (bool(s.hues), s.has_colors), default=self._no_steps)
        """Steps of a view that needs as much as any other one."""
        self._head = [(op, bool(op.rows)) for op in self.head]
        self._in_groups = fast and not self._sizes and not any(map(_resizes, self.head))
        self._ends = [_End(tail if whole else (), self._layout) for tail in tails]
        self._tensors: list[Tensor | None] = [None] * len(tails)
        self._allocating = threading.Lock()

    @property
    def tensors(self) -> tuple[Any, ...]:
        """[B, C, H, W] of each view after all images were put, before the ops in :attr:`rest`.

        If images differ in size, a list of B tensors [C, H, W].
        """
        if self._pieces is not None:
            return (self._pieces,)
        return tuple(batch for batch in self._tensors if batch is not None)

    def put(self, image: Array, row: int, ops: Sequence[Op] | None = None, view: int = 0) -> None:
        """Transform image ``row``, u8 or f32[H, W, C], and write it to the batch. The image is not modified.

        ``ops`` are applied, by default all of :attr:`head`, and then the ops after them.
        """
        if ops is None and self._branches:
            self.put_several([image], [row])
            return
        made = apply_sample(image, self.head if ops is None else ops, row, self.forms)
        views = made if isinstance(made, tuple) else (made,)
        self._put((one, row, k, self._no_steps) for k, one in enumerate(views, view))

    def put_several(self, images: Sequence[Array], rows: Sequence[int]) -> None:
        """Put images of any sizes; equivalent to :meth:`put` for each, with fewer calls. If one fails, others may be
        missing."""
        if self._branches:
            self._put(self._parts(images, rows))
        else:
            for image, row in zip(images, rows, strict=True):
                self.put(image, row)

    def _parts(self, images: Sequence[Array], rows: Sequence[int]) -> Iterator[tuple[Array, int, int, Steps]]:
        """Iterate over (image before its steps, row, view, steps of the view)."""
        for image, row in zip(images, rows, strict=True):
            shared = apply_sample(image, self._shared, row, self.forms)
            for view, steps in enumerate(self._branches):
                yield apply_sample(shared, steps.before(row), row, self.forms), row, view, steps  # type: ignore[arg-type, misc]

    def group_of(self, shape: tuple[int, ...]) -> int:
        """Return how many images of shape [H, W, C] are best put at once."""
        return group_size(math.prod(shape)) if self._in_groups and len(shape) == 3 else 1

    def put_group(self, images: Array, row: int) -> None:
        """Put images ``row`` to ``row + n``, u8[n, H, W, C], which may be modified; equivalent to :meth:`put`
        for each."""
        if images.dtype != np.uint8:
            raise TypeError(f"images are put together as uint8, not as {images.dtype}")
        if self.group_of(images.shape[1:]) == 1:
            for n, image in enumerate(images, row):
                self.put(image, n)
            return
        rows = slice(row, row + len(images))
        made = apply_together(torch.from_numpy(images).permute(0, 3, 1, 2), _mine(self._head, rows), self.forms)
        for view, x in enumerate(made if isinstance(made, tuple) else (made,)):
            end, batch = self._ends[view], self._tensors[view]
            if batch is None:
                batch = self._batch(view, x.shape[1:], x.dtype)
            if batch.shape[1:] != x.shape[1:]:
                raise different_sizes()
            # As for single images: reorder bytes rather than floats.
            planar = x.dtype == torch.uint8 and self._layout is torch.contiguous_format
            apply_batch(x.contiguous() if planar else x, _mine(end.ops, rows), out=batch[rows])

    def _put(self, parts: Iterable[tuple[Array, int, int, Steps]]) -> None:
        """Write (image before its steps, row, view, steps of the view) to the batch."""
        calls: dict[AtOnce, tuple[list[Array], list[list[float]], list[Tensor]]] = {}
        rests: list[tuple[Tensor, list[Op]]] = []
        for image, row, view, steps in parts:
            end = self._ends[view]
            if end.at_once is None or (found := steps.of(image, row)) is None:
                self._put_one(image, row, view, steps)
                continue
            numbers, size = found
            place = self._place(row, view, (image.shape[2], *size), torch.uint8)
            images, numbers_of, places = calls.setdefault(end.at_once, ([], [], []))
            images.append(image)
            numbers_of.append(numbers)
            places.append(place)
            if end.rest:
                rests.append((place[None], _mine(end.rest, slice(row, row + 1))))
        for at_once, (images, numbers_of, places) in calls.items():
            at_once.put(images, numbers_of, self._richest, places)
        for place, ops in rests:
            apply_batch(place, ops, out=place)

    def _put_one(self, image: Array, row: int, view: int, steps: Steps) -> None:
        """Write an image to the batch, op by op."""
        image = apply_sample(image, steps.ops(row), row, self.forms)  # type: ignore[assignment]
        # If the batch has planes, reorder bytes rather than floats.
        deep = image.dtype == np.uint8 and self._layout is torch.contiguous_format
        x = (planes if deep else chw)(image)
        place = self._place(row, view, x.shape, x.dtype)
        apply_batch(x[None], _mine(self._ends[view].ops, slice(row, row + 1)), out=place[None])

    def _place(self, row: int, view: int, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Return the destination of an image of that shape, which had ``dtype`` before the end."""
        if self._sizes:
            piece = self._piece(row, shape[0], dtype)
            if piece.shape != shape:
                raise different_sizes()
            return piece
        batch = self._tensors[view]
        if batch is None:
            batch = self._batch(view, shape, dtype)
        if batch.shape[1:] != shape:
            raise different_sizes()
        return batch[row]

    def _batch(self, view: int, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Return [B, C, H, W], allocated for the first image."""
        # Several threads may have a first image.
        with self._allocating:
            batch = self._tensors[view]
            if batch is None:
                batch = self._empty((self._count, *shape), self._type(view, dtype))
                self._tensors[view] = batch
            return batch

    def _piece(self, row: int, channels: int, dtype: torch.dtype) -> Tensor:
        """Return [C, H, W] of one of several sizes. All are allocated for the first image."""
        with self._allocating:
            if self._pieces is None:
                counts = [channels * height * width for height, width in self._sizes]
                parts = torch.split(self._empty((sum(counts),), self._type(0, dtype)), counts)
                last = self._layout is torch.channels_last
                self._pieces = [
                    part.view(height, width, channels).permute(2, 0, 1) if last else part.view(channels, height, width)
                    for part, (height, width) in zip(parts, self._sizes, strict=True)
                ]
            return self._pieces[row]

    def _type(self, view: int, dtype: torch.dtype) -> torch.dtype:
        """Return the data type after the end, for images of ``dtype``."""
        types = [getattr(torch, op.dtype) for op, _ in self._ends[view].ops if isinstance(op, ToDtype)]
        return types[-1] if types else dtype

    def _empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        layout = self._layout if len(shape) == 4 else torch.contiguous_format  # one piece for images of all sizes
        if self._pinned:
            return torch.empty(shape, dtype=dtype, device="cpu", memory_format=layout, pin_memory=True)
        if layout is torch.channels_last:
            n, channels, *size = shape
            return self._memory.empty((n, *size, channels), dtype).permute(0, 3, 1, 2)
        return self._memory.empty(shape, dtype)


class _End:
    """Ops that run when an image is written to the batch: the tail, or its first part; the rest runs later."""

    def __init__(self, tail: Sequence[Op], layout: torch.memory_format):
        # Check once whether an op has rows, not for every image.
        self.ops = [(op, bool(op.rows)) for op in tail]
        n = AtOnce.first_of(tail)
        again = any(isinstance(op, ToDtype) for op in tail[n:])  # then the batch does not have the intermediate type
        self.at_once = AtOnce.of(tail[:n], layout) if (n or not tail) and not again else None
        self.rest = self.ops[n:]
        """Remaining ops after it."""


def _mine(ops: Sequence[tuple[Op, bool]], rows: slice) -> list[Op]:
    """Return the ops of some images, from (op, whether it has rows)."""
    return [op.take(rows) if has_rows else op for op, has_rows in ops]


def _resizes(op: Op) -> bool:
    """Return whether images change their size one by one, for which :class:`~gpupipe.kernels.at_once.AtOnce` is
    faster."""
    if isinstance(op, Crop):
        return len({*zip(op.height.tolist(), op.width.tolist(), strict=True)}) > 1
    return isinstance(op, Resize) or any(_resizes(inner) for branch in op.branches for inner in branch)
