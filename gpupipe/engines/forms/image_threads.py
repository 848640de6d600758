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

from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from torch import Tensor

from ...reading.buffers import BatchPool
from ...reading.torch_threads import torch_threads
from ...transforms.ops import Op, Views
from ...transforms.ops.base import Array
from .apply import apply_sample
from .image_batch import ImageBatch

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

        Args:
            images: u8 or f32[H, W, C]; left as they are.
            ops, memory_format, whole, pinned: see :class:`~.image_batch.ImageBatch`.
            owner: of what ``images`` point into; kept as long as a thread may read it.
        """
        batch = ImageBatch(len(images), ops, self._memory, memory_format, whole=whole, pinned=pinned)
        making = Making(images, batch, owner=owner)
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

    def __init__(self, images: Sequence[Array], batch: ImageBatch, *, owner: Any):
        self._images, self._batch, self._owner = images, batch, owner
        self.has_views, self.rest = batch.has_views, batch.rest
        head = batch.head
        first = next((n for n, op in enumerate(head) if not op.sendable), len(head))
        self._before, self._after = head[:first], head[first:]
        self.row = 0
        """The image that user code gets, or got last; or the one that went wrong."""
        made: list[Future[Any]] = [Future() for _ in images] if self._after else []
        self._made = deque(made)
        """Each image as the first user code gets it."""
        self._rows: Iterator[Any] = iter(list(enumerate(made))) if made else iter(range(len(images)))
        self._nothing_failed = iter((True,))
        self._working: deque[Future[None]] = deque()

    def begin(self, pool: ThreadPoolExecutor, threads: int) -> None:
        self._pool = pool
        work = self._work_for_user_code if self._after else self._work
        for _ in range(min(threads, len(self._images))):
            self._working.append(pool.submit(work))

    # ---- in the threads

    def _work(self) -> None:
        for row in self._rows:
            try:
                self._batch.put(self._images[row], row)
            except BaseException:
                self.cancel()
                if next(self._nothing_failed, False):
                    self.row = row
                    raise

    def _work_for_user_code(self) -> None:
        for row, future in self._rows:
            try:
                future.set_result(apply_sample(self._images[row], self._before, row, self._batch.forms))
            except BaseException as e:
                future.set_exception(e)
            # The error knows this frame, so a future in it would make a circle of all that both know; and what only the
            # collector finds may be found in a forked process, where DALI must not be ended.
            del future

    # ---- in the thread that asks for the batch

    def result(self) -> tuple[Tensor, ...]:
        """[B, C, H, W] of each view, with :attr:`rest` to do. Runs user code, and waits."""
        try:
            for row in range(len(self._made)):
                self.row = row
                image = self._made.popleft().result()  # named, a future would make a circle with its error
                self._run_user_code(image, self._after, row, 0)
            while self._working:
                self._working.popleft().result()
        except BaseException:
            self.cancel()
            raise
        return self._batch.tensors

    def _run_user_code(self, image: Array, ops: Sequence[Op], row: int, view: int) -> None:
        """The ops up to the last user code here, and the rest of them in the threads."""
        end = max((n for n, op in enumerate(ops, 1) if not op.sendable), default=0)
        if end and isinstance(ops[end - 1], Views):
            shared = apply_sample(image, ops[: end - 1], row, self._batch.forms)
            assert not isinstance(shared, tuple)
            for k, branch in enumerate(ops[end - 1].branches):
                self._run_user_code(shared, branch, row, k)
            return
        made = apply_sample(image, ops[:end], row, self._batch.forms)
        self._working.append(self._pool.submit(self._batch.put, made, row, ops[end:], view))  # type: ignore[arg-type]

    def cancel(self) -> None:
        """Begin no other image."""
        for _ in self._rows:
            pass
