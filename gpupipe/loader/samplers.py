"""``loader.sampler`` and ``loader.batch_sampler``, for scripts and frameworks that look for them."""

from __future__ import annotations

from collections.abc import Iterator

from ..errors import ConfigError
from .state import Position

__all__ = ["EpochSampler", "OwnBatches"]


class EpochSampler:
    """``loader.sampler`` if the script gave none: this rank's indices of the next epoch."""

    def __init__(self, position: Position):
        self._position = position

    def set_epoch(self, epoch: int) -> None:
        self._position.set_epoch(epoch)

    def __len__(self) -> int:
        slices = self._position.batching.slices()
        last = len(slices) - 1
        return 0 if last < 0 else last * slices.batch_size + len(slices.take(last)[0])

    def __iter__(self) -> Iterator[int]:
        order = self._position.order()
        slices = self._position.batching.slices(len(order))
        for step in range(len(slices)):
            yield from order.at(slices.take(step)[0])[0].tolist()


class OwnBatches:
    """``loader.batch_sampler``: Lightning wants one of whatever has a sampler, and sets the epoch of its ``sampler``,
    and so of the loader, also if the script's own sampler has none.

    It gives no indices, because a framework would build a loader of torch's from them: with another engine, with
    batches that are cut into ranks once more, and without a word.
    """

    def __init__(self, sampler: EpochSampler):
        self.sampler = sampler

    def __iter__(self) -> Iterator[list[int]]:
        raise ConfigError(
            "a gpupipe loader makes its batches itself: iterate over the loader as it is, cut it into ranks with "
            "shard=, go on in the middle of an epoch with load_state_dict(), and ask loader.sampler for indices"
        )
