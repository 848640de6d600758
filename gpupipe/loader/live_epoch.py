"""One epoch of a live session: batches arrive with images that wait, and leave with all of their tensors."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch

from .. import stages
from ..engines.delivery import delivered
from ..errors import StateError
from ..global_rng import lent
from ..live.asked import Asked
from ..live.making import FailedImages, Making
from ..live.recipe import results_of
from ..live.shipping import Shipment
from ..live.tensors import fill
from ..signal_handlers import deferred
from .bottleneck import Meter
from .live_order import SeededOrder, Tag, TorchsOrder
from .session import count_samples

if TYPE_CHECKING:
    from .live_session import LiveSession


@dataclass(eq=False)
class _Pending:
    """A batch that was taken, or the error in its place."""

    shipment: Shipment | None
    making: Making | None = None
    error: Exception | None = None


class LiveEpoch:
    """``iter(loader)``: one epoch. It begins as torch's with ``iter()``, or, with a seed, with its first batch."""

    def __init__(self, session: LiveSession):
        self._session: LiveSession | None = session
        self._generation = session.generation
        self._pending: deque[_Pending] = deque()
        self._after: dict[int, Any] = {}
        """States of the generators that the next batch of a worker must begin with, if one was made once more."""
        self._left = time.perf_counter()
        self._meter = Meter(session.stats.measured)
        self._batches = 0
        self._inner: Any = None
        self._kept = session.keeper()
        if isinstance(session.order, TorchsOrder):
            try:
                self._begin(session)
            except BaseException:
                self.end()  # the traceback would keep workers alive
                raise

    def _begin(self, session: LiveSession) -> None:
        order, loader = session.order, session.loader
        session.bad_samples.begin()
        session.rest()
        if isinstance(order, SeededOrder):
            session.check_ranks()
            self._cursor, asked = order.begin()
            items: Any = loader.sampler if loader.batch_sampler is None else loader.batch_sampler
            items.items = asked if loader.batch_sampler is not None else _single(asked)
            assert loader.generator is not None
            loader.generator.manual_seed(order.seed ^ self._cursor.epoch)
            with deferred():
                self._inner = iter(loader)
            return
        assert isinstance(order, TorchsOrder)
        self._place, now = order.start()
        with deferred():
            self._inner = iter(loader)
        for _ in range(self._place.delivered):
            try:
                self._inner.pull()
            except StopIteration:
                break
            except Exception:  # raised when the batch was delivered
                continue
        order.restore(now)

    def __iter__(self) -> LiveEpoch:
        return self

    def __len__(self) -> int:
        session = self._session
        if session is None:
            raise TypeError("this epoch has ended")
        return len(session)

    def __next__(self) -> Any:
        session = self._session
        if session is None:
            raise StopIteration
        if session.generation != self._generation:
            if self._batches:
                self.end()
                raise StateError(
                    "the loader was closed or has loaded a state since this epoch began: call iter() again"
                )
            self._generation, self._inner = session.generation, None
        entered = time.perf_counter()
        session.stats.work_seconds += entered - self._left
        self._meter.enter()
        if self._kept is not None:
            self._kept.renew()
        try:
            if self._inner is None:
                self._begin(session)
            return self._next(session)
        except StopIteration:
            self._finish(session)
            raise
        finally:
            self._meter.leave()
            self._left = time.perf_counter()
            session.stats.wait_seconds += self._left - entered

    def _next(self, session: LiveSession) -> Any:
        while True:
            if self._pending:
                self._inner.asked_for()
            else:
                self._pending.append(self._taken(session, self._inner.pull))
            self._top_up(session, session.ahead + 1)
            batch = self._finished(session, self._pending.popleft())
            if batch is not _EMPTY:
                self._top_up(session, session.ahead)
                return batch

    def _taken(self, session: LiveSession, pull: Any) -> _Pending:
        """Take a batch and start on the images that wait in it."""
        seeded = isinstance(session.order, SeededOrder) and not session.arguments.num_workers
        with lent() if seeded else nullcontext():
            shipment: Shipment = pull()
        if shipment.spent is not None:
            stages.add(shipment.spent)
        session.note_looks(shipment.looks)
        return _Pending(shipment, None if shipment.recipe is None else session.maker.start(shipment.recipe))

    def _top_up(self, session: LiveSession, most: int) -> None:
        """Take what has arrived, so that the engine has work while the consumer works."""
        while len(self._pending) < most and self._inner.may_pull_ahead():
            try:
                self._pending.append(self._taken(session, self._inner.pull_ahead))
            except StopIteration:
                return
            except Exception as e:
                self._pending.append(_Pending(None, error=e))

    def _finished(self, session: LiveSession, pending: _Pending) -> Any:
        """Return a batch with all of its tensors, on the device."""
        self._deliver(session, pending)
        if pending.error is not None:
            raise pending.error
        shipment = pending.shipment
        assert shipment is not None
        expected = self._after.pop(shipment.worker, None)
        if expected is not None and shipment.of.before != expected:
            if pending.making is not None:
                pending.making.give_up()
            shipment = self._again(shipment, expected)
        elif pending.making is not None and shipment.recipe is not None:
            try:
                made = pending.making.result()
                with torch.inference_mode(False), torch.no_grad():
                    values = results_of(shipment.recipe, made)
                for tensor in shipment.tensors:  # an object may have left some behind when it was pickled
                    assert tensor.number is not None
                    fill(tensor, values[tensor.number])
                if self._kept is not None:
                    self._kept.take(pending.making.keep)
            except FailedImages as e:
                if shipment.of.asked is None:  # a stream, which cannot be asked again
                    raise next(iter(e.problems.values())) from None
                shipment = self._again(shipment, shipment.of.before)
        session.note_missing(shipment.of.bad)
        if shipment.is_empty:
            return _EMPTY
        session.valid = _valid(shipment)
        session.stats.batches += 1
        session.stats.samples += session.valid
        return delivered(shipment.batch, session.device, session.arguments.pin_memory)

    def _again(self, shipment: Shipment, states: Any) -> Shipment:
        """Let the script's code make a batch once more, with pixels, so that it sees the errors of its images."""
        assert shipment.of.asked is not None
        made: Shipment = self._inner.again(replace(shipment.of.asked, states=states, again=True), shipment.worker)
        if made.after is not None:
            self._after[made.worker] = made.after
        return made

    def _deliver(self, session: LiveSession, pending: _Pending) -> None:
        """Note that a batch is delivered, or the error in its place."""
        self._batches += 1
        order, shipment = session.order, pending.shipment
        if isinstance(order, TorchsOrder):
            self._place = replace(self._place, delivered=self._place.delivered + 1)
            order.at(self._place)
        elif isinstance(order, SeededOrder) and shipment is not None and shipment.of.asked is not None:
            tag: Tag = shipment.of.asked.tag
            self._cursor.delivered = tag.consumed
            order.position.at(self._cursor)

    def _finish(self, session: LiveSession) -> None:
        session.stats.epochs += 1
        order = session.order
        if isinstance(order, TorchsOrder):
            order.ended(self._place)
        else:
            self._cursor.running = False
        session.warn_if_nothing_waits()
        self.end()

    def end(self) -> None:
        """End the iterator."""
        session, self._session = self._session, None
        while self._pending:
            making = self._pending.popleft().making
            if making is not None:
                making.give_up()
        self._inner = None
        if session is not None and self._kept is not None:
            session.take_back(self._kept)

    def __del__(self) -> None:
        self.end()


_EMPTY = object()


def _valid(shipment: Shipment) -> int:
    """Return the number of samples in a batch that are real."""
    asked = shipment.of.asked
    count = count_samples(shipment.batch)
    if asked is None or asked.tag is None:
        return count
    valid: int = asked.tag.valid
    return max(valid - len(shipment.of.bad), 0) if shipment.of.bad else valid


def _single(asked: Iterator[Asked]) -> Iterator[Asked]:
    """Ask for the samples of batches of one sample."""
    return (replace(one, what=one.what[0]) for one in asked)
