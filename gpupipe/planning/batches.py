"""Division of an order into batches and ranks."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import numpy.typing as npt

from ..errors import StateError
from ..types import Shard
from .order import Batched

I64 = npt.NDArray[np.int64]


class Batches(Protocol):
    """Remaining batches of one rank and epoch, numbered from 0."""

    @property
    def ranks(self) -> int:
        """Number of ranks that share the order."""
        ...

    def has(self, step: int) -> bool:
        """Return whether batch ``step`` exists."""
        ...

    def window(self, step: int) -> I64:
        """Return i64[2]: first position and number of samples of global batch ``step``."""
        ...

    def take(self, step: int) -> tuple[I64, int, int]:
        """Return batch ``step`` of this rank: (positions i64[B], number of valid ones, samples consumed after it)."""
        ...

    def rest(self, start: int) -> Batches:
        """Return the batches that remain after ``start`` delivered samples. Raises :class:`StateError` if there are
        fewer samples, or if no given batch ends there."""
        ...

    def shape(self, step: int) -> tuple[int, int] | None:
        """Return the (height, width) that the images of batch ``step`` shall have, if its order decides that."""
        return None

    def tail(self, step: int) -> int | None:
        """Return ``None`` unless batch ``step`` is known to be the last one.

        Otherwise return the number of samples that all ranks together have in it, in rank order: 0 if it is as large
        as the batches before it, -1 if these samples are not contiguous.
        """
        return None


class Countable(Batches, Protocol):
    """Batches whose number is known."""

    def __len__(self) -> int:
        """Number of remaining batches, the same on every rank."""
        ...

    @property
    def samples(self) -> int:
        """Number of samples of this rank in the remaining batches, with those that pad them."""
        ...

    def delivered(self, step: int) -> int:
        """Return the number of samples of the epoch that are delivered before batch ``step``."""
        ...


def part_of(count: int, shard: Shard, *, whole: bool, strided: bool = False) -> tuple[range, int]:
    """Divide a global batch of ``count`` samples.

    All ranks need equally many samples, because collectives in the training step wait for every rank. So a short last
    batch is divided into parts of the largest share, and those that lack samples are padded.

    Args:
        whole: whether the parts may differ by one sample instead, and none comes twice.
        strided: whether a rank takes every ``world_size``-th sample.

    Returns:
        Numbers of the samples of this rank, and how many it needs.
    """
    rank, world = shard.rank, shard.world_size
    share = -(-count // world)
    if strided:
        own = range(rank, count, world)
    elif whole:
        own = range(rank * count // world, (rank + 1) * count // world)
    else:
        own = range(rank * share, min((rank + 1) * share, count))
    return own, len(own) if whole else share


@dataclass(frozen=True)
class Slices(Countable):
    """Division of an order of known length into batches and ranks.

    Global batch ``s`` is ``order[s*G : (s+1)*G]`` with ``G = global_batch``, and rank ``r`` takes its ``r``-th part, so
    global batches do not depend on the number of ranks. If ``G`` is no multiple of it, parts differ by one sample.
    ``drop_last`` drops a short last batch; otherwise every rank gets an equal part of it, wrapped around to the front
    of the order as in torch's DistributedSampler.

    A resumed epoch counts batches from ``start``, the number of samples delivered before.
    """

    total: int
    batch_size: int
    """Samples in the largest part of a global batch."""
    shard: Shard
    drop_last: bool
    start: int = 0
    strided: bool = False
    """Whether rank ``r`` takes every ``world_size``-th sample of a global batch, starting at ``r``, as torch's
    DistributedSampler does. Otherwise it takes consecutive samples."""
    given: int | None = None
    """Samples in a global batch, if it need not be a multiple of the number of ranks."""

    @property
    def ranks(self) -> int:
        return self.shard.world_size

    @property
    def global_batch(self) -> int:
        return self.batch_size * self.shard.world_size if self.given is None else self.given

    def __len__(self) -> int:
        """Number of remaining batches, the same on every rank."""
        left = max(self.total - self.start, 0)
        return left // self.global_batch if self.drop_last else -(-left // self.global_batch)

    def has(self, step: int) -> bool:
        return 0 <= step < len(self)

    def window(self, step: int) -> I64:
        first = self.start + step * self.global_batch
        return np.array([first, min(self.global_batch, self.total - first)], np.int64)

    def take(self, step: int) -> tuple[I64, int, int]:
        if not self.has(step):
            raise IndexError(f"step {step} of {len(self)}")
        first, count = self.window(step).tolist()
        # Only a full batch of given size may have unequal parts; a short last one is padded.
        own, share = part_of(count, self.shard, whole=count == self.given, strided=self.strided)
        mine = first + own.start + own.step * np.arange(share, dtype=np.int64)
        # A rank that lacks samples reads on past the end, which wraps around to the front of the order.
        return mine % self.total if len(own) < share else mine, len(own), first + count

    def rest(self, start: int) -> Slices:
        return replace(self, start=start)

    @property
    def samples(self) -> int:
        last = len(self) - 1
        # All batches but the last are as large as the first.
        return 0 if last < 0 else last * len(self.take(0)[0]) + len(self.take(last)[0])

    def delivered(self, step: int) -> int:
        return self.start + step * self.global_batch

    def tail(self, step: int) -> int | None:
        if self.has(step + 1):
            return None
        return -1 if self.strided else int(self.window(step)[1]) % self.global_batch


@dataclass(frozen=True)
class GivenBatches(Batches):
    """Batches as given by a batch sampler, on this rank only."""

    order: Batched
    first: int = 0
    """Number of batches delivered before."""

    @property
    def ranks(self) -> int:
        return 1

    def has(self, step: int) -> bool:
        return self.first + step + 1 < len(self.order.ends)

    def window(self, step: int) -> I64:
        begin, end = self.order.ends[self.first + step :][:2].tolist()
        return np.array([begin, end - begin], np.int64)

    def take(self, step: int) -> tuple[I64, int, int]:
        first, count = self.window(step).tolist()
        return first + np.arange(count, dtype=np.int64), count, first + count

    def rest(self, start: int) -> GivenBatches:
        number = int(np.searchsorted(self.order.ends, start))
        if start not in self.order.ends:
            raise StateError(
                f"this state is {start} samples into an epoch, where no batch of the batch sampler ends; use the same "
                "batch sampler, or start a new epoch with set_epoch()"
            )
        return replace(self, first=number)
