"""Images on the CPU, one per thread, written into a batch that is allocated once.

Whole batches suit GPUs. On a CPU a single image stays in the cache from the first op to the last, Pillow's own
functions can be used, and torch's parallel loops, which synchronize every few microseconds, do not compete with the
threads of a decoder.

User code does not run in these threads but in the one that asks for the batch, image by image in the order of the
batch, as in the reference engine without workers. There it gets its random numbers (see :mod:`gpupipe.global_rng`), and
state that it keeps changes in the same order. The ops before and after it run in the threads.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from itertools import islice
from typing import Any

import numpy as np
from torch import Tensor

from ...codecs.patience import gave_up
from ...kernels.apply import apply_sample
from ...reading.buffers import BatchPool
from ...reading.torch_threads import one_torch_thread, torch_threads
from ...stages import TRANSFORMS, USER_CODE
from ...transforms.ops import Op, Views
from ...transforms.ops.op import Array
from .image_batch import ImageBatch


class ImageThreads:
    """A pool of ``threads`` threads, started on first use.

    The memory of up to ``keep`` released batches is reused, since fresh memory costs page faults.
    """

    def __init__(self, threads: int, *, keep: int = 2):
        self._count = threads
        self._memory = BatchPool(keep=keep)
        self._pool: ThreadPoolExecutor | None = None

    def start(
        self,
        count: int,
        images: Iterable[tuple[Array, Any]],
        ops: Sequence[Op],
        memory_format: str = "contiguous_format",
        *,
        whole: bool = True,
        pinned: bool = False,
    ) -> Making:
        """Start the ops without waiting. Batches started before come first.

        Args:
            count: number of images.
            images: u8 or f32[H, W, C], which are not modified, each with the owner of its memory, which is kept until a
                thread is done with the image. The threads iterate over them, one at a time, and may wait.
            ops, memory_format, whole, pinned: see :class:`~.image_batch.ImageBatch`.
        """
        batch = ImageBatch(count, ops, self._memory, memory_format, whole=whole, pinned=pinned)
        making = Making(count, images, batch)
        making.begin(self._threads(), self._count)
        return making

    def _threads(self) -> ThreadPoolExecutor:
        if self._pool is None:
            self._pool = torch_threads(self._count, "gpupipe-images")
        return self._pool

    def close(self) -> None:
        """End the threads. They start again when needed."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown()
        self._memory.close()


