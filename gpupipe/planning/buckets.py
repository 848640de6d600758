"""Orders of batches whose samples belong together: each batch has a size, and a shape, of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from ..errors import StateError
from ..rng import stream
from ..types import Shard
from .batches import Slices, part_of
from .classes import Members
from .order import Order, Passes, Shuffle

I64 = npt.NDArray[np.int64]
U64 = npt.NDArray[np.uint64]


@dataclass(frozen=True, eq=False)
class Layout:
    """Global batches of every epoch, which lie one after another in a line of samples. Each epoch has them in another
    order; those from ``whole`` on stay at its end.
    """

    first: I64
    """i64[T]: position in the line at which each batch begins."""
    count: I64
    """i64[T]: number of samples of each batch."""
    bucket: I64
    """i64[T]: bucket of each batch."""
    whole: int
    """Number of batches of full size."""

    def without_short(self) -> Layout:
        """Return the batches of full size."""
        kept = slice(self.whole)
        return Layout(self.first[kept], self.count[kept], self.bucket[kept], self.whole)


def laid_out(sizes: I64, batch: I64, home: int | None) -> Layout:
    """Divide a line of buckets into batches.

    The samples that fill no batch of their bucket go to the neighbor in the direction of ``home``, which alone may have
    a short batch: the line is cut at multiples of the batch sizes, from both ends.

    Args:
        sizes: i64[K], number of samples of each bucket.
        batch: i64[K], samples in a global batch of each bucket.
        home: the bucket that gets what remains; ``None`` for a short batch of every bucket.
    """
    ends = np.cumsum(sizes)
    starts = ends - sizes
    whole: list[tuple[int, int, int]] = []  # (first position, batches, bucket)
    short: list[tuple[int, int, int]] = []  # (first position, samples, bucket)
    # The part of the line between `left` and `right` has no batches yet.
    left, right = 0, int(ends[-1])
    for bucket in range(len(sizes) if home is None else home):
        # `left` may lie in an earlier bucket: what filled no batch there comes along.
        count = int(ends[bucket] - left) // int(batch[bucket])
        whole.append((left, count, bucket))
        left += count * int(batch[bucket])
        if home is None:
            short.append((left, int(ends[bucket]) - left, bucket))
            left = int(ends[bucket])
    if home is not None:
        # From the other end, what fills no batch goes to the bucket on the left.
        for bucket in range(len(sizes) - 1, home, -1):
            count = int(right - starts[bucket]) // int(batch[bucket])
            right -= count * int(batch[bucket])
            whole.append((right, count, bucket))
        count = (right - left) // int(batch[home])
        whole.append((left, count, home))
        left += count * int(batch[home])
        short.append((left, right - left, home))
    short = [found for found in short if found[1]]
    full = [(first + batch[bucket] * np.arange(count), bucket) for first, count, bucket in whole]
    # Full batches come first, and short ones stay behind them in every epoch.
    first = np.concatenate([*(found for found, _ in full), np.array([found[0] for found in short], np.int64)])
    buckets = np.repeat([bucket for *_, bucket in (*whole, *short)], [*(n for _, n, _ in whole), *(1 for _ in short)])
    count_of = batch[buckets]
    whole_count = len(first) - len(short)
    count_of[whole_count:] = [found[1] for found in short]
    return Layout(first.astype(np.int64), count_of, buckets.astype(np.int64), whole_count)


def in_turn(total: int, turns: Callable[[I64], I64], batch: I64) -> Layout:
    """Divide a line of ``total`` samples into batches of buckets that take turns.

    Args:
        turns: returns the bucket i64[B] at any positions i64[B] of an endless sequence.
        batch: i64[K], samples in a global batch of each bucket.
    """
    # So many batches reach the end of the line even if each has the smallest size.
    bucket = turns(np.arange(total // int(batch.min()) + 1))
    count = batch[bucket]
    ends = np.cumsum(count)
    steps = int(np.searchsorted(ends, total)) + 1
    bucket, count, ends = bucket[:steps], count[:steps], ends[:steps]
    first = ends - count
    is_short = int(ends[-1]) > total
    # The last batch has what is left of the line.
    count[-1] -= max(int(ends[-1]) - total, 0)
    return Layout(first, count, bucket, steps - is_short)


class Line:
    """All samples, bucket by bucket, those of a bucket in another order in every epoch.

    Args:
        members: samples of every bucket.
        shuffled: whether the samples of a bucket are permuted.
    """

    def __init__(self, members: Members, shuffled: bool, seed: int, epoch: int):
        self._members, self._epoch = members, epoch
        self._ends = np.cumsum(members.sizes)
        self._passes = Passes(members.sizes, seed, shuffled=shuffled)

    def __len__(self) -> int:
        return int(self._ends[-1])

    def at(self, positions: I64) -> tuple[I64, U64]:
        buckets = np.searchsorted(self._ends, positions, "right")
        sizes = self._members.sizes[buckets]
        # The position within the bucket, positions - (ends - sizes), after a pass over it for every earlier epoch.
        numbers, _ = self._passes.at(buckets, positions - self._ends[buckets] + sizes * (self._epoch + 1))
        indices = self._members.index(buckets, numbers)
        return indices, indices.astype(np.uint64)


@dataclass(frozen=True, eq=False)
class Buckets:
    """Division of the samples of every epoch into batches.

    Args:
        line: the samples, from (seed, epoch).
        layout: the batches, from the samples in a global batch of each bucket, i64[K].
        shapes: (height, width) of the images of each bucket, if they have one.
        batch: i64[K], samples in a global batch of each bucket; ``None`` for the loader's.
        shuffled: whether the batches of an epoch are permuted.
    """

    line: Callable[[int, int], Order]
    layout: Callable[[I64], Layout]
    shapes: Sequence[tuple[int, int]] | None
    batch: I64 | None
    count: int
    """Number of buckets."""
    shuffled: bool
    _made: dict[int, Layout] = field(default_factory=dict, init=False, repr=False)
    """Layouts by the size of a global batch; 0 for the buckets' own sizes."""

    def layout_of(self, global_batch: int) -> Layout:
        """Return the batches of every epoch, each of ``global_batch`` samples unless the buckets have sizes of their
        own."""
        key = 0 if self.batch is not None else global_batch
        if key not in self._made:
            self._made[key] = self.layout(np.full(self.count, key) if self.batch is None else self.batch)
        return self._made[key]

    def order(self, seed: int, epoch: int) -> Bucketed:
        return Bucketed(self, self.line(seed, epoch), seed, epoch)


