"""In which order samples are seen, and who sees which: pure numpy functions of (seed, epoch, world).

An order is never stored. :class:`Shuffle` computes any part of a permutation of ``n`` samples from the positions
asked for,
so that starting an epoch, or resuming in the middle of one, costs the same for ten thousand samples
and for fourteen million.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from ..errors import ConfigError
from ..rng import mix64, stream, uniforms
from ..types import Shard

__all__ = ["Explicit", "Order", "Sequential", "Shuffle", "Slices", "weighted"]

I64 = npt.NDArray[np.int64]
U64 = npt.NDArray[np.uint64]

_OCCURRENCE_BIT = np.uint64(40)  # positions below 2**40, occurrences below 2**24
_SHIFT32 = np.uint64(32)


class Order(Protocol):
    """The samples of one epoch, over all ranks."""

    def __len__(self) -> int:
        """How many samples the epoch has."""
        ...

    def at(self, positions: I64) -> tuple[I64, U64]:
        """(indices i64[B], keys u64[B]) at the given positions of the epoch, each in [0, len)."""
        ...


@dataclass(frozen=True)
class Sequential:
    """The dataset's own order."""

    n: int

    def __len__(self) -> int:
        return self.n

    def at(self, positions: I64) -> tuple[I64, U64]:
        return positions, positions.astype(np.uint64)


class Shuffle:
    """A permutation of ``n`` samples, keyed by (seed, epoch): a Feistel network over ``a x b >= n`` cells with cycle
    walking
    (Black and Rogaway, *Ciphers with arbitrary finite domains*, CT-RSA 2002, section "generalized Feistel").
    """

    ROUNDS = 16  # even; far more than the proofs want, because small n needs them to reach every permutation

    def __init__(self, n: int, seed: int, epoch: int):
        self.n = n
        self._a = max(1, math.isqrt(max(n - 1, 0)) + 1)
        self._b = max(1, -(-n // self._a))
        if self._a >= 1 << 32:
            raise ConfigError(f"Shuffle: {n} samples are more than 2**64")
        root = stream(seed, epoch, "order")
        self._round_keys = [np.uint64(stream(root, r)) for r in range(self.ROUNDS)]

    def __len__(self) -> int:
        return self.n

    def _encrypt(self, x: U64) -> U64:
        """u64[B] in [0, a*b) to u64[B] in [0, a*b), one to one."""
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
    """Indices that somebody listed, in that order; they may repeat. ``n`` is the size of the dataset."""

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
        self._keys = self.indices.astype(np.uint64) | (_occurrence(self.indices) << _OCCURRENCE_BIT)

    def __len__(self) -> int:
        return len(self.indices)

    def at(self, positions: I64) -> tuple[I64, U64]:
        return self.indices[positions], self._keys[positions]


def _occurrence(indices: I64) -> U64:
    """For every entry, how often its value came before: [7, 3, 7, 7] -> [0, 0, 1, 2]."""
    by_value = np.argsort(indices, kind="stable")
    ordered = indices[by_value]
    starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]]) if len(ordered) else np.empty(0, np.int64)
    run_lengths = np.diff(np.r_[starts, len(ordered)])
    count = np.empty(len(indices), np.uint64)
    count[by_value] = np.arange(len(ordered)) - np.repeat(starts, run_lengths)
    return count


def weighted(weights: npt.ArrayLike, num_samples: int, replacement: bool, seed: int, epoch: int) -> Explicit:
    """``num_samples`` indices drawn with probability proportional to ``weights`` (f64[N]), as torch's
    WeightedRandomSampler
    does. Without replacement: the largest Gumbel-perturbed log weights (Efraimidis and Spirakis, 2006).
    """
    w = np.asarray(weights, np.float64)
    if w.ndim != 1 or len(w) == 0 or not np.isfinite(w).all() or (w < 0).any() or w.sum() <= 0:
        raise ConfigError("weights must be a list of finite numbers, none negative and not all zero")
    if replacement:
        u = uniforms(seed, epoch, "weighted", np.arange(num_samples), 1)[:, 0]
        edges = np.cumsum(w)
        drawn = np.searchsorted(edges, u * edges[-1], side="right")
        return Explicit(np.minimum(drawn, np.flatnonzero(w)[-1]), len(w))
    positive = np.flatnonzero(w)
    if num_samples > len(positive):
        raise ConfigError(
            f"{num_samples} samples without replacement, but only {len(positive)} weights are above zero: "
            "lower num_samples or allow replacement"
        )
    u = uniforms(seed, epoch, "weighted", positive, 1)[:, 0]
    arrival = -np.log1p(-u) / w[positive]
    return Explicit(positive[np.argsort(arrival, kind="stable")[:num_samples]], len(w))


@dataclass(frozen=True)
class Slices:
    """How an order is cut into batches and over ranks.

    Global batch ``s`` is ``order[s*G : (s+1)*G]`` with ``G = batch_size * world_size``; rank ``r`` takes the ``r``-th
    part of it. So the global batches do not depend on the number of ranks. With ``drop_last`` a short last batch is
    dropped; otherwise
    every rank gets an equal part of it, wrapped round to the front of the order as torch's DistributedSampler does.

    ``start`` samples were delivered before (a resume): batches are counted from there.
    """

    total: int
    batch_size: int
    shard: Shard
    drop_last: bool
    start: int = 0

    @property
    def global_batch(self) -> int:
        return self.batch_size * self.shard.world_size

    def __len__(self) -> int:
        """Batches that are left, the same on every rank."""
        left = max(self.total - self.start, 0)
        return left // self.global_batch if self.drop_last else -(-left // self.global_batch)

    def window(self, step: int) -> I64:
        """i64[2]: first position and number of samples of global batch ``step``."""
        first = self.start + step * self.global_batch
        return np.array([first, min(self.global_batch, self.total - first)], np.int64)

    def take(self, step: int) -> tuple[I64, int, int]:
        """Batch ``step`` of this rank: (positions i64[B], how many of them are real, samples consumed after it)."""
        if not 0 <= step < len(self):
            raise IndexError(f"step {step} of {len(self)}")
        first, count = self.window(step).tolist()
        share = -(-count // self.shard.world_size)
        mine = first + self.shard.rank * share + np.arange(share, dtype=np.int64)
        valid = int(np.clip(count - self.shard.rank * share, 0, share))
        return mine % self.total if valid < share else mine, valid, first + count
