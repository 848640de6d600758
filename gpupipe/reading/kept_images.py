"""Images that a cache or other processes decoded, passed on by the thread that has them in its processor's cache."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ..codecs.files import Undecodable
from ..stages import DECODING, TRANSFORMS
from ..transforms.ops import Op
from ..types import Plan
from .reader import AheadReader, Loaded, Pending
from .sample import bad_sample, naming
from .setup import Setup
from .take import Take, TakeBatch, Taken
from .targets import targets_of


class ImageTaker(ABC):
    """Receives the images of one plan."""

    @abstractmethod
    def put(self, row: int, pixels: npt.NDArray[np.uint8]) -> None:
        """Receive image ``row``: u8[H, W, 3], valid only during the call. Called once per image, from several threads
        at a time."""

    @abstractmethod
    def media(self) -> Any:
        """Return the input of the engine, once all images were put."""


@dataclass
class _Part:
    """Results of one thread for a plan."""

    bad: list[tuple[int, Undecodable]] = field(default_factory=list)
    """[(row, problem)]"""
    decoded: int = 0
    """Number of images that Pillow had to decode."""
    seconds: float = 0.0
    """Time spent decoding."""


class KeptImageReader(AheadReader[_Part]):
    """Takes images from a setup's ``cache`` or ``decoders``, limited to the window of a first crop.

    Each thread takes one image of a plan after another. Nothing passes between threads, and reading needs memory for
    one image per thread only.

    Args:
        taker: called with the number of images and their remaining ops; see
            :meth:`gpupipe.reading.take.TakeBatch.ops_left`.
    """

    def __init__(self, setup: Setup, taker: Callable[[int, Sequence[Op]], ImageTaker]):
        # One batch less than other readers, because these batches are finished.
        super().__init__(setup.threads, max(setup.prefetch_factor - 1, 1), "gpupipe-images")
        self._dataset, self._take, self._taker = setup.dataset, Take.of_setup(setup), taker

    def _begin(self, plan: Plan, pool: ThreadPoolExecutor) -> Pending[_Part]:
        bad = self._dataset.bad(plan.indices)
        if bad:
            return Pending(plan, bad=tuple(bad))
        batch, rows = self._take.batch(plan), iter(range(len(plan)))
        batch.start()
        taker = self._taker(len(plan), batch.ops_left())
        futures = [pool.submit(self._part, plan, rows, batch, taker) for _ in range(min(self.threads, len(plan)))]
        return Pending(plan, futures, owner=taker)

    def _part(self, plan: Plan, rows: Iterator[int], batch: TakeBatch, taker: ImageTaker) -> _Part:
        """Process the rows that this thread gets from ``rows``, which all threads share."""
        part, row = _Part(), 0
        with naming(lambda: self._dataset.describe(int(plan.indices[row]))):
            for row in rows:
                began = time.perf_counter()
                try:
                    with DECODING:
                        taken = batch(row)
                except Undecodable as e:
                    part.bad.append((row, e))
                    continue
                assert isinstance(taken, Taken)
                if taken.decoded:
                    part.decoded += 1
                    part.seconds += time.perf_counter() - began
                with TRANSFORMS:
                    taker.put(row, np.asarray(taken.pictures[0]))
        return part

    def _end(self, pending: Pending[_Part]) -> Loaded:
        plan, parts = pending.plan, [future.result() for future in pending.futures]
        wrong = sorted((row, e) for part in parts for row, e in part.bad)
        bad = [*pending.bad, *(bad_sample(self._dataset, int(plan.indices[row]), e) for row, e in wrong)]
        if bad:
            return Loaded(plan, bad=tuple(bad))
        by_pillow = sum(part.decoded for part in parts), sum(part.seconds for part in parts)
        return Loaded(plan, pending.owner.media(), targets_of(self._dataset, plan), by_pillow=by_pillow)
