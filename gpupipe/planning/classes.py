"""Orders by class: classes in turn, and batches of some samples from each of some classes."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from .order import Passes, keyed

I64 = npt.NDArray[np.int64]
U64 = npt.NDArray[np.uint64]


class Members:
    """Samples of every class.

    Args:
        labels: int[N], the class of each sample. Classes without samples do not count.
    """

    def __init__(self, labels: npt.NDArray[np.integer[Any]]):
        self._sorted = np.argsort(labels, kind="stable")
        # Any label but the first one, so that the first class begins at 0.
        starts = np.flatnonzero(np.diff(labels[self._sorted], prepend=labels[self._sorted[:1]] - 1))
        self._starts = starts
        self.sizes: I64 = np.diff(starts, append=len(labels))
        """i64[C]: number of samples of each class that has any."""

    def index(self, classes: I64, numbers: I64) -> I64:
        """Return the indices i64[B] of members ``numbers`` i64[B] of ``classes`` i64[B]."""
        found: I64 = self._sorted[self._starts[classes] + numbers]
        return found


class InTurn:
    """Order of one epoch in which every run of C samples has each of C classes once, in a random order.

    Epochs are consecutive parts of an endless sequence.
    """

    def __init__(self, members: Members, length: int, seed: int, epoch: int):
        self._members, self._length, self._first = members, length, epoch * length
        self._classes = Passes(np.array([len(members.sizes)]), seed)
        self._samples = Passes(members.sizes, seed)

    def __len__(self) -> int:
        return self._length

    def at(self, positions: I64) -> tuple[I64, U64]:
        place = positions + self._first
        classes, turns = self._classes.at(0, place)
        # A class comes once in a pass over the classes, so that pass counts the uses of the class.
        numbers, passes = self._samples.at(classes, turns.astype(np.int64))
        indices = self._members.index(classes, numbers)
        return indices, keyed(indices, passes)


class ClassBlocks:
    """Order of one epoch that consists of groups: ``p`` different classes, and ``k`` samples of each, one class after
    another.

    A pass over the C classes makes C // p groups. The classes that remain rest in this pass, others in the next. A pass
    over a class of n samples makes n // k runs of ``k`` different samples; the rest of it rests as well. A class with
    fewer than ``k`` samples repeats them.
    """

    def __init__(self, members: Members, p: int, k: int, length: int, seed: int, epoch: int):
        self._members, self._p, self._k, self._length, self._first = members, p, k, length, epoch * length
        self._groups = len(members.sizes) // p
        """Groups in a pass over the classes."""
        self._runs = np.maximum(members.sizes // k, 1)
        """i64[C]: runs in a pass over each class."""
        self._classes = Passes(np.array([len(members.sizes)]), seed)
        self._samples = Passes(members.sizes, seed)

    def __len__(self) -> int:
        return self._length

    def at(self, positions: I64) -> tuple[I64, U64]:
        group, inside = np.divmod(positions + self._first, self._p * self._k)
        turn, number = np.divmod(group, self._groups)
        slot, member = np.divmod(inside, self._k)
        count = len(self._members.sizes)
        # Every pass has `count` places. Those after its last whole group are left out.
        classes, _ = self._classes.at(0, turn * count + number * self._p + slot)
        # A class comes at most once in a pass, so the number of the pass tells its runs apart.
        passes, run = np.divmod(turn, self._runs[classes])
        again, within = np.divmod(run * self._k + member, self._members.sizes[classes])
        numbers, _ = self._samples.at(classes, passes * self._members.sizes[classes] + within)
        indices = self._members.index(classes, numbers)
        # A class with fewer than k samples has each of them up to `repeats` times in a run.
        repeats = -(-self._k // self._members.sizes[classes])
        return indices, keyed(indices, (passes * repeats + again).astype(np.uint64))
