"""Images of a cache, passed on by the thread that has them in its processor's cache."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
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

_TOGETHER = 4
"""Images that a thread reads and transforms together, in fewer calls that wait for Python's lock."""
_PIXELS = 1 << 20
"""Maximum number of pixels of several images together."""


class ImageTaker(ABC):
    """Receives the images of one plan."""

    @abstractmethod
    def put(self, rows: Sequence[int], images: Sequence[npt.NDArray[np.uint8]]) -> None:
        """Receive the images of some rows: u8[H, W, 3] each, valid only during the call. Called from several threads at
        a time, and for single images again if it fails for several."""

    @abstractmethod
    def media(self) -> Any:
        """Return the input of the engine, once all images were put."""


@dataclass
class _Part:
    """Results of one thread for a plan."""

    row: int = 0
    """Row of the current image."""
    bad: list[tuple[int, Undecodable]] = field(default_factory=list)
    """[(row, problem)]"""


class KeptImageReader(AheadReader[_Part]):
    """Takes images from a setup's ``cache``, limited to the window of a first crop.

    Each thread takes some images of a plan after another. Nothing passes between threads. Reading needs memory for
    :data:`_TOGETHER` small images per thread, or one large one.

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
        taker = self._taker(len(plan), batch.ops_left())
        # Larger images would leave the processor's cache before they are used.
        pixels = int(batch.sizes().astype(np.int64).prod(axis=1).max(initial=1))
        count = max(1, min(_TOGETHER, _PIXELS // pixels))
        parts = iter(lambda: list(islice(rows, count)), [])
        futures = [pool.submit(self._part, plan, parts, batch, taker) for _ in range(min(self.threads, len(plan)))]
        return Pending(plan, futures, owner=taker)

    def _part(self, plan: Plan, parts: Iterator[list[int]], batch: TakeBatch, taker: ImageTaker) -> _Part:
        """Process the rows that this thread gets from ``parts``, which all threads share."""
        part = _Part()
        with naming(lambda: self._dataset.describe(int(plan.indices[part.row]))):
            for rows in parts:
                images = self._read(rows, batch, part)
                with TRANSFORMS:
                    try:
                        taker.put([*images], [*images.values()])
                    except Exception:
                        for part.row, image in images.items():  # find the one that fails
                            taker.put([part.row], [image])
                        raise
        return part

    @DECODING
    def _read(self, rows: list[int], batch: TakeBatch, part: _Part) -> dict[int, npt.NDArray[np.uint8]]:
        """Return the images of those rows that can be read."""
        images = {}
        for part.row in rows:
            try:
                taken = batch(part.row)
            except Undecodable as e:
                part.bad.append((part.row, e))
                continue
            assert isinstance(taken, Taken)
            images[part.row] = np.asarray(taken.pictures[0])
        return images

    def _end(self, pending: Pending[_Part]) -> Loaded:
        plan, parts = pending.plan, [future.result() for future in pending.futures]
        wrong = sorted((row, e) for part in parts for row, e in part.bad)
        bad = [*pending.bad, *(bad_sample(self._dataset, int(plan.indices[row]), e) for row, e in wrong)]
        if bad:
            return Loaded(plan, bad=tuple(bad))
        return Loaded(plan, pending.owner.media(), targets_of(self._dataset, plan))
