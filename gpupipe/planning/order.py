"""Order of samples: pure numpy functions of (seed, epoch), or the output of a sampler.

Permutations are never stored. :class:`Shuffle` computes any part of a permutation from the requested positions, so
starting or resuming an epoch costs the same for ten thousand samples as for fourteen million.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ..errors import ConfigError
from ..rng import mix64, stream, uniforms

I64 = npt.NDArray[np.int64]
U64 = npt.NDArray[np.uint64]

_OCCURRENCE_BIT = np.uint64(40)  # positions below 2**40, occurrences below 2**24
_INDEX_BITS = np.uint64(2**40 - 1)
_SHIFT32, _ONE = np.uint64(32), np.uint64(1)
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_ROUNDS = 16
"""Rounds of :func:`permuted`, an even number. These are more than its proofs require, but small domains need them to
reach every permutation."""


class Order(Protocol):
    """Samples of one epoch, over all ranks."""

    def __len__(self) -> int:
        """Number of samples in the epoch."""
        ...

    def at(self, positions: I64) -> tuple[I64, U64]:
        """Return (indices i64[B], keys u64[B]) at ``positions``, each in [0, len)."""
        ...


def permuted(x: U64, n: Any, round_keys: Sequence[Any]) -> U64:
    """Map each of ``x`` u64[B], below ``n``, to another number below ``n``, one to one.

    It is a Feistel network over ``a x b >= n`` cells with cycle walking (Black and Rogaway, *Ciphers with arbitrary
    finite domains*, CT-RSA 2002, section "generalized Feistel").

    Args:
        n: size of the domain, an integer, or u64[B] with one for each number.
        round_keys: an even number of integers, or of arrays u64[B], that choose the permutation.
    """
    n = np.asarray(n, np.uint64)
    # a * a >= n, and b is the smallest number with a * b >= n. So a * b - n < a: few cells lie outside the range, and
    # nearly every walk ends after one step. Halves of about the same size also mix best.
    a = np.sqrt((n - _ONE).astype(np.float64)).astype(np.uint64) + _ONE
    b = (n + a - _ONE) // a
    y = _encrypted(x, a, b, round_keys)
    outside = y >= n
    while outside.any():  # walk the cycle until it is back inside
        each = [v if np.ndim(v) == 0 else v[outside] for v in (a, b, *round_keys)]
        y[outside] = _encrypted(y[outside], each[0], each[1], each[2:])
        outside = y >= n
    return y


def _encrypted(x: U64, a: Any, b: Any, round_keys: Sequence[Any]) -> U64:
    left = x // b
    right = x - left * b
    with np.errstate(over="ignore"):
        for r, key in enumerate(round_keys):
            # The high 32 bits of a hash, scaled to the range: Lemire's multiply-shift instead of a division. The sum of
            # two numbers below the range is reduced by one subtraction, which wraps around to a number above both
            # where nothing is to be subtracted.
            if r % 2:
                left = left + ((mix64(right + key) >> _SHIFT32) * a >> _SHIFT32)
                left = np.minimum(left, left - a)
            else:
                right = right + ((mix64(left + key) >> _SHIFT32) * b >> _SHIFT32)
                right = np.minimum(right, right - b)
    return np.asarray(left * b + right)


@dataclass(frozen=True)
class Sequential:
    """Samples in the order of the dataset."""

    n: int

    def __len__(self) -> int:
        return self.n

    def at(self, positions: I64) -> tuple[I64, U64]:
        return positions, positions.astype(np.uint64)


_BLOCK = 256
"""Positions that are permuted together for small batches."""


class Shuffle:
    """Permutation of ``n`` samples, keyed by (seed, epoch). See :func:`permuted`."""

    def __init__(self, n: int, seed: int, epoch: int):
        self.n = n
        if n > 1 << 63:
            raise ConfigError(f"Shuffle: {n} samples are more than 2**63")
        self._round_keys = _round_keys(seed, epoch)
        self._block: tuple[int, U64] = (-1, np.empty(0, np.uint64))
        """(number, permuted positions) of the block that was used last."""

    def __len__(self) -> int:
        return self.n

    def at(self, positions: I64) -> tuple[I64, U64]:
        y = self._few(positions) if 0 < len(positions) <= _BLOCK // 8 else self._permuted(positions)
        return y.astype(np.int64), y

    def _permuted(self, positions: I64) -> U64:
        return permuted(positions.astype(np.uint64), self.n, self._round_keys)

    def _few(self, positions: I64) -> U64:
        """Take a small batch out of a block of positions, which takes numpy as long as a single one."""
        number = int(positions[0]) // _BLOCK
        begin, end = number * _BLOCK, min((number + 1) * _BLOCK, self.n)
        if positions.min() < begin or positions.max() >= end:
            return self._permuted(positions)
        known, block = self._block
        if known != number:
            block = self._permuted(np.arange(begin, end, dtype=np.int64))
            self._block = number, block
        return block[positions - begin]


@lru_cache(maxsize=256)
def _round_keys(seed: int, epoch: int) -> tuple[np.uint64, ...]:
    """Return the keys of a permutation's rounds. Asking for single steps makes the order of an epoch many times."""
    root = stream(seed, epoch, "order")
    return tuple(np.uint64(stream(root, r)) for r in range(_ROUNDS))


