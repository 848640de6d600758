"""Compatibility with Accelerate, whose ``prepare()`` would rebuild the loader as a torch DataLoader."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..errors import ConfigError
from .epoch import EpochIterator
from .live_order import SeededOrder, TorchsOrder
from .live_session import LiveEpoch, LiveSession
from .session import Session


def stays_as_it_is(session: Session) -> bool:
    """Return whether ``prepare()`` must leave a loader alone.

    Raises :class:`ConfigError` if every process would see all samples, or a part of a part.
    """
    from accelerate.state import PartialState

    ranks = PartialState().num_processes
    if ranks > 1 and session.shard.world_size == 1 and session.arguments.shard is None:
        raise ConfigError(
            f"each of {ranks} processes would see every sample, because Accelerate divides only torch's own loaders "
            "among ranks; give this one shard=Shard(accelerator.process_index, accelerator.num_processes), or "
            "shard=Shard() if every process shall see all samples"
        )
    return True


class AnnouncedEpoch:
    """An epoch that tells Accelerate which batch is the last one.

    Accelerate then ends an accumulation of gradients, and ``gather_for_metrics`` drops the samples that pad the ranks.
    """

    def __init__(self, batches: EpochIterator | LiveEpoch, session: Session):
        self._batches, self._session = batches, session
        self._begun = False
        self.end_of_dataloader = False
        self.remainder = -1
        """Samples of all ranks in the last batch; 0 if it is as large as the others, -1 if unknown."""

    def __iter__(self) -> Iterator[Any]:
        return self

    def __repr__(self) -> str:
        return repr(self._batches)

    def __len__(self) -> int:
        return len(self._batches)

    def __next__(self) -> Any:
        if not self._begun:
            self._begun = True
            _state()._add_dataloader(self)
        try:
            batch = next(self._batches)
        except StopIteration:
            self._end()
            raise
        session = self._session
        last = _last(session) if isinstance(session, LiveSession) else self._batches.last  # type: ignore[union-attr]
        self.end_of_dataloader, self.remainder = last is not None, -1 if last is None else last
        return batch

    def _end(self) -> None:
        if self._begun:
            self._begun = False
            _state()._remove_dataloader(self)

    def __del__(self) -> None:
        self._end()  # a loop was left early: the enclosing one continues


def _last(session: LiveSession) -> int | None:
    """Return :attr:`AnnouncedEpoch.remainder` if the batch just delivered is the last one; ``None`` if another one
    follows, or if that is unknown."""
    order = session.order
    if isinstance(order, SeededOrder) and order.batching.given is None:
        total, size = order.batching.sampler.length, order.batching.global_batch
        if total is None:
            return None
        left = total - int(order.state(False)["delivered"])
        if left > 0 and not (session.drop_last and left < size):
            return None
        return -1 if order.batching.sampler.shard is not None else total % size * (not session.drop_last)
    try:
        count = len(session)
    except TypeError:  # a stream
        return None
    if not isinstance(order, TorchsOrder) or order.place.delivered < count:
        return None
    return 0 if session.valid == session.batch_size else session.valid


def _state() -> Any:
    from accelerate.state import GradientState

    return GradientState()
