"""Encoded images as bytes, read by place in threads: parts of large files, or whole ones that an engine does not
open."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import numpy.typing as npt

from ..codecs.files import Undecodable
from ..types import Plan
from .base import AheadReader, Loaded, Pending
from .png_copies import PngCopies
from .sample import bad_sample
from .setup import Setup
from .targets import targets_of

__all__ = ["RangeReader"]

Read = list[bytes | Undecodable]


class RangeReader(AheadReader[Read]):
    """Each thread reads a part of every batch."""

    def __init__(self, setup: Setup, copies: PngCopies | None):
        super().__init__(setup.threads, setup.prefetch_factor, "gpupipe-read")
        self._dataset = setup.dataset
        self._copies = copies

    def _begin(self, plan: Plan, pool: ThreadPoolExecutor) -> Pending[Read]:
        bad = self._dataset.bad(plan.indices)
        if bad:
            return Pending(plan, bad=tuple(bad))
        parts = np.array_split(plan.indices, min(self.threads, len(plan)))
        return Pending(plan, [pool.submit(self._read, part) for part in parts])

    def _read(self, indices: npt.NDArray[np.int64]) -> Read:
        dataset = self._dataset
        found = dataset.source.read([dataset.place(i) for i in indices.tolist()])
        if self._copies is None:
            return found
        return [self._copies.of_bytes(i, data) for i, data in zip(indices.tolist(), found, strict=True)]

    def _end(self, pending: Pending[Read]) -> Loaded:
        plan, bad, media = pending.plan, list(pending.bad), []
        read = [data for future in pending.futures for data in future.result()]
        for index, data in zip(plan.indices.tolist(), read, strict=bool(pending.futures)):
            if isinstance(data, bytes) and data:
                media.append(np.frombuffer(data, np.uint8))
            else:
                bad.append(bad_sample(self._dataset, index, data or Undecodable("empty", "0 bytes")))
        if bad:
            return Loaded(plan, bad=tuple(bad))
        return Loaded(plan, media, targets_of(self._dataset, plan))
