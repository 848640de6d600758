"""Samples of an epoch, their order, and their division into batches and ranks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any
from zlib import crc32

import numpy as np
import numpy.typing as npt
from torch.utils.data import DistributedSampler

from ..datasets.dataset import Dataset
from ..datasets.mixture import Mixture
from ..errors import ConfigError, StateError
from ..planning.batches import Batches, Countable, GivenBatches, Slices
from ..planning.blocks import BlockShuffle, BlockShuffled, starts_of
from ..planning.buckets import Bucketed
from ..planning.mixtures import Mixed, blend_of
from ..planning.order import Batched, Order, Sequential, Shuffle
from ..planning.schedules import ENDLESS, SamplerPlan, Stretched, Without
from ..reasons import Reason
from ..samplers import Sampler
from ..script_warnings import warn
from ..translate.classes import shown
from ..translate.samplers import is_batch_sampler_of_torch, length_of, translate_batch_sampler, translate_sampler
from ..types import Shard, check_integer
from .arguments import Arguments, Shuffling

I64 = npt.NDArray[np.int64]

_LIKELY = 32
"""Assumed samples per batch if the size is unknown."""


@dataclass(frozen=True)
class Batching:
    """Order and batches of all epochs of a loader, on this rank."""

    batch_size: int
    """Samples per batch on this rank: at most one less if ``global_size`` is no multiple of the number of ranks."""
    drop_last: bool
    shard: Shard
    sampler: SamplerPlan
    given: Any = None
    """A batch sampler whose batches are used as they are. ``batch_size`` is then their likely size."""
    scheduled_by: Mapping[str, Any] | None = None
    """Arguments of a loader with this order, if none of torch's samplers stands for it."""
    global_size: int | None = None
    """Value of ``global_batch_size``."""

    @property
    def global_batch(self) -> int:
        """Samples in a batch of all ranks."""
        return self.batch_size * self.shard.world_size if self.global_size is None else self.global_size

    def order(self, seed: int, epoch: int) -> Order:
        """Samples of an epoch, over all ranks."""
        return self.sampler.order(seed, epoch)

    def slices(self, total: int | None = None) -> Slices:
        """Division of ``total`` samples, by default as many as the sampler has.

        Raises TypeError if epochs have no end.
        """
        total = self.sampler.length if total is None else total
        if total is None:
            raise TypeError(f"this loader has no len(): its sampler, {self.sampler.name}, has none")
        strided = self.sampler.shard is not None
        return Slices(total, self.batch_size, self.shard, self.drop_last, strided=strided, given=self.global_size)

    def batches(self, order: Order, start: int = 0) -> Batches:
        """Divide an order into batches after the first ``start`` samples, which were delivered before; see
        :meth:`Batches.rest`."""
        if isinstance(order, Batched):
            return GivenBatches(order).rest(start)
        if start > len(order) and self.sampler.ahead is None:
            raise StateError(
                f"this state is {start} samples into an epoch, but its sampler gave {len(order)}; use the same "
                "sampler, or start a new epoch with set_epoch()"
            )
        return self.countable(order).rest(start)

    def countable(self, order: Order) -> Countable:
        """Divide an order of known length into batches."""
        slices = self.slices(len(order))
        return order.divided(slices) if isinstance(order, Bucketed) else slices

    def any_epoch(self) -> Countable:
        """Return batches of which every epoch has as many. Raises TypeError if epochs have no end."""
        return self.slices() if self.sampler.buckets is None else self.countable(self.sampler.buckets.order(0, 0))

    def __len__(self) -> int:
        """Batches of an epoch on this rank. Raises TypeError if it has no end."""
        return len(self.any_epoch()) if self.given is None else len(self.given)


