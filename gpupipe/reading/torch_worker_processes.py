"""torch's DataLoader and its worker processes, held to what torch leaves open.

- A worker that dies is noticed within a quarter of a second, in any thread, and only in ``next()``: torch itself raises
  it from a signal handler, in the middle of whatever the script does, and in other threads than the first after 5 s.
- All workers end within about a second, however long one of them works on its job, and whatever locks a dead one holds.
- None of them outlives its parent by more than half a second, and there is no temporary file that could stay.
- Ctrl-C neither loses a process that has just been forked nor stops the ending of the others half way, and no worker
  prints a traceback because of it.
- A forked child that lets go of its copy does not end the workers of its parent.

Everything that is known here of torch's private names is in this file.
"""

from __future__ import annotations

import multiprocessing
import os
import select
import signal
import threading
import time
import weakref
from collections.abc import Callable, Iterable
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from multiprocessing.connection import wait
from typing import Any

from torch.utils.data import DataLoader, _utils, get_worker_info
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from ..signal_handlers import deferred, pass_on
from .tensor_socket import listen_without_a_file

__all__ = ["WorkerLoader", "WorkersLost"]

_LOOK = 0.25
"""Seconds between two looks at whether all workers live, while the consumer waits."""
_WATCH = 0.5
"""Seconds between two looks of a worker at whether its parent lives."""
_GRACE = 0.5
"""Seconds that workers have to end by themselves, then once more after SIGTERM; after that they are killed."""


class WorkersLost(Exception):
    """The worker processes, or the way to them, are gone. ``again``: whether new ones may do better."""

    def __init__(self, reason: str, *, again: bool = True):
        super().__init__(reason)
        self.again = again


class WorkerLoader(DataLoader[Any]):
    """A torch DataLoader of persistent workers, or of none. Iterating raises :class:`WorkersLost`."""

    def _get_iterator(self) -> Any:
        if self.num_workers == 0:
            return super()._get_iterator()
        self.check_worker_number_rationality()
        # Forking is quick. The other ways may wait until a child has imported the script.
        method = (self.multiprocessing_context or multiprocessing).get_start_method()
        with deferred(forking=True) if method == "fork" else nullcontext():
            theirs = self.worker_init_fn
            self.worker_init_fn = _Guard(theirs)
            try:
                self._iterator = _Iterator(self)  # torch does so too, but later
            finally:
                self.worker_init_fn = theirs
        return self._iterator

    def end(self) -> None:
        """End the processes. A later ``iter()`` starts others."""
        iterator, self._iterator = self._iterator, None
        if isinstance(iterator, _Iterator):
            iterator._shutdown_workers()


@dataclass(frozen=True)
class _Guard:
    """What a worker does first."""

    init: Callable[[int], None] | None

    def __call__(self, worker: int) -> None:
        # A terminal sends Ctrl-C to every process, but what it means is for the parent to say. Not SIG_IGN, which a
        # program that the dataset's code starts would inherit.
        signal.signal(signal.SIGINT, lambda number, frame: None)
        listen_without_a_file()
        threading.Thread(target=_watch, name="gpupipe-watch", daemon=True).start()
        info: Any = get_worker_info()
        jobs, given = info.dataset, getattr(info.dataset, "given", None)
        if given is not None:
            object.__setattr__(info, "dataset", given)  # as a script expects; torch itself refuses to set it
        if self.init is not None:
            self.init(worker)
            if given is not None:
                jobs.set_up()


def _watch() -> None:
    """End this process soon after its parent. (PR_SET_PDEATHSIG would mean the thread that forked, not the process.)"""
    parent, number = multiprocessing.parent_process(), os.getppid()
    while os.getppid() == number and (parent is None or parent.is_alive()):
        time.sleep(_WATCH)
    os._exit(1)


