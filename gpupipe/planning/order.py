"""Order of samples: pure numpy functions of (seed, epoch), or the output of a sampler.

Permutations are never stored. :class:`Shuffle` computes any part of a permutation from the requested positions, so
starting or resuming an epoch costs the same for ten thousand samples as for fourteen million.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from ..errors import ConfigError
from ..rng import mix64, stream, uniforms

I64 = npt.NDArray[np.int64]
U64 = npt.NDArray[np.uint64]

_OCCURRENCE_BIT = np.uint64(40)  # positions below 2**40, occurrences below 2**24
_INDEX_BITS = np.uint64(2**40 - 1)
_SHIFT32 = np.uint64(32)


class Order(Protocol):
    """Samples of one epoch, over all ranks."""

    def __len__(self) -> int:
        """Number of samples in the epoch."""
        ...

    def at(self, positions: I64) -> tuple[I64, U64]:
        """Return (indices i64[B], keys u64[B]) at ``positions``, each in [0, len)."""
        ...


@dataclass(frozen=True)
class Sequential:
    """Samples in the order of the dataset."""

    n: int

    def __len__(self) -> int:
        return self.n

    def at(self, positions: I64) -> tuple[I64, U64]:
        return positions, positions.astype(np.uint64)


class Shuffle:
    """Permutation of ``n`` samples, keyed by (seed, epoch).

    It is a Feistel network over ``a x b >= n`` cells with cycle walking (Black and Rogaway, *Ciphers with arbitrary
    finite domains*, CT-RSA 2002, section "generalized Feistel").
    """

    ROUNDS = 16  # even; more than the proofs require, because small n needs them to reach every permutation

    def __init__(self, n: int, seed: int, epoch: int):
        self.n = n
        # a * a >= n, and b is the smallest number with a * b >= n. So a * b - n < a: few cells lie outside the range,
        # and nearly every walk ends after one step. Halves of about the same size also mix best.
        self._a = max(1, math.isqrt(max(n - 1, 0)) + 1)
        self._b = max(1, -(-n // self._a))
        # _encrypt() hashes and scales each half in 32 bits.
        if self._a >= 1 << 32:
            raise ConfigError(f"Shuffle: {n} samples are more than 2**64")
        root = stream(seed, epoch, "order")
        self._round_keys = [np.uint64(stream(root, r)) for r in range(self.ROUNDS)]

    def __len__(self) -> int:
        return self.n

    def _encrypt(self, x: U64) -> U64:
        """Map u64[B] in [0, a*b) to u64[B] in [0, a*b), one to one."""
        a, b = np.uint64(self._a), np.uint64(self._b)
        left, right = x // b, x % b
        with np.errstate(over="ignore"):
            for r, key in enumerate(self._round_keys):
                # The high 32 bits of a hash, scaled to the range: Lemire's multiply-shift instead of a division.
                if r % 2:
                    left = (left + ((mix64(right + key) >> _SHIFT32) * a >> _SHIFT32)) % a
                else:
                    right = (right + ((mix64(left + key) >> _SHIFT32) * b >> _SHIFT32)) % b
        return left * b + right

    def at(self, positions: I64) -> tuple[I64, U64]:
        y = self._encrypt(positions.astype(np.uint64))
        outside = y >= np.uint64(self.n)
        while outside.any():  # walk the cycle until it is back inside; a*b - n < a cells are outside
            y[outside] = self._encrypt(y[outside])
            outside = y >= np.uint64(self.n)
        return y.astype(np.int64), y


class Explicit:
    """Indices in the order that a script lists them. They may repeat.

    Args:
        indices: the list.
        n: the size of the dataset; ``None`` if its own code knows what an index means, whatever its length says.
    """

    def __init__(self, indices: npt.ArrayLike, n: int | None):
        given = np.asarray(indices)
        if given.size == 0:
            given = given.astype(np.int64)
        if given.ndim != 1 or given.dtype.kind not in "iu":
            raise ConfigError(f"a sampler must give integers, not {given.dtype} of shape {given.shape}")
        self.indices: I64 = given.astype(np.int64)
        outside = (self.indices < 0) | (self.indices >= (n or 0))
        if n is not None and outside.any():
            at = int(np.argmax(outside))
            raise ConfigError(
                f"a sampler gave index {self.indices[at]} at position {at}; this dataset has {n} samples, "
                f"so indices go from 0 to {n - 1}"
            )
        # A repeated sample gets a key of its own for each occurrence, so that its draws differ.
        self._keys = (self.indices.astype(np.uint64) & _INDEX_BITS) | (_occurrence(self.indices) << _OCCURRENCE_BIT)

    def __len__(self) -> int:
        return len(self.indices)

    def at(self, positions: I64) -> tuple[I64, U64]:
        return self.indices[positions], self._keys[positions]


class Streamed:
    """Samples of an iterator, read only as far as needed: a sampler may have neither a length nor an end.

    Args:
        given: indices, or if ``batched`` lists of indices, whose division :meth:`batch` reports.
        n: size of the dataset, or ``None``; see :class:`Explicit`.

    Of the samples read long ago only the beginning is kept, to pad a last batch.
    """

    BLOCK = 1 << 16
    KEPT = 64
    """Number of blocks of :data:`BLOCK` samples kept besides the first one."""

    def __init__(self, given: Iterable[Any], n: int | None, *, batched: bool = False):
        self._given = iter(given)
        self._batched = batched
        self._n = n
        self._times = np.zeros(n or 0, np.uint32)  # occurrences of each index
        self._times_of_any = Counter[int]()  # occurrences, if an index may be any number
        self._blocks: dict[int, tuple[I64, U64]] = {}
        self._read = 0
        self._ended = False
        self._ends = [0]  # ends of batches, beginning with batch _first
        self._first = 0

    def __len__(self) -> int:
        if not self._ended:
            raise TypeError("the number of samples is unknown until the sampler ends, because it has no length")
        return self._read

    def reach(self, count: int) -> int:
        """Read until ``count`` samples are available or the iterator ends. Return the number available."""
        while self._read < count and not self._ended:
            self._more(count - self._read)
        return self._read

    def batch(self, number: int) -> tuple[int, int] | None:
        """Return (position of the first sample, number of samples) of a given batch, or ``None`` after the last one."""
        while number + 1 >= self._first + len(self._ends) and not self._ended:
            self._more(1)
        at = number - self._first
        return (self._ends[at], self._ends[at + 1] - self._ends[at]) if at + 1 < len(self._ends) else None

    def number(self, position: int) -> int | None:
        """Return the number of the batch that begins at ``position``, or ``None`` if none does. The end of the last
        batch counts as a beginning."""
        while self._ends[-1] < position and not self._ended:
            self._more(1)
        at = bisect_left(self._ends, position)
        return self._first + at if self._ends[at : at + 1] == [position] else None

    def at(self, positions: I64) -> tuple[I64, U64]:
        if len(positions):
            self.reach(int(positions.max()) + 1)
        indices, keys = np.empty(len(positions), np.int64), np.empty(len(positions), np.uint64)
        numbers, offsets = np.divmod(positions, self.BLOCK)
        for number in np.unique(numbers).tolist():
            here, block = numbers == number, self._blocks[number]
            indices[here], keys[here] = block[0][offsets[here]], block[1][offsets[here]]
        return indices, keys

    def _times_before(self, indices: I64) -> U64:
        """Return how often each index has come before, and count these."""
        if self._n is None:
            values = indices.tolist()
            before = np.array([self._times_of_any[value] for value in values], np.uint64)
            self._times_of_any.update(values)
            return before
        before = self._times[indices].astype(np.uint64)
        np.add.at(self._times, indices, 1)
        return before

    def _more(self, wanted: int) -> None:
        if self._batched:
            batch = next(self._given, None)
            self._ended = batch is None
        else:
            batch = list(islice(self._given, wanted))
            self._ended = len(batch) < wanted
        new = Explicit([] if batch is None else batch, self._n)  # checks the indices and counts repeats
        indices, keys = new.at(np.arange(len(new), dtype=np.int64))
        keys += self._times_before(indices) << _OCCURRENCE_BIT
        done = 0
        while done < len(indices):
            number, offset = divmod(self._read, self.BLOCK)
            if offset == 0:
                self._blocks[number] = np.empty(self.BLOCK, np.int64), np.empty(self.BLOCK, np.uint64)
                # Block 0 stays, because a last batch is padded with the first samples of the epoch.
                if number > self.KEPT:
                    del self._blocks[number - self.KEPT]
            part = min(self.BLOCK - offset, len(indices) - done)
            self._blocks[number][0][offset : offset + part] = indices[done : done + part]
            self._blocks[number][1][offset : offset + part] = keys[done : done + part]
            done, self._read = done + part, self._read + part
        if self._batched and not self._ended:
            self._ends.append(self._read)
            # An endless batch sampler would otherwise fill the memory. Only batches near the current one are requested.
            if len(self._ends) > 2 * self.BLOCK:
                del self._ends[: self.BLOCK]
                self._first += self.BLOCK


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