def batching_of(a: Arguments, dataset: Dataset) -> Batching:
    """Return the batching that the arguments ask for. Raises :class:`ConfigError` if they contradict each other."""
    n = len(dataset)
    sampler, batch_size, drop_last = a.sampler, a.batch_size, a.drop_last
    assert batch_size is not None
    if a.batch_sampler is not None:
        if batch_size != 1 or a.shuffle or sampler is not None or drop_last or a.global_batch_size is not None:
            raise ConfigError(
                "batch_sampler excludes batch_size, global_batch_size, shuffle, sampler and drop_last, as in torch; "
                "leave them out"
            )
        if not is_batch_sampler_of_torch(a.batch_sampler):
            return _as_given(a, n)
        batches = a.batch_sampler
        sampler, batch_size, drop_last = batches.sampler, batches.batch_size, bool(batches.drop_last)
        batch_size = check_integer(batch_size, "batch_size", 1)
    if sampler is not None and a.shuffle:
        raise ConfigError("shuffle=True and a sampler exclude each other, as in torch; leave one of them out")
    if sampler is not None and a.exclude is not None:
        raise ConfigError("exclude= and a sampler exclude each other: let the sampler leave the samples out")
    plan = _plan_of(sampler, dataset, n, drop_last) if sampler is not None else _own(dataset, a.shuffle, a.exclude)
    if a.shard is not None and plan.shard is not None and a.shard != plan.shard:
        raise ConfigError(f"the sampler is for {plan.shard}, but shard={a.shard}; leave one of them out")
    shard = plan.shard or a.shard or Shard()
    if a.global_batch_size is not None:
        batch_size = share_of(a.global_batch_size, shard)
    global_size = a.global_batch_size
    if isinstance(sampler, Sampler):
        sampler.check(batch_size)
    if plan.buckets is not None and plan.buckets.batch is not None:
        batch_size, global_size = _of_buckets(a, plan.buckets.batch, shard)
    scheduled = isinstance(sampler, Sampler) or isinstance(a.shuffle, BlockShuffle) or isinstance(dataset, Mixture)
    scheduled_by = {"shuffle": a.shuffle, "sampler": sampler} if scheduled else None
    made = Batching(batch_size, drop_last, shard, plan, scheduled_by=scheduled_by, global_size=global_size)
    if plan.buckets is not None:
        plan = replace(plan, name=f"{plan.name}, global batches of {_shown(made, plan.buckets.batch)}")
    return replace(made, sampler=_stretched(a, plan, made.global_batch))


def _shown(made: Batching, own: I64 | None) -> str:
    if own is None:
        return f"{made.global_batch:,}"
    return f"{own.min():,} to {own.max():,} ({crc32(own.tobytes()):08x})"


