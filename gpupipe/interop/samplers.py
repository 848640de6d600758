"""torch's samplers as orders: which samples an epoch has is theirs to say, the random numbers are ours."""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import ConfigError
from ..planning.order import Explicit, Order, Sequential, Shuffle, weighted
from ..rng import stream, uniforms
from ..types import Shard
from .classes import class_name, exact_name, shown

__all__ = ["SamplerPlan", "split_batch_sampler", "translate_sampler"]

I64 = npt.NDArray[np.int64]
U64 = npt.NDArray[np.uint64]


def _no_epoch() -> int | None:
    return None


@dataclass(frozen=True)
class SamplerPlan:
    """What a loader needs to know of a sampler."""

    name: str
    """What the sampler is; a saved state names it."""
    length: int
    """Samples of an epoch, over all ranks."""
    make: Callable[[int, int], Order] = field(repr=False)
    shard: Shard | None = None
    """Of a DistributedSampler: its rank and number of ranks."""
    seed: int | None = None
    """The sampler's own seed, or that of its generator."""
    epoch_of: Callable[[], int | None] = field(default=_no_epoch, repr=False)
    """The epoch that was set on the sampler; ``None`` where it has none."""

    def order(self, seed: int, epoch: int) -> Order:
        """The samples of one epoch over all ranks."""
        return self.make(seed, epoch)


def translate_sampler(sampler: Any, n: int) -> SamplerPlan:
    """The order that a sampler stands for, over a dataset of ``n`` samples.

    torch's own samplers become functions of (seed, epoch), with the same distribution but not the same numbers as
    torch draws. Anything else that is iterable is read once per epoch, as a list of indices.

    Raises:
        ConfigError: not a sampler, one that gives batches, one that can be read only once, or one for a larger dataset.
    """
    name = exact_name(sampler, "torch.utils.data")
    if name == "BatchSampler":
        raise ConfigError("a BatchSampler gives batches, not samples: pass its sampler= and batch_size= instead")
    return _RULES.get(name, _listed)(sampler, n)


def split_batch_sampler(batch_sampler: Any) -> tuple[Any, int, bool]:
    """(sampler, batch_size, drop_last) of torch's own ``BatchSampler``.

    Raises :class:`ConfigError` for any other one: its batches cannot be cut into equal parts for several ranks.
    """
    if exact_name(batch_sampler, "torch.utils.data") == "BatchSampler":
        return batch_sampler.sampler, int(batch_sampler.batch_size), bool(batch_sampler.drop_last)
    raise ConfigError(
        f"batch_sampler={shown(batch_sampler)} ({class_name(batch_sampler)}): only torch's own BatchSampler can be "
        "taken apart; pass a sampler= that gives single indices in the order you want, and batch_size="
    )


def _within(sampler: Any, source: Any, n: int) -> int:
    """The size of the data set that a sampler was made for; not more than the loader's ``n``."""
    m = len(source)
    if m > n:
        raise ConfigError(
            f"{type(sampler).__name__} was made for {m} samples, but this dataset has {n}; make the sampler from the "
            "dataset that the loader gets"
        )
    return m


def _seed_of(sampler: Any) -> int | None:
    generator = getattr(sampler, "generator", None)
    return None if generator is None else int(generator.initial_seed())


# ---- torch's samplers, one by one


def _sequential(sampler: Any, n: int) -> SamplerPlan:
    m = _within(sampler, sampler.data_source, n)
    return SamplerPlan("sequential", m, lambda seed, epoch: Sequential(m))


def _random(sampler: Any, n: int) -> SamplerPlan:
    m, count = _within(sampler, sampler.data_source, n), int(sampler.num_samples)
    seed_of = _seed_of(sampler)
    if sampler.replacement:

        def drawn(seed: int, epoch: int) -> Order:
            u = uniforms(seed, epoch, "RandomSampler", np.arange(count), 1)[:, 0]
            return Explicit(np.minimum((u * m).astype(np.int64), m - 1), n)

        return SamplerPlan(f"{count} of {m} with replacement", count, drawn, seed=seed_of)
    if count == m:
        return SamplerPlan("shuffled", m, lambda seed, epoch: Shuffle(m, seed, epoch), seed=seed_of)

    def permutations(seed: int, epoch: int) -> Order:
        # Whole permutations one after another, the last one cut off, as torch does.
        parts = []
        for part, first in enumerate(range(0, count, m)):
            keyed = seed if part == 0 else stream(seed, "part", part)
            parts.append(Shuffle(m, keyed, epoch).at(np.arange(min(m, count - first), dtype=np.int64))[0])
        return Explicit(np.concatenate(parts), n)

    return SamplerPlan(f"{count} of {m}", count, permutations, seed=seed_of)