class Passes:
    """Endless passes over groups of numbers. Each pass over a group has all of its numbers once, in an order of its
    own.

    Args:
        sizes: i64[G], count of numbers in each group, at least 1.
        seed: seed of the permutations.
        shuffled: whether passes are permuted. Otherwise each pass is 0, 1, 2, ...
    """

    def __init__(self, sizes: I64, seed: int, *, shuffled: bool = True):
        self.sizes = sizes
        self._shuffled = shuffled
        self._root = np.uint64(stream(seed, "passes"))

    def at(self, groups: I64 | int, uses: I64) -> tuple[I64, U64]:
        """Return (number i64[B] in the group, pass u64[B]) of use number ``uses`` i64[B] of one or B ``groups``."""
        n = self.sizes[groups]
        passes, inside = np.divmod(uses, n)
        turn, x = passes.astype(np.uint64), inside.astype(np.uint64)
        if not self._shuffled:
            return inside, turn
        with np.errstate(over="ignore"):
            key = mix64(mix64(self._root + np.asarray(groups, np.uint64)) + turn)
            rounds = [mix64(key + np.uint64(r + 1) * _GOLDEN) for r in range(_ROUNDS)]
        return permuted(x, n.astype(np.uint64), rounds).astype(np.int64), turn


class Repeats:
    """Order of one epoch of repeated augmentation: each of ``n`` samples ``repeats`` times in a row.

    Epochs are consecutive parts of an endless sequence of passes over the dataset.
    """

    def __init__(self, n: int, repeats: int, length: int, seed: int, epoch: int):
        self._passes = Passes(np.array([n]), seed)
        self._repeats, self._length, self._first = repeats, length, epoch * length

    def __len__(self) -> int:
        return self._length

    def at(self, positions: I64) -> tuple[I64, U64]:
        use, repeat = np.divmod(positions + self._first, self._repeats)
        indices, turns = self._passes.at(0, use)
        # The pass and the number of the repeat tell the occurrences of a sample apart.
        return indices, keyed(indices, turns * np.uint64(self._repeats) + repeat.astype(np.uint64))


class Explicit:
    """Indices of a dataset of ``n`` samples in the order that a script lists them. They may repeat."""

    def __init__(self, indices: npt.ArrayLike, n: int):
        given = np.asarray(indices)
        if given.size == 0:
            given = given.astype(np.int64)
        if given.ndim != 1 or given.dtype.kind not in "iu":
            raise ConfigError(f"a sampler must give integers, not {given.dtype} of shape {given.shape}")
        self.indices: I64 = given.astype(np.int64)
        outside = (self.indices < 0) | (self.indices >= n)
        if outside.any():
            at = int(np.argmax(outside))
            raise ConfigError(
                f"a sampler gave index {self.indices[at]} at position {at}; this dataset has {n} samples, "
                f"so indices go from 0 to {n - 1}"
            )
        # A repeated sample gets a key of its own for each occurrence, so that its draws differ.
        self._keys = keyed(self.indices, _occurrence(self.indices))

    def __len__(self) -> int:
        return len(self.indices)

    def at(self, positions: I64) -> tuple[I64, U64]:
        return self.indices[positions], self._keys[positions]