def _of_buckets(a: Arguments, batch: I64, shard: Shard) -> tuple[int, int]:
    """Return the largest batch of a rank and of all ranks, for buckets with batch sizes of their own, i64[K]."""
    most, ranks = int(batch.max()), shard.world_size
    # Rounded up: the largest share of a rank.
    size = -(-most // ranks)
    # Lightning makes a copy of a loader from its attributes, of which batch_size is one.
    if a.global_batch_size is not None or a.batch_size not in (1, size):
        raise ConfigError(
            "max_tokens of the sampler decides the batch sizes; leave batch_size and global_batch_size out"
        )
    if batch.min() < ranks:
        raise ConfigError(
            f"max_tokens gives global batches of {batch.min()} to {most} samples, which leave some of {ranks} ranks "
            "without any; use a larger max_tokens, which counts the tokens of all ranks"
        )
    uneven = batch[batch % ranks > 0]
    if len(uneven):
        warn_of_uneven(int(uneven[0]), shard)
    return size, most


def _plan_of(sampler: Any, dataset: Dataset, n: int, drop_last: bool) -> SamplerPlan:
    if isinstance(dataset, Mixture):
        raise ConfigError("a Mixture is an order itself, so it excludes a sampler; leave the sampler out")
    if isinstance(sampler, Sampler):
        return sampler.plan(dataset)
    return translate_sampler(sampler, n, drop_last=drop_last)


def share_of(global_batch_size: int, shard: Shard) -> int:
    """Return the largest number of samples that a rank takes of a global batch.

    If the ranks' numbers differ, a warning says what that means for their gradients.
    """
    most, ranks = -(-global_batch_size // shard.world_size), shard.world_size
    if global_batch_size < ranks:
        raise ConfigError(
            f"global_batch_size={global_batch_size} has no sample for some of {ranks} ranks; use at least {ranks}"
        )
    if global_batch_size % ranks:
        warn_of_uneven(global_batch_size, shard)
    return most


def warn_of_uneven(global_batch_size: int, shard: Shard) -> None:
    """Warn on the first rank that the ranks' parts of a global batch differ by one sample."""
    if shard.rank == 0:
        most, ranks = -(-global_batch_size // shard.world_size), shard.world_size
        text = (
            f"{ranks} ranks take {most - 1} or {most} of the {global_batch_size} samples of a global batch, and an "
            "average over ranks weighs them alike"
        )
        warn("some samples count more than others", [Reason(text, "uneven-ranks")])


def _stretched(a: Arguments, plan: SamplerPlan, global_batch: int) -> SamplerPlan:
    """Return the order in epochs of the length that the arguments ask for."""
    if a.epoch_length is None and not a.infinite:
        return plan
    option = "infinite=True" if a.infinite else f"epoch_length={a.epoch_length}"
    if plan.buckets is not None:
        raise ConfigError(f"{option} cannot divide an order in buckets; leave it out, or the sampler")
    if plan.ahead is None or plan.owner is not None:
        raise ConfigError(
            f"{option} needs an order that is a function of seed and epoch, which {plan.name} is not; pass shuffle=, "
            "and shard= on several processes"
        )
    length = ENDLESS if a.epoch_length is None else a.epoch_length * global_batch
    name = f"{plan.name}, endless" if a.infinite else f"{plan.name}, epochs of {length:,} samples"
    made = SamplerPlan.of(name, length, partial(Stretched, plan.order, length), plan.generator)
    return replace(made, length=None) if a.infinite else made


def _own(dataset: Dataset, shuffle: Shuffling, exclude: Any = None) -> SamplerPlan:
    if isinstance(dataset, Mixture):
        return _mixed(dataset, shuffle, exclude)
    n = len(dataset)
    if exclude is not None and len(excluded := _excluded(exclude, n)):
        plan = _counted(dataset, shuffle, n - len(excluded), excluded)
        name = f"{plan.name}, without {len(excluded):,} samples ({crc32(excluded.tobytes()):08x})"
        return SamplerPlan.of(name, n - len(excluded), partial(Without, plan.order, excluded))
    return _counted(dataset, shuffle, n)


def _mixed(mixture: Mixture, shuffle: Shuffling, exclude: Any) -> SamplerPlan:
    if isinstance(shuffle, BlockShuffle) or exclude is not None:
        raise ConfigError(
            "a Mixture takes shuffle=True or False and no exclude=; leave samples out with datasets.Subset"
        )
    length, how = blend_of(mixture).length, "shuffled" if shuffle else "sequential"
    name = f"mixture of {len(mixture.parts)}, {how}, epochs of {length:,} samples"

    def order(seed: int, epoch: int) -> Order:
        return Mixed(blend_of(mixture), bool(shuffle), seed, epoch)

    return SamplerPlan.of(name, length, order, settings=mixture)


def _excluded(exclude: Any, n: int) -> I64:
    """Return the indices i64[k] of excluded samples, each once and ascending."""
    given = np.asarray(exclude)
    if given.size == 0:
        return np.zeros(0, np.int64)
    if given.ndim != 1 or given.dtype.kind not in "iu":
        raise ConfigError(f"exclude must be indices of samples, such as [17, 4711], not {shown(exclude)}")
    found: I64 = np.unique(given.astype(np.int64))
    if found[0] < 0 or found[-1] >= n:
        wrong = found[0] if found[0] < 0 else found[-1]
        raise ConfigError(f"exclude has index {wrong}; this dataset has {n:,} samples, so indices go from 0 to {n - 1}")
    if len(found) == n:
        raise ConfigError(f"exclude has all {n:,} samples; leave some")
    return found


def _counted(dataset: Dataset, shuffle: Shuffling, n: int, excluded: I64 | None = None) -> SamplerPlan:
    """Return the order of ``n`` samples, counted without those that are ``excluded``."""
    if isinstance(shuffle, BlockShuffle):
        sizes = dataset.file_sizes
        if sizes is None:
            raise ConfigError(
                f"shuffle={shuffle!r} needs samples in files of known size, and {dataset!r} does not have such "
                "samples; use shuffle=True"
            )
        starts = starts_of(sizes, shuffle.block_bytes)
        if excluded is not None:
            # Without the excluded samples, a block starts earlier by the number of those before it. If all of its own
            # samples are excluded, its start falls on that of the next block.
            starts = np.unique(starts - np.searchsorted(excluded, starts))
            # The last block may have lost all of its samples.
            starts = starts[starts < n]
        return SamplerPlan.of(shuffle.name, n, partial(BlockShuffled, n, starts, shuffle.blocks))
    if shuffle:
        return SamplerPlan.of("shuffled", n, partial(Shuffle, n))
    return SamplerPlan.of("sequential", n, partial(_sequential, n))


def _sequential(n: int, *_seed_and_epoch: int) -> Order:
    return Sequential(n)


def _as_given(a: Arguments, n: int) -> Batching:
    """Use the batches of a batch sampler of user code."""
    cut = isinstance(getattr(a.batch_sampler, "sampler", None), DistributedSampler)  # as in Lightning's wrapper
    if a.shard is not None and a.shard.world_size > 1 and not cut:
        raise ConfigError(
            f"shard={a.shard} cannot divide the batches of your own batch sampler: let the batch sampler divide "
            "them among the ranks"
        )
    for name in a.schedule:
        raise ConfigError(f"{name}= cannot change the batches of your own batch sampler: let the batch sampler do this")
    batches = a.batch_sampler
    return Batching(_likely_size(batches), False, Shard(), translate_batch_sampler(batches, n), given=batches)


def _likely_size(batches: Any) -> int:
    """Likely batch size of a batch sampler, without iterating over it."""
    size = getattr(batches, "batch_size", None)
    if isinstance(size, int) and size > 0:
        return size
    sizes = [length_of(batch) or 1 for batch in batches] if type(batches) in (list, tuple) else []
    return max(sizes, default=_LIKELY)
