"""The engines that a loader has started, the iterators that use them, and their behavior after a fork."""

from __future__ import annotations

import ctypes
import os
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from itertools import count
from typing import Any

import torch

from ..engines.base import Engine, Run
from ..errors import EngineError
from ..reading.torch_threads import one_torch_thread
from ..signal_handlers import deferred
from ..types import Batch
from .plan_stream import PlanStream

_TIMES = count()


class Lease:
    """An iterator's hold on an engine: empty before it begins, and after another iterator took its engine."""

    def __init__(self) -> None:
        self.engine: Engine | None = None
        self.run: Run | None = None
        self.interrupted = False
        """Whether its engine was ever taken away in the middle of an epoch."""
        self.used = next(_TIMES)

    def keep(self, batch: Batch) -> None:
        """Keep the memory that a batch refers to until the consumer's stream has passed."""
        self.used = next(_TIMES)
        if self.engine is not None and self.engine.kept is not None:
            self.engine.kept.take(batch.keep)

    def renew(self) -> None:
        """Note that the consumer asks for another batch: its work on the last one is queued on its stream by now."""
        if self.engine is not None and self.engine.kept is not None:
            self.engine.kept.renew()

    def stop(self) -> None:
        """End the run. The engine stays."""
        run, self.run = self.run, None
        if run is not None:
            run.close()

    def take(self, other: Lease) -> None:
        """Take over the hold of another lease, which is empty afterwards."""
        self.engine, self.run = other.engine, other.run
        other.engine = other.run = None
        self.used = next(_TIMES)

    def let_go(self) -> Engine | None:
        """End the run and return the engine, which keeps the memory that the consumer's stream may still read."""
        self.stop()
        self.renew()
        engine, self.engine = self.engine, None
        return engine


class Running:
    """Engines of a loader. Refers to nothing that refers to it, so that a finalizer can hold it.

    One engine serves one iterator at a time. A new iterator takes the engine of the least recently used one, since most
    iterators are left unfinished. If the old one is asked for more, it gets another engine and continues where it
    stood. So ``next(iter(loader))`` costs no engine, and ``zip(loader, loader)`` uses two.
    """

    def __init__(self) -> None:
        self.engines: list[Engine] = []
        self._leases: list[Lease] = []
        self.one_at_a_time = threading.RLock()
        """Lets only one of the script's threads that iterate over the loader make a batch at a time."""
        self._forked_from = 0
        """Process that owns the threads and processes, if it is not this one."""
        _ALL.add(self)

    @property
    def engine(self) -> Engine | None:
        """The first engine."""
        return self.engines[0] if self.engines else None

    @property
    def alone(self) -> bool:
        """Return whether at most one engine is in use."""
        return len(self._leases) <= 1

    def run(self, lease: Lease, plans: PlanStream, build: Callable[[], Engine]) -> Run:
        """Start an engine on plans. The previous run of the lease must have been closed."""
        if lease.engine is None:
            lease.engine = self._engine_for(lease, build)
            self._leases.append(lease)
        lease.run = lease.engine.run(plans)
        return lease.run

    def _engine_for(self, lease: Lease, build: Callable[[], Engine]) -> Engine:
        taken = [it.engine for it in self._leases]
        free = [engine for engine in self.engines if engine not in taken]
        if free:
            return free[0]
        # Two iterators that are used in turns would otherwise take one engine from each other in every step.
        if self._leases and not lease.interrupted:
            oldest = min(self._leases, key=lambda it: it.used)
            oldest.interrupted = True
            self._leases.remove(oldest)
            engine = oldest.let_go()
            assert engine is not None
            return engine
        self.engines.append(build())
        return self.engines[-1]

    def release(self, lease: Lease, *, stop: bool = False) -> None:
        """Return an iterator's engine. The first engine stays, unless ``stop`` is set, and others end."""
        if not self.ours or lease not in self._leases:
            return
        self._leases.remove(lease)
        engine = lease.let_go()
        assert engine is not None
        if stop or engine is not self.engines[0]:
            self.engines.remove(engine)
            _close(engine)

    def hand_on(self, lease: Lease, to: Lease) -> None:
        """Pass an engine and its current work to another lease."""
        to.take(lease)
        self._leases[self._leases.index(lease)] = to

    def close(self) -> None:
        """End every thread and process, and free the memory. Only works in the process that started them.

        Iterators that continue get new engines.
        """
        if not self.ours:
            return
        leases, self._leases = self._leases, []
        for lease in leases:
            lease.let_go()
        engines, self.engines = self.engines, []
        for engine in engines:
            _close(engine)

    def finalize(self, owner: object, lease: Lease | None = None) -> weakref.finalize[..., Any]:
        """Release a lease, or close, when nothing refers to ``owner`` any more."""
        return weakref.finalize(owner, self._finalize, lease)

    def _finalize(self, lease: Lease | None) -> None:
        with deferred():
            self.close() if lease is None else self.release(lease)

    # ---- forks

    @property
    def ours(self) -> bool:
        """Return whether this process started the engines, not one that it was forked from."""
        return not self._forked_from

    def check(self, device: torch.device) -> None:
        """Raise an error for what cannot work in a forked child."""
        if self._forked_from:
            raise EngineError(
                f"this loader was started in process {self._forked_from}, and process {os.getpid()} is a fork of it: "
                "threads, worker processes and CUDA do not survive a fork. Make a loader in the child, or close() this "
                "one before forking"
            )
        if device.type == "cuda" and torch.cuda._is_in_bad_fork():
            raise EngineError(
                f"device={str(device)!r}: CUDA was initialized in the parent before this process ({os.getpid()}) was "
                "forked, and does not work here. Start the process with multiprocessing.get_context('spawn'), or touch "
                "no GPU before forking"
            )

    def forked(self) -> None:
        """Forget all engines, in a forked child. They belong to the parent and must not be ended here.

        A destructor would wait for threads that the child does not have.
        """
        if self.engines and not self._forked_from:
            self._forked_from = os.getppid()
            # With one reference that is never given back, neither this object nor its engines are destroyed here.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self))


def _close(engine: Engine) -> None:
    """Close an engine once its memory is no longer read."""
    if engine.kept is not None:
        engine.kept.end()
    engine.close()


_ALL: weakref.WeakSet[Running] = weakref.WeakSet()


_is_forked = False
"""Whether this process is a fork of one that had imported this module."""


@contextmanager
def one_thread_in_forks() -> Iterator[None]:
    """In a forked child, run torch's functions within this context in the calling thread only.

    A fork lacks the OpenMP threads of its parent, so the next parallel loop would wait for them forever, even one of
    the script. torch's worker processes use one thread for the same reason.
    """
    with one_torch_thread() if _is_forked else nullcontext():
        yield


def _in_forked_child() -> None:
    global _is_forked
    _is_forked = True
    for running in list(_ALL):
        running.forked()


os.register_at_fork(after_in_child=_in_forked_child)
