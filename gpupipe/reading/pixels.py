"""Pixels already in memory, or mapped from a file."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt

from ..codecs.decode import as_rgb
from ..types import Plan
from .buffers import host_buffer, views_of
from .reader import AheadReader, Loaded, Pending
from .sample import bad_sample
from .setup import Setup
from .targets import targets_of


class PixelReader(AheadReader[Loaded]):
    """Looks up pixels, and for a GPU copies them to memory that it reads directly. A thread does this for a batch."""

    def __init__(self, setup: Setup):
        super().__init__(setup.threads, 1, "gpupipe-pixels")
        self._dataset = setup.dataset
        self._pinned = setup.cuda

    def _begin(self, plan: Plan, pool: ThreadPoolExecutor) -> Pending[Loaded]:
        return Pending(plan, [pool.submit(self._load, plan)])

    def _end(self, pending: Pending[Loaded]) -> Loaded:
        return pending.futures[0].result()

    def _load(self, plan: Plan) -> Loaded:
        bad = self._dataset.bad(plan.indices)
        if bad:
            return Loaded(plan, bad=tuple(bad))
        media: list[npt.NDArray[np.uint8]] = []
        for index in plan.indices.tolist():
            try:
                media.append(self._pixels(index))
            except Exception as e:
                bad.append(bad_sample(self._dataset, index, e))
        if bad:
            return Loaded(plan, bad=tuple(bad))
        owner: Any = None
        if self._pinned:
            owner = host_buffer(sum(pixels.size for pixels in media), pinned=True)
            views = views_of(owner, [pixels.shape for pixels in media])
            for view, pixels in zip(views, media, strict=True):
                view[...] = pixels
            media = views
        return Loaded(plan, media, targets_of(self._dataset, plan), owner=owner)

    def _pixels(self, index: int) -> npt.NDArray[np.uint8]:
        media = self._dataset.fetch(index)[0]
        assert isinstance(media, np.ndarray)
        return np.ascontiguousarray(as_rgb(media))
