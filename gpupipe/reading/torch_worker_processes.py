"""torch's DataLoader and its worker processes, with guarantees that torch does not give.

- A worker that dies is noticed within a quarter of a second, in any thread, and only in ``next()``: torch itself raises
  it from a signal handler, anywhere in the script, and in threads other than the first after 5 s.
- All workers end within about a second, even during a long job, and whatever locks a dead one holds.
- A timeout says where in its code the awaited worker is. It comes after five seconds if the worker can never begin.
- No worker outlives its parent by more than half a second, and no temporary file remains.
- Ctrl-C neither loses a process that was just forked nor interrupts the shutdown of the others, and no worker
  prints a traceback because of it.
- A forked child that drops its copy does not end the workers of its parent.

All use of torch's private names is in this file.
"""

from __future__ import annotations

import multiprocessing
import os
import select
import signal
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from multiprocessing.connection import wait
from typing import Any, ClassVar

from torch.utils.data import DataLoader, _utils, get_worker_info
from torch.utils.data.dataloader import _MultiProcessingDataLoaderIter

from ..errors import EngineError
from ..signal_handlers import deferred, pass_on
from .tensor_socket import listen_without_a_file
from .worker_stacks import show_stack_on_request, stack_of

_LOOK = 0.25
"""Seconds between checks of whether all workers live."""
_WATCH = 0.5
"""Seconds between a worker's checks of whether its parent lives."""
_BIRTH = 5.0
"""Seconds without a batch after which it is checked whether the awaited worker has begun at all."""
_GRACE = 0.5
"""Seconds that workers have to end by themselves, and again after SIGTERM, before they are killed."""


class WorkersLost(Exception):
    """Worker processes, or the connections to them, were lost."""


class WorkerLoader(DataLoader[Any]):
    """A torch DataLoader with persistent workers, or none. Iterating raises :class:`WorkersLost`."""

    def _get_iterator(self) -> Any:
        if self.num_workers == 0:
            return super()._get_iterator()
        self.check_worker_number_rationality()
        # Forking is fast. Other start methods may wait until a child has imported the script.
        method = (self.multiprocessing_context or multiprocessing).get_start_method()
        with deferred(forking=True) if method == "fork" else nullcontext():
            theirs = self.worker_init_fn
            self.worker_init_fn = _Guard(theirs)
            try:
                self._iterator = _Iterator(self)  # torch does this too, but later
            finally:
                self.worker_init_fn = theirs
        return self._iterator

    def is_ready(self) -> bool:
        """Return whether the current iterator has nothing to wait for; always without workers."""
        return not isinstance(self._iterator, _Iterator) or self._iterator.is_ready()

    def end(self) -> None:
        """End the processes. A later ``iter()`` starts new ones."""
        iterator, self._iterator = self._iterator, None
        if isinstance(iterator, _Iterator):
            iterator._shutdown_workers()


@dataclass(frozen=True)
class _Guard:
    """First step of a worker."""

    init: Callable[[int], None] | None

    def __call__(self, worker: int) -> None:
        # A terminal sends Ctrl-C to every process, but the parent decides. Not SIG_IGN, which programs started by the
        # dataset's code would inherit.
        signal.signal(signal.SIGINT, lambda number, frame: None)
        show_stack_on_request()
        listen_without_a_file()
        threading.Thread(target=_watch, name="gpupipe-watch", daemon=True).start()
        info: Any = get_worker_info()
        given = getattr(info.dataset, "given", None)
        if given is not None:
            object.__setattr__(info, "dataset", given)  # as scripts expect; torch itself rejects setting it
        if self.init is not None:
            self.init(worker)


def _watch() -> None:
    """End this process soon after its parent. PR_SET_PDEATHSIG would refer to the forking thread, not the process."""
    parent, number = multiprocessing.parent_process(), os.getppid()
    while os.getppid() == number and (parent is None or parent.is_alive()):
        time.sleep(_WATCH)
    os._exit(1)


