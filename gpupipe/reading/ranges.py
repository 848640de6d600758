"""Encoded images as bytes, read by place in threads: parts of large files, whole ones that an engine does not open, and
windows of sliceable ones."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt

from ..codecs.files import Undecodable
from ..codecs.jpeg.tiles import Cut
from ..types import Plan
from .base import AheadReader, Loaded, Pending
from .cuts import Cuts, fed
from .png_copies import PngCopies
from .sample import bad_sample
from .setup import Setup
from .targets import targets_of

__all__ = ["RangeReader"]

Read = list[bytes | Cut | Undecodable]


class RangeReader(AheadReader[Read]):
    """Each thread reads a part of every batch."""

    def __init__(self, setup: Setup, copies: PngCopies | None, cuts: Cuts | None):
        super().__init__(setup.threads, setup.prefetch_factor, "gpupipe-read")
        self._dataset = setup.dataset
        self._copies = copies
        self._cuts = cuts

    def _begin(self, plan: Plan, pool: ThreadPoolExecutor) -> Pending[Read]:
        bad = self._dataset.bad(plan.indices)
        if bad:
            return Pending(plan, bad=tuple(bad))
        parts = np.array_split(np.arange(len(plan)), min(self.threads, len(plan)))
        return Pending(plan, [pool.submit(self._read, plan, part.tolist()) for part in parts])

    def _read(self, plan: Plan, rows: list[int]) -> Read:
        dataset = self._dataset
        found: dict[int, bytes | Cut | Undecodable] = {}
        if self._cuts is not None:
            found.update(self._cuts.cuts(plan, rows))
        whole = [row for row in rows if row not in found]
        read = dataset.source.read([dataset.place(i) for i in plan.indices[whole].tolist()])
        found.update(zip(whole, read, strict=True))
        return [self._exchanged(int(plan.indices[row]), found[row]) for row in rows]

    def _exchanged(self, index: int, data: bytes | Cut | Undecodable) -> bytes | Cut | Undecodable:
        """What the engine is given in the place of what was read."""
        if self._copies is None or isinstance(data, Undecodable):
            return data
        if not isinstance(data, Cut):
            return self._copies.of_bytes(index, data)
        copy = self._copies.of_bytes(index, data.data)
        return copy if isinstance(copy, Undecodable) else data._replace(data=copy)

    def _end(self, pending: Pending[Read]) -> Loaded:
        plan, bad, media, cuts = pending.plan, list(pending.bad), list[npt.NDArray[np.uint8]](), dict[int, Cut]()
        read = [data for future in pending.futures for data in future.result()]
        for row, data in enumerate(read):
            if isinstance(data, Undecodable) or not data:
                why = data or Undecodable("empty", "0 bytes")
                bad.append(bad_sample(self._dataset, int(plan.indices[row]), why))
                continue
            if isinstance(data, Cut):
                cuts[row] = data
            media.append(np.frombuffer(data.data if isinstance(data, Cut) else data, np.uint8))
        if bad:
            return Loaded(plan, bad=tuple(bad))
        ops, sizes = fed(plan, cuts) if cuts else (None, None)
        return Loaded(plan, media, targets_of(self._dataset, plan), ops=ops, sizes=sizes)

    def facts(self) -> dict[str, Any]:
        return {} if self._cuts is None else {"reads": "of sliceable files what lies under the crop"}
