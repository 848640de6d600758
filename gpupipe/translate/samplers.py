"""Translation of torch's samplers into orders.

The sampler decides which samples an epoch has. Where one of torch's samplers draws them from a generator, gpupipe draws
the numbers, so that an epoch can be resumed. The indices of a DistributedSampler and of other samplers are used as they
are.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ..errors import ConfigError
from ..planning.order import Batched, Explicit, Order, Sequential, Shuffle, checked_weights, weighted
from ..planning.schedules import SamplerPlan
from ..rng import stream, uniforms
from ..types import Shard
from .classes import class_name, exact_name, shown

I64 = npt.NDArray[np.int64]

_LONGEST = 1 << 28
"""Length up to which a script's own sampler is read: two gigabytes of indices."""
_MORE = 1 << 16
"""Values beyond twice its length that a sampler may give."""
_ENDLESS = (
    "For training without end, pass shuffle=True and infinite=True instead; a Dataset of your own without seed= takes "
    "any sampler"
)


def translate_sampler(sampler: Any, n: int, *, drop_last: bool = False) -> SamplerPlan:
    """Return the order of a sampler over a dataset of ``n`` samples.

    ``drop_last`` is the loader's: whether a short last batch is left out.

    torch's random samplers become functions of (seed, epoch), with the same distribution as torch's but other numbers.
    A DistributedSampler keeps torch's own permutation. Any other iterable is read whole when its epoch begins.

    Raises:
        ConfigError: not a sampler, or one that gives batches, has no length, can be read only once or was made for a
            larger dataset.
    """
    name = exact_name(sampler, "torch.utils.data")
    if name == "BatchSampler":
        raise ConfigError("a BatchSampler gives batches, not samples: pass its sampler= and batch_size= instead")
    if name == "DistributedSampler":
        return _distributed(sampler, n, drop_last)
    return _RULES.get(name, _listed)(sampler, n)


def is_batch_sampler_of_torch(batch_sampler: Any) -> bool:
    """Tell whether it is torch's own ``BatchSampler``, which consists of a sampler, ``batch_size`` and
    ``drop_last``."""
    return exact_name(batch_sampler, "torch.utils.data") == "BatchSampler"


def translate_batch_sampler(batch_sampler: Any, n: int) -> SamplerPlan:
    """Return the order of any batch sampler over a dataset of ``n`` samples. It is read whole when its epoch begins.

    The order is a :class:`Batched`, which has called ``iter()`` and is to be read.
    """
    if not hasattr(batch_sampler, "__iter__") and not hasattr(batch_sampler, "__getitem__"):
        raise ConfigError(f"batch_sampler={shown(batch_sampler)} must give lists of indices")
    _check_end("batch_sampler", batch_sampler)

    def order(seed: int, epoch: int) -> Order:
        return Batched(map(partial(_batch, batch_sampler), _ending(batch_sampler, iter(batch_sampler))), n)

    return SamplerPlan(type(batch_sampler).__name__, None, order, owner=_owner(batch_sampler))


def _batch(batch_sampler: Any, batch: Any) -> I64:
    found = _integers(batch_sampler, batch)
    if not len(found):
        raise ConfigError("the batch sampler gave a batch without samples; skip empty batches")
    return found


def _within(sampler: Any, source: Any, n: int) -> int:
    """Return the size of the dataset that a sampler was made for, which may not exceed the loader's ``n``."""
    m = len(source)
    if m > n:
        raise ConfigError(
            f"{type(sampler).__name__} was made for {m} samples, but this dataset has {n}; make the sampler from the "
            "dataset that the loader gets"
        )
    return m


# ---- torch's samplers, one by one


def _sequential(sampler: Any, n: int) -> SamplerPlan:
    m = _within(sampler, sampler.data_source, n)
    return SamplerPlan.of("sequential", m, lambda seed, epoch: Sequential(m))


def _random(sampler: Any, n: int) -> SamplerPlan:
    m, count = _within(sampler, sampler.data_source, n), int(sampler.num_samples)
    if sampler.replacement:

        def drawn(seed: int, epoch: int) -> Order:
            u = uniforms(seed, epoch, "RandomSampler", np.arange(count), 1)[:, 0]
            # u is below 1, but u * m may round up to m.
            return Explicit(np.minimum((u * m).astype(np.int64), m - 1), n)

        return SamplerPlan.of(f"{count} of {m} with replacement", count, drawn, sampler.generator)
    if count == m:
        return SamplerPlan.of("shuffled", m, lambda seed, epoch: Shuffle(m, seed, epoch), sampler.generator)

    def permutations(seed: int, epoch: int) -> Order:
        # As in torch: whole permutations one after another, the last one truncated.
        parts = []
        for part, first in enumerate(range(0, count, m)):
            # The first permutation is that of shuffle=True; each further one has a key of its own.
            keyed = seed if part == 0 else stream(seed, "part", part)
            parts.append(Shuffle(m, keyed, epoch).at(np.arange(min(m, count - first), dtype=np.int64))[0])
        return Explicit(np.concatenate(parts), n)

    return SamplerPlan.of(f"{count} of {m}", count, permutations, sampler.generator)


def _subset_random(sampler: Any, n: int) -> SamplerPlan:
    chosen = Explicit(_integers(sampler, sampler.indices), n).indices  # checks the indices

    def permuted(seed: int, epoch: int) -> Order:
        positions = np.arange(len(chosen), dtype=np.int64)
        return Explicit(chosen[Shuffle(len(chosen), seed, epoch).at(positions)[0]], n)

    return SamplerPlan.of(f"{len(chosen)} chosen, shuffled", len(chosen), permuted, sampler.generator)