class _Bounded(_MultiProcessingDataLoaderIter):
    """torch's iterator with a bounded shutdown."""

    _look_every: ClassVar[float] = _LOOK
    """Seconds between checks of whether all workers live, while the consumer waits."""
    _grace: ClassVar[float] = _GRACE
    """Seconds that workers have to end by themselves."""

    def __init__(self, loader: Any):
        self._owner = os.getpid()
        self._lost = False
        self._waited = 0.0
        """Seconds waited since a batch arrived."""
        self._born: set[int] = set()
        """Workers that are known to have begun."""
        self._workers: list[Any] = []
        _ITERATORS.add(self)
        try:
            with _FORKING:
                super().__init__(loader)
        except BaseException:
            self._lost = True
            self._shutdown_workers()
            raise
        _KEPT[id(self)] = self._workers, self._index_queues, self._worker_result_queue, self._workers_done_event

    def _forget_pids(self) -> None:
        """Stop torch's handler of SIGCHLD from raising anywhere in the script."""
        with suppress(ValueError):  # missing
            _utils.signal_handling._remove_worker_pids(id(self))  # type: ignore[attr-defined]
        self._worker_pids_set = False

    def _try_get_data(self, timeout: float = _utils.MP_STATUS_CHECK_INTERVAL) -> tuple[bool, Any]:
        left = timeout
        while True:
            found = self._arrived(min(left, self._look_every))
            if found[0]:
                self._waited = 0.0
                return found
            left -= self._look_every  # not the time of a clock, which also runs while the script is stopped
            self._check_birth()
            if left <= 0 and self._timeout:
                self._lost = True
                raise EngineError(self._late(self._timeout))
            if left <= 0:
                return found
            # torch looks at it only if there is no timeout.
            thread = vars(self).get("_pin_memory_thread")
            if thread is not None and not thread.is_alive():
                raise RuntimeError("the pinning thread has ended")

    def _arrived(self, seconds: float) -> tuple[bool, Any]:
        found: tuple[bool, Any] = super()._try_get_data(seconds)  # type: ignore[no-untyped-call]
        return found

    def _check_birth(self) -> None:
        """Raise an error if the awaited worker can never begin, because it inherited a lock of torch's."""
        self._waited += self._look_every
        owing = self._task_info.get(self._rcvd_idx, ())
        if self._waited < _BIRTH or len(owing) != 1 or owing[0] in self._born:
            return
        if _is_unborn(self._workers[owing[0]].pid):
            self._lost = True
            raise EngineError(self._late(self._waited))
        self._born.add(owing[0])

    def _late(self, seconds: float) -> str:
        """Describe the end of a wait, with the stack of the worker that owes the batch, or of all."""
        # torch keeps (worker,) for a batch that has not arrived, and (worker, batch) for one that has.
        owing = self._task_info.get(self._rcvd_idx, ())
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
        # multiprocessing ends them at exit. A forked child owns none.
        if self._shutdown or _utils.python_exit_status is not False or os.getpid() != self._owner:
            return
        self._shutdown = True
        with deferred():
            self._end()

    def _end(self) -> None:
        self._forget_pids()
        try:
            if self._answers():
                self._end_pinning()  # before the workers whose memory it receives
                _in_thread(self._ask_to_end)
                _join(self._workers, self._grace)
        finally:
            for end in ("terminate", "kill"):
                for worker in self._workers:
                    if worker.is_alive():
                        getattr(worker, end)()
                _join(self._workers, _GRACE)
            for queue in getattr(self, "_index_queues", ()):
                _close(queue)
            self._end_pinning()
            # Drop them while signals are deferred: their finalizers are callbacks of weak references, in which Python
            # swallows a KeyboardInterrupt. Semaphores have finalizers unless workers are forked.
            _KEPT.pop(id(self), None)
            self._workers.clear()
            getattr(self, "_index_queues", []).clear()
            vars(self).update(dict.fromkeys(("_worker_result_queue", "_data_queue", "_workers_done_event")))

    def _answers(self) -> bool:
        """Return whether workers may be asked to end. A dead one may hold locks of the event and the queues."""
        return not self._lost and all(w.is_alive() for w in self._workers)

    def _ask_to_end(self) -> None:
        """Ask workers to end, in a separate thread.

        A stuck worker may hold the lock of the event, and the garbage collector may run in the very thread that feeds a
        queue while it holds the queue's lock.
        """
        self._workers_done_event.set()
        for queue in self._index_queues:
            queue.put(None)

    def _end_pinning(self) -> None:
        """End torch's pinning thread, if there is one."""
        thread = self.__dict__.pop("_pin_memory_thread", None)
        if thread is not None:
            self._pin_memory_thread_done_event.set()
            self._worker_result_queue.put((None, None))  # it waits for an item
            with suppress(RuntimeError):  # the garbage collector may run in that thread
                thread.join(_GRACE)
            self._worker_result_queue.cancel_join_thread()
            self._worker_result_queue.close()

    _shutdown = False  # torch sets its own too late for a failing constructor
    _worker_pids_set = False


def _is_seeding(stack: str) -> bool:
    return "in manual_seed" in stack and "in _worker_loop" in stack


def _is_unborn(pid: int) -> bool:
    """Return whether a worker stays at its first step, which takes microseconds."""
    return _is_seeding(stack_of(pid)) and _is_seeding(stack_of(pid))


