"""Images of a cache, on the CPU: the thread that has one applies all ops to it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...reading.buffers import BatchPool
from ...reading.kept_images import ImageTaker
from ...reading.setup import Setup
from ...transforms.ops import Op
from ...transforms.ops.op import Array
from ...transforms.ops.structure import calls_in
from .image_batch import ImageBatch


class KeptImages:
    """Makes objects that receive the images of a plan. :meth:`of` tells whether it can.

    Batches use memory that is reused once the consumer has released them.
    """

    def __init__(self, setup: Setup):
        self._memory_format = setup.pipeline.memory_format
        self._memory = BatchPool(keep=(setup.prefetch_factor + 1) * len(setup.pipeline.outputs))

    @classmethod
    def of(cls, setup: Setup) -> KeptImages | None:
        """Return ``None`` unless there is a cache, the device is the CPU, and no op is user code."""
        if setup.cuda or setup.cache is None or any(calls_in(setup.pipeline.skeleton)):
            return None
        return cls(setup)

    def __call__(self, count: int, ops: Sequence[Op]) -> ImageTaker:
        return _Taker(ImageBatch(count, ops, self._memory, self._memory_format))

    def close(self) -> None:
        """Free the memory that is not in use."""
        self._memory.close()


class _Taker(ImageTaker):
    def __init__(self, batch: ImageBatch):
        self._batch = batch

    def put(self, rows: Sequence[int], images: Sequence[Array]) -> None:
        self._batch.put_several(images, rows)

    def media(self) -> Any:
        made = self._batch.tensors
        return made if self._batch.has_views else made[0]