def _subset_random(sampler: Any, n: int) -> SamplerPlan:
    chosen = Explicit(_integers(sampler, sampler.indices), n).indices  # checks them

    def permuted(seed: int, epoch: int) -> Order:
        positions = np.arange(len(chosen), dtype=np.int64)
        return Explicit(chosen[Shuffle(len(chosen), seed, epoch).at(positions)[0]], n)

    return SamplerPlan(f"{len(chosen)} chosen, shuffled", len(chosen), permuted, seed=_seed_of(sampler))


def _weighted_random(sampler: Any, n: int) -> SamplerPlan:
    weights, count, replacement = np.asarray(sampler.weights, np.float64), int(sampler.num_samples), sampler.replacement
    _within(sampler, weights, n)

    def drawn(seed: int, epoch: int) -> Order:
        return weighted(weights, count, replacement, seed, epoch)

    drawn(0, 0)  # so that weights that cannot be are refused now, and not in the first epoch
    how = "with" if replacement else "without"
    return SamplerPlan(f"{count} weighted, {how} replacement", count, drawn, seed=_seed_of(sampler))


@dataclass(frozen=True)
class _First:
    """The first ``n`` samples of an order."""

    order: Order
    n: int

    def __len__(self) -> int:
        return self.n

    def at(self, positions: I64) -> tuple[I64, U64]:
        return self.order.at(positions)


def _distributed(sampler: Any, n: int) -> SamplerPlan:
    m, world = _within(sampler, sampler.dataset, n), int(sampler.num_replicas)
    # Without drop_last the sampler pads to a multiple of the ranks; the slices of an order do that by themselves.
    total = int(sampler.total_size) if sampler.drop_last else m

    def order(seed: int, epoch: int) -> Order:
        whole: Order = Shuffle(m, seed, epoch) if sampler.shuffle else Sequential(m)
        return whole if total == m else _First(whole, total)

    return SamplerPlan(
        "shuffled" if sampler.shuffle else "sequential",
        total,
        order,
        shard=Shard(int(sampler.rank), world),
        seed=int(sampler.seed),
        epoch_of=lambda: int(sampler.epoch),
    )


_RULES: dict[str, Callable[[Any, int], SamplerPlan]] = {
    "SequentialSampler": _sequential,
    "RandomSampler": _random,
    "SubsetRandomSampler": _subset_random,
    "WeightedRandomSampler": _weighted_random,
    "DistributedSampler": _distributed,
}


# ---- everything else


def _integers(sampler: Any, values: Any) -> list[int]:
    found = []
    for i, value in enumerate(values):
        try:
            found.append(operator.index(value))
        except TypeError:
            hint = "; pass sampler= and batch_size= instead of batches" if isinstance(value, (list, tuple)) else ""
            raise ConfigError(
                f"sampler {class_name(sampler)} gave {shown(value)} at position {i}; it must give integers{hint}"
            ) from None
    return found


class _PerEpoch:
    """Reads a sampler once for every epoch, and remembers the last one, because a loader asks more than once."""

    def __init__(self, sampler: Any, n: int):
        self.sampler, self.n = sampler, n
        self._last: tuple[int, Explicit] | None = None

    def order(self, seed: int, epoch: int) -> Order:
        if self._last is None or self._last[0] != epoch:
            self._last = (epoch, Explicit(self._read(epoch), self.n))
        return self._last[1]

    def _read(self, epoch: int) -> list[int]:
        before = self.epoch_of()
        if before is None:  # whoever made the sampler sets its epoch, and we could not see which
            return _integers(self.sampler, self.sampler)
        self.sampler.set_epoch(epoch)
        try:
            return _integers(self.sampler, self.sampler)
        finally:
            self.sampler.set_epoch(before)  # what epoch_of() reports stays what the script set

    def epoch_of(self) -> int | None:
        epoch = getattr(self.sampler, "epoch", None)
        known = callable(getattr(self.sampler, "set_epoch", None)) and isinstance(epoch, int)
        return epoch if known else None


def _listed(sampler: Any, n: int) -> SamplerPlan:
    if not hasattr(sampler, "__iter__") and not hasattr(sampler, "__getitem__"):
        raise ConfigError(f"sampler={shown(sampler)} must be a torch sampler or a list of indices")
    if hasattr(sampler, "__next__"):
        raise ConfigError(f"sampler={shown(sampler)} can be read only once, for one epoch; pass list(...) of it")
    reader = _PerEpoch(sampler, n)
    length = len(sampler) if hasattr(sampler, "__len__") else len(reader.order(0, reader.epoch_of() or 0))
    return SamplerPlan(f"{type(sampler).__name__}", length, reader.order, epoch_of=reader.epoch_of)