def _weighted_random(sampler: Any, n: int) -> SamplerPlan:
    count, replacement = int(sampler.num_samples), sampler.replacement
    weights = checked_weights(sampler.weights, count, replacement)
    _within(sampler, weights, n)

    def drawn(seed: int, epoch: int) -> Order:
        return weighted(weights, count, replacement, seed, epoch)

    how = "with" if replacement else "without"
    return SamplerPlan.of(f"{count} weighted, {how} replacement", count, drawn, sampler.generator)


def _distributed(sampler: Any, n: int, drop_last: bool) -> SamplerPlan:
    """Keep torch's own permutation. Rank ``r`` takes every ``world_size``-th sample, starting with number ``r``."""
    m = _within(sampler, sampler.dataset, n)
    # The sampler pads to a multiple of the ranks if it does not drop samples. The slices of an order do this by
    # themselves, but not for a last batch that is only full with the padding.
    total = int(sampler.total_size) if sampler.drop_last or drop_last else m

    def order(_seed: int, _epoch: int, later: int = 0) -> Order:
        if not sampler.shuffle and total <= m:
            return Sequential(total)
        indices = np.arange(m)
        if sampler.shuffle:
            generator = torch.Generator()
            # torch's rule. `later` is the number of epochs that the sampler's own one will have moved on.
            generator.manual_seed(int(sampler.seed) + int(sampler.epoch) + later)
            indices = torch.randperm(m, generator=generator).numpy()
        return Explicit(np.resize(indices, total), n)  # repeated from the front if there are too few

    return SamplerPlan(
        f"distributed, shuffled by seed {int(sampler.seed)}" if sampler.shuffle else "distributed",
        total,
        order,
        shard=Shard(int(sampler.rank), int(sampler.num_replicas)),
        owner=sampler,
        ahead=order,
    )


_RULES: dict[str, Callable[[Any, int], SamplerPlan]] = {
    "SequentialSampler": _sequential,
    "RandomSampler": _random,
    "SubsetRandomSampler": _subset_random,
    "WeightedRandomSampler": _weighted_random,
}


# ---- everything else


def _integers(sampler: Any, values: Any) -> I64:
    """Read a whole sampler into i64[M]."""
    if isinstance(values, (range, list, np.ndarray)):  # a fast way for the types that hold millions of indices
        with suppress(ValueError):
            found = np.asarray(values)
            if found.ndim == 1 and found.dtype.kind in "iu":
                return found.astype(np.int64)
    return np.fromiter(_checked(sampler, values), np.int64)


def _checked(sampler: Any, values: Iterable[Any]) -> Iterator[int]:
    for i, value in enumerate(values):
        try:
            yield operator.index(value)
        except TypeError:
            hint = "; pass sampler= and batch_size= instead of batches" if isinstance(value, (list, tuple)) else ""
            raise ConfigError(
                f"sampler {class_name(sampler)} gave {shown(value)} at position {i}; it must give integers{hint}"
            ) from None


def _listed(sampler: Any, n: int) -> SamplerPlan:
    """Return the order of any iterable of indices, which is read whole when its epoch begins."""
    if not hasattr(sampler, "__iter__") and not hasattr(sampler, "__getitem__"):
        raise ConfigError(f"sampler={shown(sampler)} must be a torch sampler or a list of indices")
    if hasattr(sampler, "__next__"):
        raise ConfigError(f"sampler={shown(sampler)} can be read only once, for one epoch; pass list(...) of it")

    name = type(sampler).__name__
    if type(sampler) in (list, tuple, range, np.ndarray):
        return SamplerPlan.of(name, len(sampler), lambda seed, epoch: Explicit(_integers(sampler, sampler), n))
    length = _check_end("sampler", sampler)

    def order(seed: int, epoch: int) -> Order:
        return Explicit(_integers(sampler, _ending(sampler, iter(sampler))), n)

    return SamplerPlan(name, length, order, owner=_owner(sampler))


def _check_end(name: str, sampler: Any) -> int:
    """Return the length of a sampler. Raises :class:`ConfigError` if it has none, or one that no epoch has."""
    length = length_of(sampler)
    if length is None or length > _LONGEST:
        found = "no len()" if length is None else f"len() {length:,}"
        raise ConfigError(
            f"{name}={class_name(sampler)} has {found}, and an epoch that gpupipe plans is read whole when it begins: "
            f"give it the len() of an epoch. {_ENDLESS}"
        )
    return length


def _ending(sampler: Any, values: Iterator[Any]) -> Iterator[Any]:
    """Yield what a sampler gives, but not without end. Its length may be an estimate."""
    most = 2 * (length_of(sampler) or 0) + _MORE
    for count, value in enumerate(values):
        if count == most:
            raise ConfigError(
                f"sampler {class_name(sampler)} has given {most:,} values and has len() {length_of(sampler):,}; it "
                f"must end with the epoch. {_ENDLESS}"
            )
        yield value


def length_of(value: Any) -> int | None:
    """Return ``len(value)``, or ``None`` if it has no length."""
    try:
        return len(value)
    except (TypeError, NotImplementedError):  # torch's samplers and streams may have one that raises
        return None


def _owner(sampler: Any) -> Any:
    """Return the sampler if an epoch can be set on it."""
    settable = callable(getattr(sampler, "set_epoch", None)) and isinstance(getattr(sampler, "epoch", None), int)
    return sampler if settable else None