class Making:
    """A batch in progress; see :meth:`ImageThreads.start`."""

    def __init__(self, count: int, images: Iterable[tuple[Array, Any]], batch: ImageBatch):
        self._batch = batch
        self.has_views, self.rest = batch.has_views, batch.rest
        self._shared, views = _until_user_code(batch.head)
        branches = views[0].branches if views and isinstance(views[0], Views) else (views,)
        self._branches = [_until_user_code(branch) for branch in branches]
        """Ops of each view: those before its first user code, and the rest."""
        self.row = 0
        """Row of the image that user code gets now or got last, or of the image that failed."""
        self.in_threads = not views
        """Whether there is no user code, so that :meth:`result` only waits."""
        self._made: deque[Future[Any]] = deque([Future() for _ in range(count)] if views else [])
        """Each image as the first user code of each view gets it."""
        self._unmade = dict(enumerate(self._made))
        self._images, self._count, self._taking = enumerate(images), count, threading.Lock()
        self._cancelled = False
        # next() gives True to the first thread that asks, and needs no lock.
        self._nothing_failed = iter((True,))
        self._working: deque[Future[None]] = deque()

    def begin(self, pool: ThreadPoolExecutor, threads: int) -> None:
        self._pool = pool
        work = self._work if self.in_threads else self._work_for_user_code
        for _ in range(min(threads, self._count)):
            self._working.append(pool.submit(work))

    # ---- in the threads

    def _take(self, *, several: bool = False) -> list[tuple[int, tuple[Array, Any]]]:
        """Take the next row and its image, or, with ``several``, those that are best done at once. May wait;
        empty at the end."""
        with self._taking:
            if self._cancelled or gave_up() or (first := next(self._images, None)) is None:
                return []
            some = [first]
            if several and (most := self._batch.group_of(np.shape(first[1][0]))) > 1:
                some += islice(self._images, most - 1)
            return some

    def _work(self) -> None:
        while self._put_some():
            pass

    def _put_some(self) -> bool:
        """Put some images. Returns whether there were any. Keeps no reference to them while it waits for the
        next ones."""
        taken = self._take(several=True)
        if not taken:
            return False
        row = taken[0][0]
        try:
            with TRANSFORMS:
                if not self._put_together(taken):
                    for row, (image, _owner) in taken:
                        self._batch.put(image, row)
        except BaseException:
            self.cancel()
            # Only the first failure is raised, because `row` must be the row of its image.
            if next(self._nothing_failed, False):
                self.row = row
                raise
        return True

    def _put_together(self, taken: Sequence[tuple[int, tuple[Array, Any]]]) -> bool:
        """Put images at once. Returns whether that was possible; otherwise they are put one by one to find the
        one that does not fit."""
        if len(taken) > 1:
            with suppress(Exception):
                self._batch.put_group(np.stack([image for _, (image, _) in taken]), taken[0][0])
                return True
        return False

    def _work_for_user_code(self) -> None:
        try:
            while self._make_one():
                pass
        except BaseException as e:  # raised by the iterator of images
            for future in self._unmade.values():
                future.set_exception(e)
            self._unmade.clear()

    def _make_one(self) -> bool:
        taken = self._take()
        if not taken:
            return False
        ((row, (image, _owner)),) = taken
        future = self._unmade.pop(row)
        try:
            with TRANSFORMS:
                shared = apply_sample(image, self._shared, row, self._batch.forms)
                assert not isinstance(shared, tuple)
                made = [apply_sample(shared, ops, row, self._batch.forms) for ops, _ in self._branches]
            future.set_result(made)
        except BaseException as e:
            future.set_exception(e)
            # The error refers to this frame, so storing it in a future would make a reference cycle. The garbage
            # collector could run in a forked process, where DALI must not be ended.
            del future
        return True

    # ---- in the thread that asks for the batch

    def result(self) -> tuple[Tensor, ...]:
        """Return [B, C, H, W] of each view, before the ops in :attr:`rest`. Runs user code, and waits."""
        try:
            if self._made:
                # As in torch's worker processes: parallel loops would wait for the threads of the pool and of DALI.
                with one_torch_thread():
                    for row in range(len(self._made)):
                        self.row = row
                        # A variable would make a reference cycle of the future and its error.
                        for view, image in enumerate(self._made.popleft().result()):
                            self._run_user_code(image, self._branches[view][1], row, view)
            while self._working:
                self._working.popleft().result()
        except BaseException:
            self.cancel()
            raise
        return self._batch.tensors

    @USER_CODE
    def _run_user_code(self, image: Array, ops: Sequence[Op], row: int, view: int) -> None:
        """Run the ops up to the last user code here, and the rest of them in the threads."""
        # User code draws from global generators and may not be thread-safe, so it runs in this thread, in order.
        end = max((n for n, op in enumerate(ops, 1) if not op.sendable), default=0)
        if end and isinstance(ops[end - 1], Views):
            shared = apply_sample(image, ops[: end - 1], row, self._batch.forms)
            assert not isinstance(shared, tuple)
            for k, branch in enumerate(ops[end - 1].branches):
                self._run_user_code(shared, branch, row, k)
            return
        made = apply_sample(image, ops[:end], row, self._batch.forms)
        self._working.append(self._pool.submit(TRANSFORMS(self._batch.put), made, row, ops[end:], view))  # type: ignore[arg-type]

    def cancel(self) -> None:
        """Start no other image."""
        self._cancelled = True


def _until_user_code(ops: Sequence[Op]) -> tuple[Sequence[Op], Sequence[Op]]:
    """Return the ops before the first user code, and the rest."""
    first = next((n for n, op in enumerate(ops) if not op.sendable), len(ops))
    return ops[:first], ops[first:]
