"""Images in memory, on the CPU: a thread takes several of them and applies all ops."""

from __future__ import annotations

import math
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

from ...kernels.check import check_ops
from ...reading.buffers import BatchPool
from ...reading.memory import InMemory
from ...reading.reader import AheadReader, Loaded, Pending
from ...reading.setup import Setup
from ...reading.targets import targets_of
from ...stages import TRANSFORMS
from ...transforms.ops import Gray, Op
from ...transforms.ops.structure import calls_in
from ...types import Plan
from .image_batch import ImageBatch

_SINGLE = 8
"""Images that a thread takes at a time if it processes them one by one."""


class PixelImages(AheadReader[None]):
    """Makes finished batches of images in memory. :meth:`of` tells whether it can.

    For small images a call costs more than its work, so as many as fit into the cache go through each op at once.
    Batches use memory that is reused once the consumer has released them.
    """

    def __init__(self, setup: Setup, images: InMemory):
        super().__init__(setup.threads, setup.prefetch_factor, "gpupipe-images")
        self._dataset, self._images, self._memory_format = setup.dataset, images, setup.pipeline.memory_format
        self._memory = BatchPool(keep=(setup.prefetch_factor + 1) * len(setup.pipeline.outputs))

    @classmethod
    def of(cls, setup: Setup) -> PixelImages | None:
        """Return ``None`` unless images are in memory, for the CPU, and no op is a function of the script.

        Raises :class:`PipelineError` if no engine can run the ops.
        """
        if setup.cuda or setup.dataset.kind != "pixels" or any(calls_in(setup.pipeline.skeleton)):
            return None
        images = InMemory.of(setup.dataset)
        if images is None:
            return None
        check_ops(setup.pipeline.skeleton)
        return cls(setup, images)

    def _begin(self, plan: Plan, pool: ThreadPoolExecutor) -> Pending[None]:
        assert plan.ops is not None
        # The luma of three equal values is that value, so the first op is left out.
        is_gray = self._images.images.shape[3] == 1 and _makes_gray(plan.ops)
        batch = ImageBatch(len(plan), plan.ops[is_gray:], self._memory, self._memory_format)
        channels = 1 if is_gray else 3
        group = batch.group_of((*self._images.images.shape[1:3], channels))
        # Several small parts would cost more than the threads gain, since they have other batches to work on.
        step = math.ceil(len(plan) / math.ceil(len(plan) / (_SINGLE if group == 1 else group)))
        parts = iter([slice(start, start + step) for start in range(0, len(plan), step)])
        threads = range(min(self.threads, math.ceil(len(plan) / step)))
        return Pending(plan, [pool.submit(self._put, plan, batch, channels, parts) for _ in threads], owner=batch)

    @TRANSFORMS
    def _put(self, plan: Plan, batch: ImageBatch, channels: int, parts: Iterator[slice]) -> None:
        """Process parts of a plan. All threads take from ``parts``."""
        for rows in parts:
            batch.put_group(self._images.copy(plan.indices[rows], channels), rows.start)

    def _end(self, pending: Pending[None]) -> Loaded:
        for future in pending.futures:
            future.result()
        plan, batch = pending.plan, pending.owner
        return Loaded(plan, batch.tensors if batch.has_views else batch.tensors[0], targets_of(self._dataset, plan))

    def close(self) -> None:
        super().close()
        self._memory.close()


def _makes_gray(ops: tuple[Op, ...]) -> bool:
    """Return whether images of three equal channels are first reduced to one channel, as for torchvision's MNIST."""
    first = next(iter(ops), None)
    return isinstance(first, Gray) and first.kind == "pil" and first.channels == 1 and first.always
