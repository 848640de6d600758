"""What happens to samples that cannot be read: raise, leave them out, or put another one in their place.

That is one of the same global batch, or one of the epoch if all of the batch are bad. The choice is a function of
(seed, epoch, position) and of which samples are bad, so every replay and every engine makes the same one, and no rank
has to ask another.

Ranks must have equally many batches, and none knows what the others met. So on several ranks no batch vanishes: one
that lost all its samples is filled with replacements, none of which counts as real, like those that pad a last batch.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np
import numpy.typing as npt

from ..errors import BadSample, ConfigError, SampleError
from ..rng import stream
from .order import Order, Shuffle, Streamed

if TYPE_CHECKING:
    from ..datasets.base import Dataset

__all__ = ["FROM_EPOCH", "BadSamples", "OnError"]

OnError = Literal["raise", "skip", "replace"]
I64 = npt.NDArray[np.int64]
U64 = npt.NDArray[np.uint64]

_DRAWS = 32
"""How often a replacement is drawn before all samples of the batch are tried one after another."""
FROM_EPOCH = 1024
"""How many samples of the epoch are tried for a batch after that. If all are bad, it is not about single files."""

_PASSING = ("temporary", "unreadable")
"""Kinds of what the bytes of a file do not prove."""


class BadSamples:
    """What one loader does about bad samples, and those that it met.

    Args:
        on_error: what to do.
        max_bad: how many bad samples are allowed: a share of the dataset (float in 0..1) or a count (int); ``None``
            allows any number.
        dataset: knows the samples that its index found to be bad.
    """

    def __init__(self, on_error: OnError, max_bad: float | int | None, dataset: Dataset):
        if on_error not in get_args(OnError):
            raise ConfigError(f"on_error must be one of {', '.join(get_args(OnError))}, not {on_error!r}")
        self.on_error = on_error
        self._dataset = dataset
        self._met: dict[int, BadSample] = {}  # while reading; the index does not know them
        self._seen: set[int] = set()
        self._judged: set[int] = set()
        self._limit = self._limit_of(max_bad, len(dataset))
        self._asked = max_bad

    @staticmethod
    def _limit_of(max_bad: float | int | None, n: int) -> int | None:
        if max_bad is None:
            return None
        if isinstance(max_bad, bool) or not isinstance(max_bad, (int, float)) or max_bad < 0:
            raise ConfigError(f"max_bad must be a share between 0.0 and 1.0 or a count, not {max_bad!r}")
        if isinstance(max_bad, int):
            return max_bad
        if max_bad > 1:
            raise ConfigError(f"max_bad={max_bad!r}: a share is between 0.0 and 1.0; for a count, give an integer")
        return int(max_bad * n)

    def known(self, indices: I64) -> dict[int, BadSample]:
        """Those of ``indices`` i64[B] that are known to be bad, by index."""
        found = {bad.index: bad for bad in self._dataset.bad(indices)}
        if self._met:
            found |= {i: self._met[i] for i in indices.tolist() if i in self._met}
        return found

    def begin(self) -> None:
        """An epoch begins. What says nothing of a file's bytes is tried again."""
        passing = {i for i, bad in self._met.items() if bad.kind in _PASSING}
        self._met = {i: bad for i, bad in self._met.items() if i not in passing}
        self._seen -= passing

    def unproven(self, samples: Iterable[BadSample]) -> list[int]:
        """Those whose bytes were judged for the first time, and may have come from a damaged copy."""
        fresh = {s.index for s in samples if s.kind not in _PASSING} - self._judged
        self._judged |= fresh
        return sorted(fresh)

    def learn(self, samples: Iterable[BadSample]) -> None:
        """Remember samples that turned out to be bad."""
        self._met.update((s.index, s) for s in samples)

    def count(self, samples: Iterable[BadSample]) -> None:
        """Count samples that a batch went without. Raises :class:`SampleError` once there are more than ``max_bad``."""
        samples = tuple(samples)
        fresh = [s for s in samples if s.index not in self._seen]
        self._seen.update(s.index for s in fresh)
        if fresh and self._limit is not None and len(self._seen) > self._limit:
            raise SampleError(
                samples, f"{len(self._seen)} bad samples, more than max_bad={self._asked!r} allows; the last ones:"
            )

    def apply(
        self,
        indices: I64,
        keys: U64,
        valid: int,
        *,
        order: Order,
        seed: int,
        epoch: int,
        positions: I64,
        window: I64,
        ranks: int = 1,
    ) -> tuple[I64, U64, int, tuple[BadSample, ...]]:
        """A batch without the samples that are known to be bad.

        Args:
            indices, keys, valid: of the plan, as in :class:`gpupipe.types.Plan`.
            order, seed, epoch: of the epoch.
            positions: i64[B], where in the order the samples stand.
            window: i64[2], first position and number of samples of the global batch.
            ranks: how many share the order.

        Returns:
            (indices, keys, valid, the bad samples). Under ``"raise"`` nothing changes: the engine raises.
        """
        bad = {} if self.on_error == "raise" else self.known(indices)
        if not bad:
            return indices, keys, valid, ()
        mask = np.isin(indices, np.fromiter(bad, np.int64))
        if self.on_error == "skip":
            if ranks == 1 or not mask.all():
                return indices[~mask], keys[~mask], int((~mask[:valid]).sum()), tuple(bad.values())
            valid = 0
        rows = np.flatnonzero(mask)
        others = self._stand_ins(order, [stream(seed, epoch, "replace", at) for at in positions[rows].tolist()], window)
        if others is not None:  # else the bad ones stay, and the engine refuses the batch
            indices = indices.copy()
            indices[rows] = others  # with the draws of those that they stand in for
        return indices, keys, valid, tuple(bad.values())

    def _stand_ins(self, order: Order, keys: list[int], window: I64) -> I64 | None:
        """One for each key, of the global batch if it has a good sample; otherwise of the epoch."""
        first, count = (int(n) for n in window)
        chosen = []
        for key in keys:
            found = self._good(order, first + np.array([stream(key, draw) % count for draw in range(_DRAWS)], np.int64))
            if not len(found):
                found = self._good(order, first + np.arange(count, dtype=np.int64))
            if not len(found):
                others = self._good(order, _of_epoch(order, keys[0], first + count))
                return np.resize(others, len(keys)) if len(others) else None
            chosen.append(found[0])
        return np.array(chosen, np.int64)

    def _good(self, order: Order, positions: I64) -> I64:
        """The samples at these positions that are not known to be bad."""
        indices, _ = order.at(positions)
        bad = self.known(indices)
        return indices[~np.isin(indices, np.fromiter(bad, np.int64))] if bad else indices


def _of_epoch(order: Order, key: int, end: int) -> I64:
    """Positions that a key draws, each once. Of an order that is read as it comes, of what is kept of it up to a batch
    that ends at ``end``."""
    begin = 0
    if isinstance(order, Streamed):
        begin = max(0, end - Streamed.BLOCK)
    else:
        end = len(order)
    drawn, _ = Shuffle(end - begin, key, 0).at(np.arange(min(end - begin, FROM_EPOCH), dtype=np.int64))
    return begin + drawn
