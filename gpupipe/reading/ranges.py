"""Encoded images as bytes, read by place in threads: parts of large files, or objects behind a network."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt

from ..codecs.files import Place, Undecodable
from ..datasets.base import Dataset
from ..types import Plan
from .base import AheadReader, Loaded, Pending
from .buffers import Borrowed, BufferPool
from .png_copies import PngCopies
from .sample import bad_sample
from .setup import Setup
from .targets import targets_of

__all__ = ["RangeReader", "read_encoded"]

I64 = npt.NDArray[np.int64]
U8 = npt.NDArray[np.uint8]
Read = list[U8 | Undecodable]


class RangeReader(AheadReader[Read]):
    """Reads into memory that is used again and again, and that the engine reads without a copy.

    Each thread reads a part of every batch. Behind a network a batch is one part, because its source has connections
    of its own for it, and the threads only wait.
    """

    def __init__(self, setup: Setup, copies: PngCopies | None):
        self._dataset = setup.dataset
        self._copies = copies
        self._remote = setup.dataset.source.storage.remote
        threads = setup.prefetch_factor + 1 if self._remote else setup.threads
        super().__init__(setup, "gpupipe-read", threads)
        self.buffers = BufferPool(pinned=setup.cuda)

    def _begin(self, plan: Plan, pool: ThreadPoolExecutor) -> Pending[Read]:
        bad = self._dataset.bad(plan.indices)
        if bad:
            return Pending(plan, bad=tuple(bad))
        places = _places(self._dataset, plan.indices)
        ends = np.cumsum([place.size for place in places])
        # A little more than is needed now, so that soon no batch needs a larger one.
        borrowed = self.buffers.take(int(ends[-1]) * 9 // 8)
        memory, starts = borrowed.buffer.numpy(), [0, *ends[:-1].tolist()]
        views = [memory[a:b] for a, b in zip(starts, ends.tolist(), strict=True)]
        count = 1 if self._remote else min(self.threads, len(plan))
        parts = [slice(part[0], part[-1] + 1) for part in np.array_split(np.arange(len(plan)), count)]
        futures = [pool.submit(self._read, plan.indices[part], places[part], views[part]) for part in parts]
        return Pending(plan, futures, owner=borrowed)

    def _read(self, indices: I64, places: list[Place], views: list[U8]) -> Read:
        copies = self._copies
        problems = self._dataset.source.storage.read_into(places, views)
        found: Read = [view if why is None else why for view, why in zip(views, problems, strict=True)]
        if copies is None:
            return found
        return [
            data if isinstance(data, Undecodable) else copies.of_bytes(i, data)
            for i, data in zip(indices.tolist(), found, strict=True)
        ]

    def _end(self, pending: Pending[Read]) -> Loaded:
        plan, bad, media = pending.plan, list(pending.bad), []
        read = [data for future in pending.futures for data in future.result()]
        for index, data in zip(plan.indices.tolist(), read, strict=bool(pending.futures)):
            if isinstance(data, Undecodable):
                bad.append(bad_sample(self._dataset, index, data))
            else:
                media.append(data)
        if bad:
            return Loaded(plan, bad=tuple(bad))
        borrowed: Borrowed = pending.owner
        return Loaded(plan, media, targets_of(self._dataset, plan), owner=borrowed)

    def close(self) -> None:
        super().close()
        self.buffers.close()

    def facts(self) -> dict[str, Any]:
        return {f"{'pinned_' * self.buffers.pinned}staging_bytes": self.buffers.nbytes}


def read_encoded(dataset: Dataset, indices: I64) -> list[bytes | Undecodable]:
    """The bytes of samples of a dataset of files; of those that cannot be read why."""
    return dataset.source.read(_places(dataset, indices))


def _places(dataset: Dataset, indices: I64) -> list[Place]:
    return [dataset.place(i) for i in indices.tolist()]
