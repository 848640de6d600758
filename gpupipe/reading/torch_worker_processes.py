"""The iterator of torch's DataLoader over worker processes, which tells where a worker is that does not answer.

- A timeout shows where in its code the awaited worker is. It comes after five seconds if the worker can never begin.
- An iterator that nothing refers to any more ends its workers at once, also if the garbage collector finds it.
- A forked child that drops its copy does not end the workers of its parent.

All use of torch's private names is in this file and in ``live/loader.py``.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import wait
from typing import Any

from torch.utils.data import _utils
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from ..errors import EngineError
from ..signal_handlers import deferred
from .worker_stacks import show_stack_on_request, stack_of

_BIRTH = 5.0
"""Seconds without a batch after which it is checked whether the awaited worker has begun at all."""

_DEATH = 2.0
"""Seconds in which a worker ends whose connection is gone."""


class WorkerIterator(_MultiProcessingDataLoaderIter):
    """See the module."""

    def __init__(self, loader: Any):
        self._owner = os.getpid()
        self._late = False
        """Whether workers would not end by themselves."""
        self._waited = 0.0
        """Seconds waited since a batch arrived."""
        self._born: set[int] = set()
        """Workers that are known to have begun."""
        self._workers: list[Any] = []
        _ITERATORS.add(self)
        theirs, loader.worker_init_fn = loader.worker_init_fn, _Shown(loader.worker_init_fn)
        try:
            # What a handler raises in a hook of a fork would be lost.
            with deferred(), _FORKING:
                super().__init__(loader)
        except BaseException:
            self._shutdown = True
            for worker in self._workers:
                worker.kill()
                worker.join()
            for queue in self.__dict__.get("_index_queues", ()):  # with a thread each
                queue.cancel_join_thread()
                queue.close()
            raise
        finally:
            loader.worker_init_fn = theirs
        _KEPT[id(self)] = self._workers, self._index_queues, self._worker_result_queue, self._workers_done_event

    def without_signals(self) -> WorkerIterator:
        """Return this iterator, which meets the death of a worker in ``next()`` alone. torch raises it from a signal
        handler, anywhere in the script."""
        _utils.signal_handling._remove_worker_pids(id(self))  # type: ignore[attr-defined]
        self._worker_pids_set = False
        return self

    def _try_get_data(self, timeout: float = _utils.MP_STATUS_CHECK_INTERVAL) -> tuple[bool, Any]:
        left, step = timeout, _utils.MP_STATUS_CHECK_INTERVAL
        while True:
            found = self._arrived(min(left, step))
            if found[0]:
                self._waited = 0.0
                return found
            left -= step  # not the time of a clock, which also runs while the script is stopped
            self._check_birth(step)
            if left <= 0 and self._timeout:
                self._late = True
                raise EngineError(self._stacks(self._timeout))
            if left <= 0:
                return found

    def _arrived(self, seconds: float) -> tuple[bool, Any]:
        try:
            found: tuple[bool, Any] = super()._try_get_data(seconds)  # type: ignore[no-untyped-call]
            return found
        except (ConnectionError, EOFError, FileNotFoundError) as e:
            # Tensors of a worker that dies cannot be fetched. torch says that it died if its end was seen already.
            died = wait([worker.sentinel for worker in self._workers], _DEATH)
            pids = [str(worker.pid) for worker in self._workers if worker.sentinel in died]
            if not pids:
                raise
            raise RuntimeError(f"DataLoader worker (pid(s) {', '.join(pids)}) exited unexpectedly") from e

    def _check_birth(self, seconds: float) -> None:
        """Raise an error if the awaited worker can never begin, because it inherited a lock of torch's."""
        self._waited += seconds
        owing = self._owing()
        if self._waited < _BIRTH or len(owing) != 1 or owing[0] in self._born:
            return
        pid = self._workers[owing[0]].pid
        # The first step of a worker takes microseconds.
        if _is_seeding(stack_of(pid)) and _is_seeding(stack_of(pid)):
            self._late = True
            raise EngineError(self._stacks(self._waited))
        self._born.add(owing[0])

    def _owing(self) -> Any:
        """Return (worker,) for a batch that has not arrived. torch keeps (worker, batch) for one that has."""
        return self._task_info.get(self._rcvd_idx, ())

    def _stacks(self, seconds: float) -> str:
        """Describe the end of a wait, with the stack of the worker that owes the batch, or of all."""
        owing = self._owing()
        late = [owing[0]] if len(owing) == 1 else range(len(self._workers))
        stacks = [f"worker {i} (pid {self._workers[i].pid}):\n{stack_of(self._workers[i].pid)}" for i in late]
        advice = "a larger timeout waits longer, and timeout=0 for ever"
        if any(map(_is_seeding, stacks)):
            advice = (
                "another thread drew from torch's generator while the worker was forked, so its lock is never released "
                "there: draw from a generator of your own, or pass multiprocessing_context='forkserver'"
            )
        return "\n".join(
            (f"DataLoader timed out after {seconds:g} seconds; {advice}. Most recent call first:", *stacks)
        )

    def _shutdown_workers(self) -> None:
        if os.getpid() != self._owner:  # a forked child owns none
            return
        with deferred():
            workers = list(self._workers)
            for worker in workers if self._late else ():
                worker.kill()
            super()._shutdown_workers()
            for worker in workers:
                if worker.is_alive():  # a stopped process does not hear torch's SIGTERM
                    worker.kill()
            _KEPT.pop(id(self), None)

    _shutdown = False  # torch sets its own too late for a failing constructor


def _is_seeding(stack: str) -> bool:
    return "in manual_seed" in stack and "in _worker_loop" in stack


@dataclass(frozen=True)
class _Shown:
    """First step of a worker."""

    init: Callable[[int], None] | None

    def __call__(self, worker: int) -> None:
        show_stack_on_request()
        if self.init is not None:
            self.init(worker)


_KEPT: dict[int, tuple[Any, ...]] = {}
"""Objects that each living iterator needs to end its workers.

Before an iterator's ``__del__()``, the garbage collector calls multiprocessing's finalizers of everything that only the
iterator refers to. These close the queues, and torch would wait five seconds for each worker.
"""

_ITERATORS: weakref.WeakSet[WorkerIterator] = weakref.WeakSet()


class _Forking(threading.local):
    """Whether this thread starts workers."""

    now = False

    def __enter__(self) -> None:
        self.now = True

    def __exit__(self, *_: object) -> None:
        self.now = False


_FORKING = _Forking()


def _in_forked_child() -> None:
    """Show a worker's stack on request, from its very beginning: torch draws before it calls ``worker_init_fn``.

    Keep multiprocessing from ending our workers when a child of os.fork() exits: it takes them for the child's own.
    """
    if _FORKING.now:
        _FORKING.now = False
        show_stack_on_request()
    for iterator in list(_ITERATORS):
        multiprocessing.process._children.difference_update(iterator._workers)  # type: ignore[attr-defined]


os.register_at_fork(after_in_child=_in_forked_child)
