"""Which samples an epoch has, in which order, and how they are cut into batches and over ranks."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from torch.utils.data import DistributedSampler

from ..datasets.base import Dataset
from ..errors import ConfigError
from ..interop import SamplerPlan, is_batch_sampler_of_torch, translate_batch_sampler, translate_sampler
from ..planning.batches import Batches, GivenBatches, Slices, StreamedSlices
from ..planning.blocks import BlockShuffle, BlockShuffled, starts_of
from ..planning.order import Order, Sequential, Shuffle, Streamed
from ..types import Shard
from .arguments import Arguments, Shuffling, check_integer, length_of

__all__ = ["Batching", "batching_of"]

_LIKELY = 32
"""Samples of a batch, if nothing says how many."""


@dataclass(frozen=True)
class Batching:
    """Of every epoch of a loader, on this rank."""

    batch_size: int
    drop_last: bool
    shard: Shard
    sampler: SamplerPlan
    given: Any = None
    """A batch sampler whose batches are taken as they are; ``batch_size`` is the size that they are likely to have."""
    instead_of: Batching | None = None
    """How the loader would cut by itself, if a subclass put ``given`` in the place of that."""
    by_blocks: BlockShuffle | None = None

    def order(self, seed: int, epoch: int) -> Order:
        """The samples of an epoch, over all ranks."""
        return self.sampler.order(seed, epoch)

    def slices(self, total: int | None = None) -> Slices:
        """How as many samples as the sampler says, or ``total``, are cut.

        Raises TypeError if the sampler does not say how many there are.
        """
        total = self.sampler.length if total is None else total
        if total is None:
            raise TypeError(f"this loader has no len(): its sampler, {self.sampler.name}, has none")
        strided = self.sampler.shard is not None
        return Slices(total, self.batch_size, self.shard, self.drop_last, strided=strided)

    def batches(self, order: Order, start: int = 0) -> Batches:
        """How an order is cut, of which ``start`` samples were delivered before; see :meth:`Batches.rest`."""
        batches: Batches
        if not isinstance(order, Streamed):
            batches = self.slices(len(order))
        elif self.given is None:
            batches = StreamedSlices(order, self.slices(0))
        else:
            batches = GivenBatches(order)
        return batches.rest(start)

    def __len__(self) -> int:
        """Batches of an epoch on this rank. Raises TypeError if that shows only when it ends."""
        return len(self.slices()) if self.given is None else len(self.given)


def batching_of(a: Arguments, dataset: Dataset) -> Batching:
    """What the arguments say of a dataset. Raises :class:`ConfigError` if they do not fit together."""
    n = len(dataset)
    sampler, batch_size, drop_last = a.sampler, a.batch_size, a.drop_last
    assert batch_size is not None
    if a.replaced is not None:
        own = batching_of(a.changed(replaced=None), dataset)
        own_sampler = a.replaced.sampler
        begins = () if own_sampler is None else (own_sampler.begin,)
        plan = translate_batch_sampler(a.replaced.batches, n, *begins)
        return Batching(own.batch_size, False, Shard(), plan, given=a.replaced.batches, instead_of=own)
    if a.batch_sampler is not None:
        if batch_size != 1 or a.shuffle or sampler is not None or drop_last:
            raise ConfigError("batch_sampler goes without batch_size, shuffle, sampler and drop_last, as in torch")
        if not is_batch_sampler_of_torch(a.batch_sampler):
            return _as_given(a, n)
        batches = a.batch_sampler
        sampler, batch_size, drop_last = batches.sampler, batches.batch_size, bool(batches.drop_last)
        batch_size = check_integer(batch_size, "batch_size", 1)
    if sampler is not None and a.shuffle:
        raise ConfigError("shuffle=True and a sampler exclude each other, as in torch; leave one of them out")
    plan = _own(dataset, a.shuffle) if sampler is None else translate_sampler(sampler, n)
    if a.shard is not None and plan.shard is not None and a.shard != plan.shard:
        raise ConfigError(f"the sampler is for {plan.shard}, but shard={a.shard}; leave one of them out")
    by_blocks = a.shuffle if isinstance(a.shuffle, BlockShuffle) else None
    return Batching(batch_size, drop_last, plan.shard or a.shard or Shard(), plan, by_blocks=by_blocks)


def _own(dataset: Dataset, shuffle: Shuffling) -> SamplerPlan:
    n = len(dataset)
    if isinstance(shuffle, BlockShuffle):
        sizes = dataset.file_sizes
        if sizes is None:
            raise ConfigError(
                f"shuffle={shuffle!r} is for samples that lie in files, and {dataset!r} does not say how large they "
                "are; use shuffle=True"
            )
        starts = starts_of(sizes, shuffle.block_bytes, dataset.pages)
        return SamplerPlan.of(shuffle.name, n, partial(BlockShuffled, n, starts, shuffle.blocks))
    if shuffle:
        return SamplerPlan.of("shuffled", n, partial(Shuffle, n))
    return SamplerPlan.of("sequential", n, partial(_sequential, n))


def _sequential(n: int, *_seed_and_epoch: int) -> Order:
    return Sequential(n)


def _as_given(a: Arguments, n: int) -> Batching:
    """The batches of a batch sampler that is not torch's."""
    cut = isinstance(getattr(a.batch_sampler, "sampler", None), DistributedSampler)  # as Lightning's wrapper has it
    if a.shard is not None and a.shard.world_size > 1 and not cut:
        raise ConfigError(f"shard={a.shard} with a batch sampler of one's own: let the batch sampler cut the ranks")
    batches = a.batch_sampler
    return Batching(_likely_size(batches), False, Shard(), translate_batch_sampler(batches, n), given=batches)


def _likely_size(batches: Any) -> int:
    """Of the batches of a batch sampler, as far as it can be known without iterating it."""
    size = getattr(batches, "batch_size", None)
    if isinstance(size, int) and size > 0:
        return size
    sizes = [length_of(batch) or 1 for batch in batches] if type(batches) in (list, tuple) else []
    return max(sizes, default=_LIKELY)
