"""Handling of samples that cannot be read: raise, skip, or replace.

A replacement comes from the same global batch, or from the epoch if the whole batch is bad. It depends only on (seed,
epoch, position) and on which samples are bad, so every replay and every engine chooses the same one, and ranks need not
communicate.

Ranks must have equally many batches, and no rank knows what the others met. With several ranks a batch therefore never
disappears: if all its samples are bad, replacements fill it, and none of them counts as valid, like the padding of a
last batch.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np
import numpy.typing as npt

from ..errors import BadSample, ConfigError, SampleError
from ..rng import stream
from .order import Order, Shuffle

if TYPE_CHECKING:
    from ..datasets.dataset import Dataset

OnError = Literal["raise", "skip", "replace"]
I64 = npt.NDArray[np.int64]
U64 = npt.NDArray[np.uint64]

_DRAWS = 32
"""Number of random draws of a replacement before all samples of the batch are tried in order."""
FROM_EPOCH = 1024
"""Number of samples of the epoch that are tried for a batch afterwards. If all are bad, single files are not the
problem."""

PASSING = ("temporary", "unreadable")
"""Kinds of errors that say nothing about a file's bytes."""


class BadSamples:
    """The policy of a loader for bad samples, and the bad samples it met.

    Args:
        on_error: the policy.
        max_bad: number of bad samples allowed, as a share of the dataset (float in [0, 1]) or a count (int). ``None``
            means no limit.
        dataset: knows the samples that its index found to be bad.
    """

    def __init__(self, on_error: OnError, max_bad: float | int | None, dataset: Dataset):
        if on_error not in get_args(OnError):
            raise ConfigError(f"on_error must be one of {', '.join(get_args(OnError))}, not {on_error!r}")
        self.on_error = on_error
        self._dataset = dataset
        self._met: dict[int, BadSample] = {}  # found while reading, unknown to the index
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
        """Return the known bad samples among ``indices`` i64[B], by index."""
        found = {bad.index: bad for bad in self._dataset.bad(indices)}
        if self._met:
            found |= {i: self._met[i] for i in indices.tolist() if i in self._met}
        return found

    def begin(self) -> None:
        """Begin an epoch: samples whose error said nothing about their bytes are tried again."""
        passing = {i for i, bad in self._met.items() if bad.kind in PASSING}
        self._met = {i: bad for i, bad in self._met.items() if i not in passing}
        self._seen -= passing

    def unproven(self, samples: Iterable[BadSample]) -> list[int]:
        """Return samples whose bytes were rejected for the first time, possibly because a copy is damaged."""
        fresh = {s.index for s in samples if s.kind not in PASSING} - self._judged
        self._judged |= fresh
        return sorted(fresh)

    def learn(self, samples: Iterable[BadSample]) -> None:
        """Remember samples that turned out to be bad."""
        self._met.update((s.index, s) for s in samples)

    def count(self, samples: Iterable[BadSample]) -> None:
        """Count samples missing from a batch. Raises :class:`SampleError` if there are more than ``max_bad``."""
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
        """Apply the policy to the known bad samples of a batch.

        Args:
            indices, keys, valid: of the plan, as in :class:`gpupipe.types.Plan`.
            order, seed, epoch: of the epoch.
            positions: i64[B], positions of the samples in the order.
            window: i64[2], first position and number of samples of the global batch.
            ranks: number of ranks that share the order.

        Returns:
            (indices, keys, valid, bad samples). With ``"raise"`` nothing changes, and the engine raises.
        """
        bad = {} if self.on_error == "raise" else self.known(indices)
        if not bad:
            return indices, keys, valid, ()
        mask = np.isin(indices, np.fromiter(bad, np.int64))
        if self.on_error == "skip":
            if ranks == 1 or not mask.all():
                return indices[~mask], keys[~mask], int((~mask[:valid]).sum()), tuple(bad.values())
            # The other ranks wait for this batch. Replacements fill it, and none of them counts.
            valid = 0
        rows = np.flatnonzero(mask)
        others = self._stand_ins(order, [stream(seed, epoch, "replace", at) for at in positions[rows].tolist()], window)
        if others is not None:  # otherwise the bad samples stay, and the engine rejects the batch
            indices = indices.copy()
            indices[rows] = others  # with the draws of the replaced samples
        return indices, keys, valid, tuple(bad.values())

    def _stand_ins(self, order: Order, keys: list[int], window: I64) -> I64 | None:
        """Return one replacement per key, from the global batch if it has a good sample, otherwise from the epoch."""
        first, count = (int(n) for n in window)
        chosen = []
        for key in keys:
            found = self._good(order, first + np.array([stream(key, draw) % count for draw in range(_DRAWS)], np.int64))
            if not len(found):
                found = self._good(order, first + np.arange(count, dtype=np.int64))
            if not len(found):
                # No sample of the batch is good, so the other keys would find none either: replace all at once.
                others = self._good(order, _of_epoch(order, keys[0]))
                return np.resize(others, len(keys)) if len(others) else None
            chosen.append(found[0])
        return np.array(chosen, np.int64)

    def _good(self, order: Order, positions: I64) -> I64:
        """Return the samples at ``positions`` that are not known to be bad."""
        indices, _ = order.at(positions)
        bad = self.known(indices)
        return indices[~np.isin(indices, np.fromiter(bad, np.int64))] if bad else indices


def _of_epoch(order: Order, key: int) -> I64:
    """Return positions drawn by ``key``, each once."""
    drawn, _ = Shuffle(len(order), key, 0).at(np.arange(min(len(order), FROM_EPOCH), dtype=np.int64))
    return drawn
