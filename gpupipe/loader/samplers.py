"""``loader.sampler`` and ``loader.batch_sampler``, for scripts and frameworks that look for them."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING

from torch.utils.data import BatchSampler, RandomSampler, SequentialSampler

from ..errors import ConfigError

if TYPE_CHECKING:
    from .state import Position

__all__ = ["OwnBatches", "own_sampler"]

log = logging.getLogger("gpupipe")


class _Own:
    """``loader.sampler`` if the script gave none: this rank's indices of the next epoch. It is one of torch's classes,
    by which frameworks tell whether a loader shuffles."""

    _position: Position

    def set_epoch(self, epoch: int) -> None:
        self._position.set_epoch(epoch)

    def __len__(self) -> int:
        batches = self._position.batching.slices()
        last = len(batches) - 1
        return 0 if last < 0 else last * batches.batch_size + len(batches.take(last)[0])

    def __iter__(self) -> Iterator[int]:
        return (index for batch in self.batches() for index in batch)

    def batches(self, later: int = 0) -> Iterator[list[int]]:
        """This rank's batches of the next epoch, or of a later one."""
        order = self._position.order(later)
        batches, step = self._position.batching.batches(order), 0
        while batches.has(step):
            yield order.at(batches.take(step)[0])[0].tolist()
            step += 1


class _Shuffled(_Own, RandomSampler):
    replacement = False
    generator = None
    _num_samples = None

    def __init__(self, position: Position):
        # Not torch's __init__, which refuses a data source without a length.
        self._position = position
        self.data_source = _Length(position)


class _InOrder(_Own, SequentialSampler):
    def __init__(self, position: Position):
        self._position = position
        self.data_source = _Length(position)


class _Length:
    """torch's samplers ask their data source for its length, and nothing else."""

    def __init__(self, position: Position):
        self._position = position

    def __len__(self) -> int:
        return self._position.batching.sampler.length or 0


def own_sampler(position: Position) -> _Shuffled | _InOrder:
    """``loader.sampler``."""
    return _InOrder(position) if position.batching.sampler.name == "sequential" else _Shuffled(position)


class OwnBatches(BatchSampler):
    """``loader.batch_sampler``: this rank's batches of indices; every pass is a further epoch.

    The loader itself does not use it. Who iterates it builds a loader of torch's from it, which loads them without
    gpupipe: that is said once.
    """

    def __init__(self, sampler: _Shuffled | _InOrder):
        batching = sampler._position.batching
        super().__init__(sampler, batching.batch_size, batching.drop_last)
        self.own = sampler
        self._passes = 0
        self.quiet = False
        """Whether a gpupipe loader iterates it."""

    def __len__(self) -> int:
        return len(self.own._position.batching)

    def __iter__(self) -> Iterator[list[int]]:
        if self.own._position.batching.shard.world_size > 1:
            raise ConfigError(
                "these batches are this rank's already, and a loader built from them would cut them once more: iterate "
                "over the gpupipe loader as it is, and go on in the middle of an epoch with load_state_dict()"
            )
        if not self.quiet:
            self.quiet = True
            log.warning(
                "something reads loader.batch_sampler: a torch DataLoader that it builds from these batches loads them "
                "itself, without gpupipe; to stay with gpupipe iterate over the loader, and go on in the middle of an "
                "epoch with load_state_dict()"
            )
        later, self._passes = self._passes, self._passes + 1
        return self.own.batches(later)