class Bucketed:
    """Order of one epoch in buckets: a line of samples, which :meth:`divided` divides into batches."""

    def __init__(self, buckets: Buckets, line: Order, seed: int, epoch: int):
        self.buckets, self._line, self._seed, self._epoch = buckets, line, seed, epoch

    def __len__(self) -> int:
        return len(self._line)

    def at(self, positions: I64) -> tuple[I64, U64]:
        return self._line.at(positions)

    def divided(self, slices: Slices) -> BucketBatches:
        """Return the batches of the epoch. Their sizes are those of ``slices`` unless the buckets have their own."""
        layout = self.buckets.layout_of(slices.global_batch)
        layout = layout.without_short() if slices.drop_last else layout
        turn = np.arange(len(layout.first))
        if self.buckets.shuffled and layout.whole:
            # The key contains the epoch already.
            key = stream(self._seed, self._epoch, "batches")
            turn[: layout.whole] = Shuffle(layout.whole, key, 0).at(turn[: layout.whole])[0]
        whole = slices.given is not None or self.buckets.batch is not None
        return BucketBatches(layout, turn, np.cumsum(layout.count[turn]), self.buckets.shapes, slices.shard, whole)


@dataclass(frozen=True, eq=False)
class BucketBatches:
    """Batches of one rank and epoch, each of one bucket. All ranks have the same bucket in every step."""

    layout: Layout
    turn: I64
    """i64[T]: which batch of the layout each step has."""
    ends: I64
    """i64[T]: number of samples of the epoch that are delivered after each step."""
    shapes: Sequence[tuple[int, int]] | None
    shard: Shard
    whole: bool
    """Whether the ranks' parts of a full batch may differ by one sample."""
    begin: int = 0
    """Number of steps delivered before."""

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, BucketBatches)
            and (self.shapes, self.shard, self.whole, self.begin)
            == (other.shapes, other.shard, other.whole, other.begin)
            and np.array_equal(self.turn, other.turn)
            and np.array_equal(self.ends, other.ends)
            and np.array_equal(self.layout.first, other.layout.first)
        )

    __hash__ = None  # type: ignore[assignment]

    @property
    def ranks(self) -> int:
        return self.shard.world_size

    def __len__(self) -> int:
        return len(self.turn) - self.begin

    @property
    def samples(self) -> int:
        return sum(len(self.take(step)[0]) for step in range(len(self)))

    def has(self, step: int) -> bool:
        return 0 <= step < len(self)

    def _turn(self, step: int) -> int:
        if not self.has(step):
            raise IndexError(f"step {step} of {len(self)}")
        return int(self.turn[self.begin + step])

    def delivered(self, step: int) -> int:
        return int(self.ends[self.begin + step - 1]) if self.begin + step else 0

    def window(self, step: int) -> I64:
        turn = self._turn(step)
        return np.array([self.layout.first[turn], self.layout.count[turn]], np.int64)

    def take(self, step: int) -> tuple[I64, int, int]:
        turn = self._turn(step)
        first, count = int(self.layout.first[turn]), int(self.layout.count[turn])
        own, share = part_of(count, self.shard, whole=self.whole and turn < self.layout.whole)
        # A short batch is padded with its own samples, which belong to its bucket.
        positions = first + (own.start + np.arange(share, dtype=np.int64)) % count
        return positions, len(own), int(self.ends[self.begin + step])

    def shape(self, step: int) -> tuple[int, int] | None:
        return None if self.shapes is None else self.shapes[int(self.layout.bucket[self._turn(step)])]

    def tail(self, step: int) -> int | None:
        if self.has(step + 1):
            return None
        turn = self._turn(step)
        return 0 if turn < self.layout.whole else int(self.layout.count[turn])

    def rest(self, start: int) -> BucketBatches:
        steps = int(np.searchsorted(self.ends, start, "right")) if start else 0
        if start and (steps == 0 or int(self.ends[steps - 1]) != start):
            raise StateError(
                f"this state is {start} samples into an epoch, where no batch of these buckets ends: they resume by "
                "global batches; keep the samples in a global batch, also on another number of ranks "
                "(global_batch_size= or max_tokens=), or start a new epoch with set_epoch()"
            )
        return replace(self, begin=steps)
