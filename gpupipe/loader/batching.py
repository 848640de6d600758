"""Which samples an epoch has, in which order, and how they are cut into batches and over ranks."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from ..errors import ConfigError
from ..interop import SamplerPlan, split_batch_sampler, translate_sampler
from ..planning.order import Order, Sequential, Shuffle, Slices
from ..types import Shard
from .arguments import Arguments, check_integer

__all__ = ["Batching", "batching_of"]


@dataclass(frozen=True)
class Batching:
    """Of every epoch of a loader, on this rank."""

    batch_size: int
    drop_last: bool
    shard: Shard
    sampler: SamplerPlan

    def order(self, seed: int, epoch: int) -> Order:
        """The samples of an epoch, over all ranks."""
        return self.sampler.order(seed, epoch)

    def slices(self, total: int | None = None, start: int = 0) -> Slices:
        """How they are cut.

        Args:
            total: how many samples the epoch has; by default as many as the sampler says.
            start: how many of them were delivered before.
        """
        total = self.sampler.length if total is None else total
        return Slices(total, self.batch_size, self.shard, self.drop_last, start)


def batching_of(a: Arguments, n: int) -> Batching:
    """What the arguments say of a dataset of ``n`` samples. Raises :class:`ConfigError` if they do not fit together."""
    sampler, batch_size, drop_last = a.sampler, a.batch_size, a.drop_last
    if a.batch_sampler is not None:
        if batch_size not in (1, None) or a.shuffle is not None or sampler is not None or drop_last:
            raise ConfigError("batch_sampler goes without batch_size, shuffle, sampler and drop_last, as in torch")
        sampler, batch_size, drop_last = split_batch_sampler(a.batch_sampler)
    check_integer(batch_size, "batch_size", 1)
    assert batch_size is not None
    if sampler is not None and a.shuffle:
        raise ConfigError("shuffle=True and a sampler exclude each other, as in torch; leave one of them out")
    plan = _own(n, bool(a.shuffle)) if sampler is None else translate_sampler(sampler, n)
    if a.shard is not None and plan.shard is not None and a.shard != plan.shard:
        raise ConfigError(f"the sampler is for {plan.shard}, but shard={a.shard}; leave one of them out")
    return Batching(batch_size, drop_last, plan.shard or a.shard or Shard(), plan)


def _own(n: int, shuffle: bool) -> SamplerPlan:
    if shuffle:
        return SamplerPlan("shuffled", n, partial(Shuffle, n))
    return SamplerPlan("sequential", n, partial(_sequential, n))


def _sequential(n: int, *_seed_and_epoch: int) -> Order:
    return Sequential(n)
