"""A session in which the script's own code makes samples, and only their pixels wait.

torch's own DataLoader runs the dataset, the transforms, the samplers and the collate function. What still waits when a
batch arrives is made by an engine.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.utils.data import IterableDataset

from .. import engines, stages
from ..engines.delivery import KeepAlive, delivered
from ..errors import BadSample, StateError
from ..global_rng import lent
from ..live.asked import Asked
from ..live.loader import LiveLoader
from ..live.looks import Looks
from ..live.making import FailedImages, Maker, Making
from ..live.on_cpu import OnCpu
from ..live.on_gpu import OnGpu
from ..live.recipe import results_of
from ..live.shipping import Shipment
from ..live.tensors import fill
from ..planning.bad_samples import BadSamples
from ..reading.buffers import BatchPool
from ..reasons import FallbackWarning, Reason
from ..samplers import Sampler
from ..script_warnings import warn
from ..signal_handlers import deferred
from ..translate.samplers import length_of
from ..types import Shard
from .agreement import RankSetting
from .arguments import Arguments
from .batching import Batching, batching_of
from .bottleneck import Meter, Work
from .live_options import cache_of, length, per_rank, refuse, waits
from .live_order import LiveOrder, SeededOrder, Tag, TorchsOrder
from .resolve import device_of
from .samplers import own_batches, own_sampler
from .session import Session, count_samples


class _Counted:
    """The number of samples of a script's dataset, for what plans their order."""

    file_sizes = labels = None

    def __init__(self, given: Any):
        self.given = given

    def __len__(self) -> int:
        return length_of(self.given) or 0

    def bad(self, indices: Any) -> list[BadSample]:
        return []


