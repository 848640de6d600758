"""``loader.sampler`` and ``loader.batch_sampler``, for scripts and frameworks that read them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torch.utils.data import BatchSampler, DistributedSampler, RandomSampler, Sampler, SequentialSampler

from ..errors import ConfigError
from ..types import Shard

if TYPE_CHECKING:
    from .batching import Batching
    from .state import Position


class OwnSampler:
    """``loader.sampler`` if the script gave none: this rank's indices of the next epoch.

    It is a subclass of one of torch's samplers, by which frameworks tell whether a loader shuffles and whether it is
    divided into ranks already. ``loader.batch_sampler`` contains a second one, which the loader itself does not use.
    Every pass over it is a further epoch.
    """

    _position: Position
    for_batches = False
    _passes = 0

    def set_epoch(self, epoch: int) -> None:
        self._position.set_epoch(epoch)

    @property
    def _batching(self) -> Batching:
        """Batching of the indices. On a single rank they include the samples of a dropped last batch, as in
        torch's samplers."""
        batching = self._position.batching
        return batching if batching.shard.world_size > 1 else replace(batching, drop_last=False)

    def __len__(self) -> int:
        return self._batching.any_epoch().samples

    def __iter__(self) -> Iterator[int]:
        if not self.for_batches:
            return self._indices(0)
        if self._position.batching.shard.world_size > 1:
            raise ConfigError(
                "these batches already belong to this rank, and a loader built from them would divide them again: "
                "iterate over the gpupipe loader itself, and resume in the middle of an epoch with load_state_dict()"
            )
        later, self._passes = self._passes, self._passes + 1
        return self._indices(later)

    def _indices(self, later: int) -> Iterator[int]:
        """Yield the indices of the next epoch, or of a later one."""
        position, batching = self._position, self._batching
        # The seed is drawn only now, where torch's sampler draws its own: a wrapper may have drawn numbers before.
        order = batching.order(position.seed, position.next_epoch + later)
        batches, step = batching.batches(order), 0
        while batches.has(step):
            yield from order.at(batches.take(step)[0])[0].tolist()
            step += 1


class _Shuffled(OwnSampler, RandomSampler):
    replacement = False
    generator = None
    _num_samples = None

    def __init__(self, position: Position):
        # torch's __init__ rejects a data source without a length.
        self._position = position
        self.data_source = _Length(position)


class _Scheduled(OwnSampler, Sampler[int]):
    """Sampler of an order that none of torch's samplers stands for. Not a ``RandomSampler``, which Lightning would
    replace by a ``DistributedSampler``, and the order would be lost.

    Lightning wraps any other sampler, and the loader that it recreates finds this one inside; see
    :func:`arguments_within`.
    """

    def __init__(self, position: Position, arguments: Mapping[str, Any]):
        self._position = position
        self.arguments = arguments


class _InOrder(OwnSampler, SequentialSampler):
    def __init__(self, position: Position):
        self._position = position
        self.data_source = _Length(position)


class _OfRank(OwnSampler, DistributedSampler[Any]):
    def __init__(self, position: Position):
        batching = position.batching
        self._position = position
        self.dataset: Any = _Length(position)
        self.num_replicas, self.rank = batching.shard.world_size, batching.shard.rank
        self.shuffle, self.drop_last = batching.sampler.name != "sequential", batching.drop_last


class _Length:
    """Length of a data source, all that torch's samplers ask for."""

    def __init__(self, position: Position):
        self._position = position

    def __len__(self) -> int:
        return self._position.batching.sampler.length or 0


def arguments_within(sampler: Any) -> dict[str, Any]:
    """Return the arguments that Lightning's wrapper around the sampler of a loader stands for, if that loader has an
    order of its own, such as by blocks.

    Returns no arguments for anything else.
    """
    # Lightning's wrapper is a DistributedSampler whose dataset holds the wrapped sampler.
    within = getattr(getattr(sampler, "dataset", None), "_sampler", None)
    if isinstance(sampler, DistributedSampler) and isinstance(within, _Scheduled):
        return {"sampler": None, **within.arguments, "shard": Shard(sampler.rank, sampler.num_replicas)}
    return {}


def own_sampler(position: Position) -> _Shuffled | _Scheduled | _InOrder | _OfRank:
    """Return the value of ``loader.sampler``."""
    batching = position.batching
    if batching.shard.world_size > 1:
        return _OfRank(position)
    if batching.scheduled_by is not None:
        return _Scheduled(position, batching.scheduled_by)
    return _InOrder(position) if batching.sampler.name.startswith("sequential") else _Shuffled(position)


def own_batches(position: Position) -> BatchSampler:
    """Return the value of ``loader.batch_sampler``. It is exactly torch's class: Lightning would recreate a
    subclass."""
    sampler = own_sampler(position)
    sampler.for_batches = True
    return BatchSampler(sampler, position.batching.batch_size, position.batching.drop_last)
