"""Orders of mixtures: which source every sample comes from, in fixed proportions and without random draws."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache
from typing import Literal

import numpy as np
import numpy.typing as npt

from ..datasets.mixture import Mixture
from ..errors import ConfigError
from .order import Passes, keyed

I64 = npt.NDArray[np.int64]
U64 = npt.NDArray[np.uint64]

Stop = Literal["first", "all"] | int

LONGEST = 1 << 16
"""Largest common denominator of weights. Weights that need a larger one are rounded to multiples of 1 / 65,536."""


class Proportions:
    """Endless sequence of sources. In every prefix of length p, source i occurs w[i] * p times, up to less than 1.

    The sequence is Tijdeman's (*The chairman assignment problem*, Discrete Mathematics 32, 1980): the copy number j of
    source i becomes available at (j + s) / w[i] and is due at (j + 1 - s) / w[i], with s = 1 / (2k - 2) for k sources,
    and every position takes the available copy that is due first. It repeats after as many positions as the weights'
    common denominator, so any position is found in one period.

    Args:
        weights: positive numbers, one for each of at least one source.
    """

    def __init__(self, weights: Sequence[float]):
        self.parts = _parts(weights)
        """Number of positions of each source in a period."""
        self.period = sum(self.parts)
        self._counts: I64 = np.array(self.parts, np.int64)
        self._sources, self._earlier = _period(self.parts)

    def at(self, positions: I64) -> tuple[I64, I64]:
        """Return the source i64[B] at ``positions`` i64[B], and how many earlier positions have the same source."""
        turn = positions // self.period
        inside = positions - turn * self.period
        sources = self._sources[inside]
        return sources, self._earlier[inside] + turn * self._counts[sources]

    def counts(self, length: int) -> I64:
        """Return how often each source occurs in the first ``length`` positions."""
        turn, rest = divmod(length, self.period)
        inside = np.bincount(self._sources[:rest], minlength=len(self.parts))
        return self._counts * turn + inside

    def __repr__(self) -> str:
        return " : ".join(map(str, self.parts))


class Blend:
    """The endless sequence of sources of a mixture, divided into epochs.

    Args:
        sizes: i64[k], number of samples of each source.
        weights: pairs of a position and the weights from there on. Positions ascend from 0 and count samples over all
            epochs. Only with an integer ``stop`` can there be several pairs.
        stop: ``"first"`` ends an epoch before a source would give a sample again, ``"all"`` as soon as every sample of
            every source was given, an integer after so many samples.
    """

    def __init__(self, sizes: I64, weights: Sequence[tuple[int, Sequence[float]]], stop: Stop):
        self.sizes = sizes
        self._starts = np.array([start for start, _ in weights], np.int64)
        self._spans = [Proportions(values) for _, values in weights]
        self.length = stop if isinstance(stop, int) else _length(self._spans[0], sizes, stop)
        """Samples of an epoch."""
        if not self.length:
            raise ConfigError(
                f'stop="first" leaves no sample: the sources have {", ".join(f"{n:,}" for n in sizes.tolist())} '
                f'samples for weights of {self._spans[0]!r}; use stop="all" or a number of samples'
            )
        self._restarts = not isinstance(stop, int)
        lengths = np.diff(self._starts).tolist()
        counts = [np.zeros(len(sizes), np.int64)]
        for span, length in zip(self._spans, lengths, strict=False):
            counts.append(counts[-1] + span.counts(length))
        self._used = np.stack(counts)
        """Number of samples of each source before each change of weights."""

    def proportions(self, epoch: int) -> Proportions:
        """Return the proportions at the beginning of an epoch."""
        return self._spans[int(np.searchsorted(self._starts, epoch * self.length, "right")) - 1]

    def at(self, epoch: int, positions: I64) -> tuple[I64, I64]:
        """Return the source i64[B] of each position i64[B] of an epoch, and how many samples of that source came
        before it, in all epochs."""
        if self._restarts:
            # Every epoch repeats the sequence of sources, but goes on with the passes over each of them.
            sources, earlier = self._spans[0].at(positions)
            return sources, earlier + epoch * self._spans[0].counts(self.length)[sources]
        places = positions + epoch * self.length
        numbers = np.searchsorted(self._starts, places, "right") - 1
        sources, earlier = np.empty(len(places), np.int64), np.empty(len(places), np.int64)
        for number in np.unique(numbers).tolist():
            here = numbers == number
            found, before = self._spans[number].at(places[here] - self._starts[number])
            sources[here], earlier[here] = found, before + self._used[number][found]
        return sources, earlier


def blend_of(mixture: Mixture) -> Blend:
    """Return the sequence of a mixture with its present weights."""
    return _blend(tuple(map(len, mixture.parts)), tuple(mixture.weights), mixture.stop)


@lru_cache(maxsize=16)
def _blend(sizes: tuple[int, ...], weights: tuple[tuple[int, tuple[float, ...]], ...], stop: Stop) -> Blend:
    return Blend(np.array(sizes, np.int64), weights, stop)


class Mixed:
    """Order of one epoch of a mixture. Its indices count the samples of all sources, one source after another.

    A source is used pass by pass: each pass has all of its samples once, and the next epoch continues where this one
    ends. The number of the pass is part of a sample's key, so that a repeated sample draws other numbers.
    """

    def __init__(self, blend: Blend, shuffled: bool, seed: int, epoch: int):
        self._blend, self._epoch = blend, epoch
        self._passes = Passes(blend.sizes, seed, shuffled=shuffled)
        self._offsets = np.cumsum(blend.sizes) - blend.sizes

    def __len__(self) -> int:
        return self._blend.length

    def at(self, positions: I64) -> tuple[I64, U64]:
        sources, uses = self._blend.at(self._epoch, positions)
        numbers, turns = self._passes.at(sources, uses)
        indices = numbers + self._offsets[sources]
        return indices, keyed(indices, turns)


def _length(proportions: Proportions, sizes: I64, stop: Stop) -> int:
    """Return the samples of an epoch that ends when the first or the last source is exhausted."""
    shares = np.array(proportions.parts, np.float64) / proportions.period
    # Every prefix is within one sample of the shares, so at this length every source is exhausted.
    low, high = 0, int((sizes / shares).max()) + proportions.period + 2
    fits = np.all if stop == "first" else np.any
    while high - low > 1:  # the longest prefix in which all sources, or any source, has samples left
        middle = (low + high) // 2
        inside = proportions.counts(middle) <= sizes if stop == "first" else proportions.counts(middle) < sizes
        low, high = (middle, high) if fits(inside) else (low, middle)
    # The longest such prefix still lacks one sample of the last source.
    return low if stop == "first" else low + 1


def _parts(weights: Sequence[float]) -> tuple[int, ...]:
    """Return integers with the proportions of the weights."""
    exact = [Fraction(weight).limit_denominator(LONGEST) for weight in weights]
    total = sum(exact)
    if total > 0 and min(exact) > 0:
        shares = [fraction / total for fraction in exact]
        common = math.lcm(*(share.denominator for share in shares))
        if common <= LONGEST:
            return tuple(int(share * common) for share in shares)
    shares_of = np.asarray(weights, np.float64) / math.fsum(weights) * LONGEST
    # The largest remainders are rounded up, and every source gets something.
    parts = np.maximum(np.floor(shares_of), 1).astype(np.int64)
    missing = LONGEST - int(parts.sum())
    if missing > 0:
        parts[np.argsort(parts - shares_of, kind="stable")[:missing]] += 1
    return tuple(parts.tolist())


@lru_cache(maxsize=16)
def _period(parts: tuple[int, ...]) -> tuple[I64, I64]:
    """Return for each position of a period its source, and how many earlier positions have the same source."""
    k, period = len(parts), sum(parts)
    sources = np.empty(period, np.int64)
    # The scale below would be 0.
    if k == 1:
        return np.zeros(period, np.int64), np.arange(period, dtype=np.int64)
    # All times are multiplied by 2k - 2, so that they are fractions of integers.
    scale = 2 * k - 2
    done = [0] * k
    waiting = [(_ceil(period, part * scale), i) for i, part in enumerate(parts)]
    heapq.heapify(waiting)
    available: list[tuple[Fraction, int]] = []
    for position in range(1, period + 1):
        while waiting and waiting[0][0] <= position:
            _, i = heapq.heappop(waiting)
            due = Fraction(period * (scale * (done[i] + 1) - 1), parts[i])
            heapq.heappush(available, (due, i))
        _, i = heapq.heappop(available)
        sources[position - 1] = i
        done[i] += 1
        heapq.heappush(waiting, (_ceil(period * (scale * done[i] + 1), parts[i] * scale), i))
    earlier = np.empty(period, np.int64)
    for i, part in enumerate(parts):
        earlier[sources == i] = np.arange(part)
    return sources, earlier


def _ceil(a: int, b: int) -> int:
    return -(-a // b)