class LiveSession(Session):
    """Run the script's own code in torch's DataLoader, and make the images that wait.

    Without ``seed=`` batches equal those of torch's own DataLoader after the same ``torch.manual_seed``, within the
    promises of the ops where an engine made them.

    Raises:
        ConfigError: an option that only planned sessions have.
    """

    def __init__(self, arguments: Arguments):
        super().__init__(arguments)
        refuse(arguments)
        a, self.device = arguments, device_of(arguments.device)
        self.shard = a.shard or Shard()
        self.waits, self._why = waits(a)
        self._cache = cache_of(a, waits=self.waits)
        self.looks = Looks()
        self._warned = False
        self.generation = 0
        self._lock = threading.RLock()
        self._maker: Maker | None = None
        self._keepers: list[KeepAlive] = []
        """Those of iterators that have ended."""
        self._owner = os.getpid()
        self.bad_samples = BadSamples(a.on_error, a.max_bad, _Counted(a.dataset))  # type: ignore[arg-type]
        name = f"{type(a.dataset).__qualname__}, {length(a.dataset)} samples"
        is_stream = isinstance(a.dataset, IterableDataset)
        self.order: LiveOrder
        if not is_stream and (a.seed is not None or self.shard.world_size > 1):
            batching = _batching(a)
            self.order = SeededOrder(batching, a.seed, a.generator, workers=a.num_workers > 0, name=name)
            self.batch_size, self.drop_last = a.batch_size and batching.batch_size, batching.drop_last
            self.shard = batching.shard
            self.loader = self._made(a, seeded=True)
            ours = a.sampler is None or isinstance(a.sampler, Sampler)
            self.sampler = own_sampler(self.order.position) if ours else a.sampler
            self.batch_sampler = own_batches(self.order.position) if a.batch_sampler is None else a.batch_sampler
            self.batch_sampler = None if a.batch_size is None else self.batch_sampler
        else:
            self.loader = self._made(per_rank(a, self.shard), seeded=False)
            self.sampler, self.batch_sampler = self.loader.sampler, self.loader.batch_sampler
            self.batch_size, self.drop_last = self.loader.batch_size, self.loader.drop_last
            within = getattr(self.batch_sampler, "sampler", None)
            self.order = TorchsOrder([self.sampler, self.batch_sampler, within], a.generator, name)
        self.prefetch_factor = self.loader.prefetch_factor
        self.ahead = (2 if a.num_workers else 0) if a.prefetch_factor is None else a.prefetch_factor
        """Batches that are made before they are asked for."""

    def _made(self, a: Arguments, *, seeded: bool) -> LiveLoader:
        """Return the loader that runs the script's code. If ``seeded``, it asks for what :class:`SeededOrder` says."""
        dataset, generator = a.dataset, a.generator
        order: dict[str, Any] = {
            "batch_size": a.batch_size, "shuffle": a.shuffle, "sampler": a.sampler, "batch_sampler": a.batch_sampler,
            "drop_last": a.drop_last,
        }  # fmt: skip
        if seeded:
            each = a.batch_size is not None
            order = (
                {"batch_sampler": _Items(len(dataset))}
                if each
                else {"batch_size": None, "sampler": _Items(len(dataset))}
            )
            generator = torch.Generator()
        elif isinstance(dataset, IterableDataset) and a.seed is not None:
            generator = torch.Generator()
        return LiveLoader(
            waits=self.waits,
            on_error=a.on_error,
            keeps_states=not seeded,
            dataset=dataset,
            num_workers=a.num_workers,
            collate_fn=a.collate_fn,
            timeout=a.timeout,
            worker_init_fn=a.worker_init_fn,
            multiprocessing_context=a.multiprocessing_context,
            generator=generator,
            prefetch_factor=a.prefetch_factor if a.num_workers else None,
            persistent_workers=bool(a.persistent_workers),
            in_order=a.in_order,
            **order,
        )

    @property
    def maker(self) -> Maker:
        """Makes the images that wait."""
        with self._lock:
            if self._maker is None:
                threads = self.arguments.num_workers or min(len(os.sched_getaffinity(0)), 8)
                options = self.arguments.engine if isinstance(self.arguments.engine, engines.Dali) else engines.Dali()
                if self._cache is not None:
                    self._cache.hold()
                memory = BatchPool(keep=self.ahead + 2, shared=self.loader.forks)
                host = OnCpu(threads, memory, self._cache, scaled=self.arguments.scaled)
                self._maker = host if self.device.type == "cpu" else OnGpu(self.device, options, host)
            return self._maker

    def rest(self) -> None:
        """Free what a fork of worker processes would copy."""
        with self._lock:
            if self._maker is not None and self.loader.forks and self.loader._iterator is None:
                with deferred():  # what a handler raises in a destructor of DALI's is lost
                    self._maker.rest()

    # ---- order

    @property
    def seed(self) -> int:
        return self.order.seed

    @property
    def has_begun(self) -> bool:
        return self.order.has_begun

    def refreshed(self) -> LiveSession:
        return self  # torch's loader reads everything when an epoch begins

    def __len__(self) -> int:
        if isinstance(self.order, SeededOrder):
            return len(self.order.batching)
        return len(self.loader)

    def set_epoch(self, epoch: int) -> None:
        self.order.set_epoch(epoch)

    def state(self, *, next_epoch: bool = False) -> dict[str, Any]:
        return self.order.state(next_epoch)

    def load(self, state: dict[str, Any]) -> None:
        self.order.load(state)
        self.generation += 1

    # ---- an epoch

    def iterate(self) -> Iterator[Any]:
        if self._owner != os.getpid() and self.waits:
            # Threads of DALI do not exist in a forked child.
            self.waits, self.loader._waits, self._maker, self._owner = False, False, None, os.getpid()
        if self.device.type == "cuda" and self.device.index is None:
            # Scripts call torch.cuda.set_device() between making a loader and using it.
            self.device = torch.device("cuda", torch.cuda.current_device())
        return LiveEpoch(self)

    def keeper(self) -> KeepAlive | None:
        """Return what keeps the memory of an iterator's batches on a GPU. It comes back by :meth:`take_back`."""
        if self.device.type != "cuda":
            return None
        return self._keepers.pop() if self._keepers else KeepAlive(self.device, self.ahead + 2)

    def take_back(self, keeper: KeepAlive) -> None:
        """Take over memory that the consumer's stream may still read."""
        if self._owner == os.getpid():
            keeper.renew()
            self._keepers.append(keeper)

    def check_ranks(self) -> None:
        """Compare this rank's settings with those of others."""
        if isinstance(self.order, SeededOrder) and self.shard.world_size > 1:
            state = self.order.state(False)
            names = ("seed", "epoch", "delivered", "drop_last")
            values: dict[str, Any] = {name: state[name] for name in names}
            values |= {
                "batch_size": self.batch_size,
                "on_error": self.arguments.on_error,
                "max_bad": self.arguments.max_bad,
            }
            settings = {name: RankSetting(value, repr(value)) for name, value in values.items()}
            settings["engine"] = RankSetting("gpupipe", "one of gpupipe's engines")
            settings["order"] = RankSetting(state["order"], state["order"])
            settings["dataset"] = RankSetting(state["dataset"], state["dataset"])
            self.order.position.agreement.check(settings)

    def close(self) -> None:
        self.generation += 1
        with self._lock:
            maker, self._maker = self._maker, None
        if self._owner == os.getpid():
            while self._keepers:
                self._keepers.pop().end()
            if maker is not None:
                maker.close()
        iterator, self.loader._iterator = self.loader._iterator, None
        if iterator is not None and hasattr(iterator, "_shutdown_workers"):
            iterator._shutdown_workers()
        self.loader.trays.clear()

    def note_missing(self, bad: list[BadSample]) -> None:
        """Report samples that are missing from a batch. Raises :class:`SampleError` if there are too many."""
        if bad:
            self.report.add(bad)
            self.bad_samples.count(bad)

    def note_looks(self, looks: Looks) -> None:
        self.looks.add(looks)

    @property
    def nothing_waits(self) -> Reason | None:
        """Why no image waited so far; ``None`` if one did, or if there was no image."""
        looks = self.looks
        if not self.waits or looks.waited or not looks.opened + sum(looks.decoded.values()):
            return None
        return Reason(looks.why(), "looks-at-pixels")

    def warn_if_nothing_waits(self) -> None:
        """Warn once if code looked at every image of an epoch."""
        reason = None if self._warned else self.nothing_waits
        if reason is not None:
            self._warned = True
            warn("DALI decodes no image of this loader", [reason], FallbackWarning)

    # ---- what is shown

    @property
    def engine(self) -> tuple[str, str]:
        return ("dali" if self.waits else "torch"), self._why

    @property
    def reasons(self) -> tuple[Reason, ...]:
        return ()

    @property
    def work(self) -> Work:
        return Work(
            self.arguments.num_workers, self.batch_size or 1, plain=not self.waits, dali=self.waits, collates=True
        )

    @property
    def images(self) -> dict[str, Any] | None:  # type: ignore[override]
        looks = self.looks
        return {"opened": looks.opened, "waited": looks.waited, "looks": dict(looks.places.most_common(5))}

    @property
    def source(self) -> str:
        return f"{type(self.arguments.dataset).__name__}, {length(self.arguments.dataset)} samples"

    def remarks(self) -> list[str]:
        cache = [] if self._cache is None else [self._cache.remark()]
        return [*self.looks.remarks(), *cache] if self.waits else []

    def describe(self) -> list[str]:
        name, why = self.engine
        return [
            f"order: {self.order.describe()}; last batch {'dropped' if self.drop_last else 'kept'}",
            f"engine: {name} ({why}) on {self.device}",
            *(f"note: {remark}" for remark in self.remarks()),
        ]


class _Items:
    """The items of a seeded order. Set before each epoch."""

    def __init__(self, length: int):
        self._length = length
        self.items: Iterator[Asked] = iter(())

    def __iter__(self) -> Iterator[Asked]:
        return self.items

    def __len__(self) -> int:
        return self._length


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
            with suppress(StopIteration):  # its traceback would keep the workers
                if self._inner is None:
                    self._begin(session)
                return self._next(session)
            self._finish(session)
            raise StopIteration
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
        session.valid = pending_valid(shipment)
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
        with deferred():  # finalizers of multiprocessing would lose an interrupt
            self._inner = None
        if session is not None and self._kept is not None:
            session.take_back(self._kept)

    def __del__(self) -> None:
        self.end()


_EMPTY = object()


def pending_valid(shipment: Shipment) -> int:
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


def _batching(a: Arguments) -> Batching:
    return batching_of(a.changed(batch_size=a.batch_size or 1), _Counted(a.dataset))  # type: ignore[arg-type]
