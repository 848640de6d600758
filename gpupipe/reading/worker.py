"""Answers to the requests of :mod:`.elsewhere`, in a process that decodes for others."""

from __future__ import annotations

import math
import pickle
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import numpy.typing as npt
from PIL import ImageFile

from ..codecs.files import Undecodable
from ..errors import ConfigError
from ..types import Plan
from .buffers import views_of_array
from .elsewhere import Answer
from .kept import CacheKind, DecodedCache, Kept
from .take import Take, TakeBatch

U8 = npt.NDArray[np.uint8]

_KEPT = 4
"""Datasets that a worker remembers."""


class Worker:
    """Answers requests, one at a time. Keeps no state but the datasets that it was sent.

    Args:
        threads: how many images are decoded at the same time.
        cache, cache_bytes: decoded images to keep on this worker's machine; see :class:`gpupipe.DataLoader`. All
            workers of a machine share them, whichever job they work for.
    """

    def __init__(self, threads: int = 1, cache: CacheKind | None = None, cache_bytes: int | None = None):
        self._threads, self._cache, self._cache_bytes = threads, cache, cache_bytes
        self._pool = ThreadPoolExecutor(threads, "gpupipe-decode") if threads > 1 else None
        self._works: OrderedDict[str, tuple[Take, bool]] = OrderedDict()

    def knows(self, key: str) -> bool:
        return key in self._works

    def learn(self, key: str, work: bytes) -> None:
        """Take a loader's dataset. Raises :class:`ConfigError` if that is impossible here."""
        try:
            take, truncated = pickle.loads(work)
        except Exception as e:
            raise ConfigError(
                f"a decoder cannot load the dataset: {type(e).__name__}: {e}; install the same packages on all machines"
            ) from None
        if self._cache is not None:
            cache = DecodedCache.of(self._cache, self._cache_bytes, take.dataset)
            cache.hold()
            take = replace(take, decoder=Kept(take.decoder, take.dataset, cache))
        self._works[key] = take, truncated
        while len(self._works) > _KEPT:
            self._works.popitem(last=False)

    def answer(self, key: str, plan: bytes) -> Answer:
        """Return the pixels of a request whose dataset is known."""
        self._works.move_to_end(key)
        # As in the process that asks.
        take, ImageFile.LOAD_TRUNCATED_IMAGES = self._works[key]
        rows: Plan = pickle.loads(plan)
        batch = take.batch(rows, take.read_together(rows))
        shapes = [(height, width, 3) for height, width in batch.sizes().tolist()]
        pixels = np.empty(sum(map(math.prod, shapes)), np.uint8)
        views = views_of_array(pixels, shapes)
        numbers = range(len(rows))
        found = (self._pool.map if self._pool else map)(_decoded, [batch] * len(rows), numbers, views)
        return Answer(pixels, {row: why for row, why in zip(numbers, found, strict=True) if why is not None})


def _decoded(batch: TakeBatch, row: int, out: U8) -> str | None:
    """Write the pixels of a row to their place. Returns why there are none."""
    try:
        out[...] = np.asarray(batch.known(row).pictures[0])
    except Undecodable as e:
        return str(e)
    except OSError as e:
        return f"{type(e).__name__}: {e}"
    return None
