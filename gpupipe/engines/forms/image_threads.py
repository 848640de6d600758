"""Images on the CPU, one in each thread, into a batch that is allocated once.

Whole batches are for GPUs. On a CPU an image at a time stays in the cache from the first op to the last one, Pillow's
own functions can be used, and torch's parallel loops, which wait for each other after every few microseconds, do not
meet the threads of a decoder.

User code does not run in these threads but in the one that asks for the batch, image after image in the order of the
batch, as in the reference engine without workers: there its random numbers are lent to it (see
:mod:`gpupipe.reading.global_rng`), and what it keeps from image to image comes in the same order. What stands before
and after it is done in the threads.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor

from ...reading.buffers import BatchPool
from ...reading.torch_threads import torch_threads
from ...transforms.ops import Call, Op, ToDtype, Views
from ...transforms.ops.base import Array
from .apply import apply_batch, apply_sample, head_and_tail
from .picture import chw
from .registry import FAST_FORMS, FORMS, different_sizes

__all__ = ["ImageThreads", "Making"]


class ImageThreads:
    """``threads`` of them, started at the first use. The memory of up to ``keep`` batches that nobody has any more is
    used again: fresh memory costs the time of its pages."""

    def __init__(self, threads: int, *, keep: int = 2):
        self._count = threads
        self._memory = BatchPool(keep=keep)
        self._pool: ThreadPoolExecutor | None = None

    def start(
        self,
        images: Sequence[Array],
        ops: Sequence[Op],
        memory_format: str = "contiguous_format",
        *,
        whole: bool = True,
        pinned: bool = False,
        owner: Any = None,
    ) -> Making:
        """Begin on the ops; does not wait.

        With user code for single images, all is to the reference's last bit. Else :data:`~.registry.FAST_FORMS` are
        used.

        Args:
            images: u8 or f32[H, W, C]; left as they are.
            ops: with a row for each image.
            memory_format: ``"contiguous_format"`` or ``"channels_last"``, of the batch.
            whole: whether what is cheaper on a batch is done too; else it is left, as bytes are faster to copy.
            pinned: whether the batch is made in pinned memory.
            owner: of what ``images`` point into; kept as long as a thread may read it.
        """
        making = Making(images, ops, memory_format, self._memory, whole=whole, pinned=pinned, owner=owner)
        making.begin(self._threads(), self._count)
        return making

    def _threads(self) -> ThreadPoolExecutor:
        if self._pool is None:
            self._pool = torch_threads(self._count, "gpupipe-images")
        return self._pool

    def close(self) -> None:
        """End the threads. They start again when they are needed."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown()
        self._memory.close()


