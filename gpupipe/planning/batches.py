"""How an order is cut into batches, and who sees which."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import numpy.typing as npt

from ..errors import ConfigError, StateError
from ..types import Shard
from .order import Streamed

__all__ = ["Batches", "GivenBatches", "Slices", "StreamedSlices"]

I64 = npt.NDArray[np.int64]


class Batches(Protocol):
    """The batches of one rank and epoch that are left, numbered from 0."""

    @property
    def ranks(self) -> int:
        """How many share the order."""
        ...

    def has(self, step: int) -> bool:
        """Whether there is a batch of this number."""
        ...

    def window(self, step: int) -> I64:
        """i64[2]: first position and number of samples of global batch ``step``."""
        ...

    def take(self, step: int) -> tuple[I64, int, int]:
        """Batch ``step`` of this rank: (positions i64[B], how many of them are real, samples consumed after it)."""
        ...

    def rest(self, start: int) -> Batches:
        """Those that are left if ``start`` samples were delivered. Raises :class:`StateError` if there are fewer, or a
        batch that was given does not end there."""
        ...


@dataclass(frozen=True)
class Slices:
    """How an order is cut into batches and over ranks.

    Global batch ``s`` is ``order[s*G : (s+1)*G]`` with ``G = batch_size * world_size``; rank ``r`` takes the ``r``-th
    part of it. So the global batches do not depend on the number of ranks. With ``drop_last`` a short last batch is
    dropped; otherwise every rank gets an equal part of it, wrapped round to the front of the order as torch's
    DistributedSampler does.

    ``start`` samples were delivered before (a resume): batches are counted from there.
    """

    total: int
    batch_size: int
    shard: Shard
    drop_last: bool
    start: int = 0
    strided: bool = False
    """Whether rank ``r`` takes every ``world_size``-th sample of a global batch, from number ``r`` on, as torch's
    DistributedSampler does; otherwise neighbouring ones."""

    @property
    def ranks(self) -> int:
        return self.shard.world_size

    @property
    def global_batch(self) -> int:
        return self.batch_size * self.shard.world_size

    def __len__(self) -> int:
        """Batches that are left, the same on every rank."""
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
        rank, world = self.shard.rank, self.shard.world_size
        share = -(-count // world)
        own = range(rank, count, world) if self.strided else range(rank * share, min((rank + 1) * share, count))
        valid = len(own)
        mine = first + own.start + own.step * np.arange(share, dtype=np.int64)
        return mine % self.total if valid < share else mine, valid, first + count

    def rest(self, start: int) -> Slices:
        return replace(self, start=start)


@dataclass(frozen=True)
class StreamedSlices:
    """:class:`Slices` of an order whose length shows only when it ends."""

    order: Streamed
    slices: Slices
    """Of any ``total``."""

    @property
    def ranks(self) -> int:
        return self.slices.ranks

    @property
    def strided(self) -> bool:
        return self.slices.strided

    @property
    def global_batch(self) -> int:
        return self.slices.global_batch

    def _known(self, step: int) -> Slices:
        # Up to the end of this batch: as much as the engine asked for, and no more.
        end = self.slices.start + (step + 1) * self.slices.global_batch
        return replace(self.slices, total=self.order.reach(end))

    def has(self, step: int) -> bool:
        return self._known(step).has(step)

    def window(self, step: int) -> I64:
        return self._known(step).window(step)

    def take(self, step: int) -> tuple[I64, int, int]:
        return self._known(step).take(step)

    def rest(self, start: int) -> StreamedSlices:
        if (there := self.order.reach(start)) < start:
            raise StateError(
                f"this state is {start} samples into an epoch, and its sampler gave {there}; use the same sampler, "
                "or start a new epoch with set_epoch()"
            )
        return replace(self, slices=self.slices.rest(start))


@dataclass(frozen=True)
class GivenBatches:
    """Batches as a batch sampler gave them, on this rank alone."""

    order: Streamed
    first: int = 0
    """Batches that were delivered before."""

    @property
    def ranks(self) -> int:
        return 1

    def has(self, step: int) -> bool:
        return self.order.batch(self.first + step) is not None

    def window(self, step: int) -> I64:
        found = self.order.batch(self.first + step)
        if found is None:
            raise IndexError(f"there is no batch {step}")
        if not found[1]:
            raise ConfigError("the batch sampler gave a batch without samples; leave such batches out")
        return np.array(found, np.int64)

    def take(self, step: int) -> tuple[I64, int, int]:
        first, count = self.window(step).tolist()
        return first + np.arange(count, dtype=np.int64), count, first + count

    def rest(self, start: int) -> GivenBatches:
        number = self.order.number(start)
        if number is None:
            raise StateError(
                f"this state is {start} samples into an epoch, and there the batch sampler cuts none; use the same "
                "batch sampler, or start a new epoch with set_epoch()"
            )
        return replace(self, first=number)