class Batched(Explicit):
    """Batches of indices that a script lists.

    Args:
        batches: arrays i64[B], read by :meth:`read`: torch draws numbers between ``iter()`` and the first batch.
        n: size of the dataset.
    """

    def __init__(self, batches: Iterable[I64], n: int):
        self._given, self._n = batches, n

    def read(self) -> Batched:
        """Read all batches. Must be called before anything else."""
        batches = list(self._given)
        self.ends = np.cumsum([0, *map(len, batches)])
        """i64[K + 1], the positions where the batches begin, and the end of the last one."""
        super().__init__(np.concatenate(batches) if batches else [], self._n)
        return self


def keyed(indices: I64, occurrences: U64) -> U64:
    """Return the keys u64[B] of samples: their indices, and in the high bits which occurrence of the sample it is."""
    return (indices.astype(np.uint64) & _INDEX_BITS) | (occurrences << _OCCURRENCE_BIT)


def _occurrence(indices: I64) -> U64:
    """Return how often each value occurred before: [7, 3, 7, 7] -> [0, 0, 1, 2]."""
    by_value = np.argsort(indices, kind="stable")
    ordered = indices[by_value]
    starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]]) if len(ordered) else np.empty(0, np.int64)
    run_lengths = np.diff(np.r_[starts, len(ordered)])
    count = np.empty(len(indices), np.uint64)
    count[by_value] = np.arange(len(ordered)) - np.repeat(starts, run_lengths)
    return count


def weighted(weights: npt.ArrayLike, num_samples: int, replacement: bool, seed: int, epoch: int) -> Explicit:
    """Draw ``num_samples`` indices with probability proportional to ``weights`` (f64[N]), as torch's
    WeightedRandomSampler.

    Without replacement, these are the largest Gumbel-perturbed log weights (Efraimidis and Spirakis, 2006).

    Raises :class:`ConfigError` for the same weights as :func:`checked_weights`.
    """
    w = checked_weights(weights, num_samples, replacement)
    if replacement:
        u = uniforms(seed, epoch, "weighted", np.arange(num_samples), 1)[:, 0]
        edges = np.cumsum(w)
        # Index i owns the part [edges[i-1], edges[i]) of the line, so a weight of zero is never drawn.
        drawn = np.searchsorted(edges, u * edges[-1], side="right")
        # u * edges[-1] may round to edges[-1], which lies after the last index with a positive weight.
        return Explicit(np.minimum(drawn, np.flatnonzero(w)[-1]), len(w))
    positive = np.flatnonzero(w)
    u = uniforms(seed, epoch, "weighted", positive, 1)[:, 0]
    # Exponential arrival times at rate w: the first arrivals are distributed as draws one after another.
    arrival = -np.log1p(-u) / w[positive]
    return Explicit(positive[np.argsort(arrival, kind="stable")[:num_samples]], len(w))


def checked_weights(weights: npt.ArrayLike, num_samples: int, replacement: bool) -> npt.NDArray[np.float64]:
    """Return f64[N]. Raises :class:`ConfigError` if weights are invalid, or fewer than ``num_samples`` are positive."""
    w = np.asarray(weights, np.float64)
    if w.ndim != 1 or len(w) == 0 or not np.isfinite(w).all() or (w < 0).any() or w.sum() <= 0:
        raise ConfigError("weights must be a list of finite numbers, none negative and not all zero")
    if not replacement and num_samples > np.count_nonzero(w):
        raise ConfigError(
            f"{num_samples} samples without replacement, but only {np.count_nonzero(w)} weights are above zero: "
            "lower num_samples or allow replacement"
        )
    return w