class Making:
    """A batch on its way; see :meth:`ImageThreads.start`."""

    def __init__(
        self,
        images: Sequence[Array],
        ops: Sequence[Op],
        memory_format: str,
        memory: BatchPool,
        *,
        whole: bool,
        pinned: bool,
        owner: Any,
    ):
        self._images, self._memory_format, self._pinned, self._owner = images, memory_format, pinned, owner
        self._memory = memory
        head, tail = head_and_tail(ops)
        self.has_views = bool(tail) and isinstance(tail[0], Views)
        tails = tail[0].branches if self.has_views else (tail,)
        ends = [_until_batch(tail) if whole else 0 for tail in tails]
        self._tails = tuple(tail[:n] for tail, n in zip(tails, ends, strict=True))
        self.rest = tuple(tail[n:] for tail, n in zip(tails, ends, strict=True))
        """What is left for the whole batch, for each view."""
        self._forms = FORMS if any(not op.sendable for op in head) else {**FORMS, **FAST_FORMS}
        first = next((n for n, op in enumerate(head) if not op.sendable), len(head))
        self._before, self._after = head[:first], head[first:]
        self._batches: list[Tensor | None] = [None] * len(tails)
        self._allocating = threading.Lock()
        self.row = 0
        """The image that user code gets, or got last."""
        made: list[Future[Any]] = [Future() for _ in images]
        self._rows, self._made = iter(list(enumerate(made))), deque(made)

    def begin(self, pool: ThreadPoolExecutor, threads: int) -> None:
        self._pool = pool
        for _ in range(min(threads, len(self._images))):
            pool.submit(self._work)

    # ---- in the threads

    def _work(self) -> None:
        for row, future in self._rows:
            try:
                future.set_result(self._first(row))
            except BaseException as e:
                future.set_exception(e)
            # The error knows this frame, so a future in it would make a circle of all that both know; and what only the
            # collector finds may be found in a forked process, where DALI must not be ended.
            del future

    def _first(self, row: int) -> Any:
        """The image as the first user code gets it; without any it is finished."""
        if self._after:
            return apply_sample(self._images[row], self._before, row, self._forms)
        return self._finish(self._images[row], self._before, row)

    def _finish(self, image: Array, ops: Sequence[Op], row: int, view: int = 0) -> None:
        made = apply_sample(image, ops, row, self._forms)
        for k, one in enumerate(made if isinstance(made, tuple) else (made,), view):
            self._put(one, row, k)

    def _put(self, image: Array, row: int, view: int) -> None:
        x, tail = chw(image)[None], self._tails[view]
        batch = self._batch(view, x)
        if batch.shape[1:] != x.shape[1:]:
            raise different_sizes()
        mine = [op.take(slice(row, row + 1)) if op.rows else op for op in tail]
        apply_batch(x, mine, out=batch[row : row + 1])

    def _batch(self, view: int, like: Tensor) -> Tensor:
        """[B, C, H, W], allocated for the first image that is there."""
        with self._allocating:
            batch = self._batches[view]
            if batch is None:
                types = [getattr(torch, op.dtype) for op in self._tails[view] if isinstance(op, ToDtype)]
                batch = self._empty((len(self._images), *like.shape[1:]), types[-1] if types else like.dtype)
                self._batches[view] = batch
            return batch

    def _empty(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        layout = getattr(torch, self._memory_format)
        if len(shape) != 4:  # no images, but what a function made of them
            layout = torch.contiguous_format
        if self._pinned:
            return torch.empty(shape, dtype=dtype, device="cpu", memory_format=layout, pin_memory=True)
        if layout is torch.channels_last:
            n, channels, *size = shape
            return self._memory.empty((n, *size, channels), dtype).permute(0, 3, 1, 2)
        return self._memory.empty(shape, dtype)

    # ---- in the thread that asks for the batch

    def result(self) -> tuple[Tensor, ...]:
        """[B, C, H, W] of each view, with :attr:`rest` to do. Runs user code, and waits."""
        last: deque[Future[None]] = deque()
        try:
            for row in range(len(self._made)):
                self.row = row
                image = self._made.popleft().result()  # named, a future would make a circle with its error
                if self._after:
                    self._run_user_code(image, self._after, row, 0, last)
            while last:
                last.popleft().result()
        except BaseException:
            self.cancel()
            raise
        return tuple(batch for batch in self._batches if batch is not None)

    def _run_user_code(self, image: Array, ops: Sequence[Op], row: int, view: int, last: deque[Future[None]]) -> None:
        """The ops up to the last user code here, and the rest of them in the threads."""
        end = max((n for n, op in enumerate(ops, 1) if not op.sendable), default=0)
        if end and isinstance(ops[end - 1], Views):
            shared = apply_sample(image, ops[: end - 1], row, self._forms)
            assert not isinstance(shared, tuple)
            for k, branch in enumerate(ops[end - 1].branches):
                self._run_user_code(shared, branch, row, k, last)
            return
        made = apply_sample(image, ops[:end], row, self._forms)
        last.append(self._pool.submit(self._finish, made, ops[end:], row, view))  # type: ignore[arg-type]

    def cancel(self) -> None:
        """Begin no other image."""
        for _ in self._rows:
            pass


def _until_batch(tail: Sequence[Op]) -> int:
    """How many of the ops come before a function of the whole batch."""
    return next((n for n, op in enumerate(tail) if isinstance(op, Call)), len(tail))