class _Iterator(_MultiProcessingDataLoaderIter):
    def __init__(self, loader: WorkerLoader):
        self._owner = os.getpid()
        self._lost = False
        self._workers: list[Any] = []
        _ITERATORS.add(self)
        try:
            super().__init__(loader)
        except BaseException:
            self._lost = True
            self._shutdown_workers()
            raise

    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        self._forget_pids()
        super()._reset(loader, first_iter)

    def _forget_pids(self) -> None:
        """Else torch's handler of SIGCHLD would raise, wherever the script is just then."""
        with suppress(ValueError):  # not there yet, or no more
            _utils.signal_handling._remove_worker_pids(id(self))  # type: ignore[attr-defined]
        self._worker_pids_set = False

    def _get_data(self) -> Any:
        try:
            return super()._get_data()  # type: ignore[no-untyped-call]
        except WorkersLost:
            raise
        except RuntimeError as e:  # torch's words for: the time is up, or its pinning thread has ended
            pass_on(e)
            self._look()
            self._lost = True
            raise WorkersLost(str(e), again=not self._timeout) from e

    def _try_get_data(self, timeout: float = _utils.MP_STATUS_CHECK_INTERVAL) -> tuple[bool, Any]:
        until = time.monotonic() + timeout
        while True:
            # Before reading: a worker that was killed in the middle of a message has left one without an end.
            self._look()
            left = until - time.monotonic()
            try:
                found: tuple[bool, Any] = super()._try_get_data(min(max(left, 0.0), _LOOK))  # type: ignore[no-untyped-call]
            except Exception as e:
                pass_on(e)
                self._look(patience=1.0)  # it may have gone while it was handing over a tensor's memory
                self._lost = True
                raise WorkersLost(f"a result cannot be received: {type(e).__name__}: {e}") from e
            if found[0] or left <= _LOOK:
                return found

    def _look(self, patience: float = 0.0) -> None:
        """Raises :class:`WorkersLost` if a worker has died."""
        ready = wait([w.sentinel for w in self._workers], patience)
        gone = [i for i, w in enumerate(self._workers) if w.sentinel in ready or not w.is_alive()]
        if gone:
            self._lost = True
            raise WorkersLost("; ".join(f"worker {i} {_obituary(self._workers[i])}" for i in gone))

    def _shutdown_workers(self) -> None:
        # At exit multiprocessing ends them. A forked child owns none.
        if self._shutdown or _utils.python_exit_status is not False or os.getpid() != self._owner:
            return
        self._shutdown = True
        with deferred():
            self._end()

    def _end(self) -> None:
        self._forget_pids()
        try:
            # Where one has died it may hold the locks of event and queues.
            if not self._lost and all(w.is_alive() for w in self._workers):
                self._end_pinning()  # before those whose memory it receives
                self._workers_done_event.set()
                for queue in self._index_queues:
                    queue.put(None)
                _join(self._workers, _GRACE)
        finally:
            for end in ("terminate", "kill"):
                for worker in self._workers:
                    if worker.is_alive():
                        getattr(worker, end)()
                _join(self._workers, _GRACE)
            for queue in getattr(self, "_index_queues", ()):
                _close(queue)
            self._end_pinning()
            # Now, while signals are deferred: their finalizers are callbacks of weak references, in which Python
            # swallows a KeyboardInterrupt.
            self._workers.clear()

    def _end_pinning(self) -> None:
        """End torch's thread that pins memory, if there is one."""
        thread = self.__dict__.pop("_pin_memory_thread", None)
        if thread is not None:
            self._pin_memory_thread_done_event.set()
            self._worker_result_queue.put((None, None))  # it waits for something to come
            thread.join(_GRACE)
            self._worker_result_queue.cancel_join_thread()
            self._worker_result_queue.close()

    _shutdown = False  # torch's own is set too late for a constructor that fails
    _worker_pids_set = False


_ITERATORS: weakref.WeakSet[_Iterator] = weakref.WeakSet()


def _in_forked_child() -> None:
    """multiprocessing would end our workers when a child of os.fork() exits: it takes them for the child's own."""
    for iterator in list(_ITERATORS):
        multiprocessing.process._children.difference_update(iterator._workers)  # type: ignore[attr-defined]


os.register_at_fork(after_in_child=_in_forked_child)


def _obituary(worker: Any) -> str:
    worker.join(1)  # its end of the pipe closes a moment before its exit status can be read
    code = worker.exitcode
    if code is None:
        return f"(pid {worker.pid}) ended, nobody knows how"
    if code >= 0:
        return f"(pid {worker.pid}) exited with code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return f"(pid {worker.pid}) was killed by {name}"


def _join(workers: Iterable[Any], seconds: float) -> None:
    until = time.monotonic() + seconds
    for worker in workers:
        worker.join(max(until - time.monotonic(), 0))


def _close(queue: Any) -> None:
    """Close a queue whose reader is dead. The thread that feeds it may wait for room in the pipe: it is made here."""
    fd = os.dup(queue._reader.fileno())  # the thread closes the original, whose number somebody may then get
    try:
        queue.cancel_join_thread()
        queue.close()
        thread, until = queue._thread, time.monotonic() + _GRACE
        while thread is not None and thread.is_alive() and time.monotonic() < until:
            if select.select([fd], [], [], 0.005)[0]:
                os.read(fd, 1 << 16)
    finally:
        os.close(fd)
