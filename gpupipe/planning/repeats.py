"""Order that repeats every sample."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from .order import Passes, keyed

I64 = npt.NDArray[np.int64]
U64 = npt.NDArray[np.uint64]


class Repeats:
    """Order of one epoch of repeated augmentation: each of ``n`` samples ``repeats`` times in a row.

    Epochs are consecutive parts of an endless sequence of passes over the dataset.
    """

    def __init__(self, n: int, repeats: int, length: int, seed: int, epoch: int):
        self._passes = Passes(np.array([n], np.int64), seed)
        self._repeats, self._length, self._first = repeats, length, epoch * length

    def __len__(self) -> int:
        return self._length

    def at(self, positions: I64) -> tuple[I64, U64]:
        place = positions + self._first
        use = place // self._repeats
        indices, turns = self._passes.at(np.zeros(len(use), np.int64), use)
        # The pass and the number of the repeat tell the occurrences of a sample apart.
        return indices, keyed(indices, turns * np.uint64(self._repeats) + (place % self._repeats).astype(np.uint64))