class _Iterator(_Bounded):
    def _reset(self, loader: Any, first_iter: bool = False) -> None:
        self._forget_pids()
        super()._reset(loader, first_iter)

    def _get_data(self) -> Any:
        try:
            return super()._get_data()  # type: ignore[no-untyped-call]
        except (WorkersLost, EngineError):
            raise
        except RuntimeError as e:  # an ended pinning thread
            pass_on(e)
            self._look()
            self._lost = True
            raise WorkersLost(str(e)) from e

    def _arrived(self, seconds: float) -> tuple[bool, Any]:
        # Check before reading: a worker killed in the middle of a message leaves it incomplete.
        self._look()
        try:
            return super()._arrived(seconds)
        except Exception as e:
            pass_on(e)
            self._look(patience=1.0)  # it may have died while sharing a tensor's memory
            self._lost = True
            raise WorkersLost(f"a result cannot be received: {type(e).__name__}: {e}") from e

    def is_ready(self) -> bool:
        """Return whether ``next()`` has nothing to wait for."""
        # torch keeps (worker,) for a batch that has not arrived, and (worker, batch) for one that has.
        while len(self._task_info.get(self._rcvd_idx, ("the", "end"))) == 1:
            found, item = self._arrived(0.0)
            if not found:
                return False
            number, batch = item
            self._task_info[number] += (batch,)
            self._tasks_outstanding -= 1
        return True

    def _look(self, patience: float = 0.0) -> None:
        """Raise :class:`WorkersLost` if a worker has died."""
        ready = wait([w.sentinel for w in self._workers], patience)
        gone = [i for i, w in enumerate(self._workers) if w.sentinel in ready or not w.is_alive()]
        if gone:
            self._lost = True
            raise WorkersLost("; ".join(f"worker {i} {_obituary(self._workers[i])}" for i in gone))


class OwnIterator(_Bounded):
    """torch's iterator for torch's own loader, which runs user code unchanged: no work is repeated.

    Workers have torch's five seconds to end.
    """

    _look_every = _grace = _utils.MP_STATUS_CHECK_INTERVAL

    def __init__(self, loader: Any):
        theirs = loader.worker_init_fn
        loader.worker_init_fn = _Shown(theirs)
        try:
            super().__init__(loader)
        finally:
            loader.worker_init_fn = theirs

    def _answers(self) -> bool:
        # Workers of a stream end at different times, and report it.
        return not self._lost and not any(w.exitcode for w in self._workers)


@dataclass(frozen=True)
class _Shown:
    """First step of a worker of torch's own loader."""

    init: Callable[[int], None] | None

    def __call__(self, worker: int) -> None:
        show_stack_on_request()
        if self.init is not None:
            self.init(worker)


_KEPT: dict[int, tuple[Any, ...]] = {}
"""Objects that each living iterator needs to end its workers.

Before an iterator's ``__del__()``, the garbage collector calls multiprocessing's finalizers of everything that only the
iterator refers to. These close the queues, and workers would never be told to end.
"""

_ITERATORS: weakref.WeakSet[_Bounded] = weakref.WeakSet()


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


def _obituary(worker: Any) -> str:
    worker.join(1)  # its pipe closes a moment before its exit status is available
    code = worker.exitcode
    if code is None:
        return f"(pid {worker.pid}) ended in an unknown way"
    if code >= 0:
        return f"(pid {worker.pid}) exited with code {code}"
    try:
        name = signal.Signals(-code).name
    except ValueError:
        name = f"signal {-code}"
    return f"(pid {worker.pid}) was killed by {name}"


def _in_thread(do: Callable[[], None]) -> None:
    with suppress(RuntimeError):  # an ending interpreter starts no threads: the workers are killed
        threading.Thread(target=_quietly, args=(do,), name="gpupipe-end", daemon=True).start()


def _quietly(do: Callable[[], None]) -> None:
    with suppress(Exception):  # queues may already be closed
        do()


def _join(workers: Sequence[Any], seconds: float) -> None:
    until = time.monotonic() + seconds
    # join() waits indefinitely if the worker's sentinel is closed.
    while any(worker.is_alive() for worker in workers) and time.monotonic() < until:
        time.sleep(0.002)


def _close(queue: Any) -> None:
    """Close a queue whose reader is dead. Make room in the pipe, because the thread that feeds it may wait for that."""
    queue.cancel_join_thread()
    try:
        fd = os.dup(queue._reader.fileno())  # the thread closes the original, whose number may be reused
    except OSError:  # too many open files
        queue.close()
        return
    poller = select.poll()  # select() takes numbers below 1,024 only
    poller.register(fd, select.POLLIN)
    try:
        queue.close()
        thread, until = queue._thread, time.monotonic() + _GRACE
        while thread is not None and thread.is_alive() and time.monotonic() < until:
            if poller.poll(5):
                os.read(fd, 1 << 16)
    finally:
        os.close(fd)
