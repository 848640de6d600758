"""Threads that may be abandoned while they wait, for example for the answer of a store. Standard library only.

A thread of :class:`Pool` waits until its pool is shut down, other threads until the interpreter ends, and the main
thread until Ctrl-C. The request itself continues in :class:`Requests`, whose threads end with the process.
"""

from __future__ import annotations

import atexit
import errno
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from queue import SimpleQueue
from typing import Any, TypeVar
from weakref import WeakSet

R = TypeVar("R")

_LOOK = 0.1
"""Seconds between two checks whether waiting still makes sense."""
_GRACE = 1.0
"""Seconds that requests get at the end of the interpreter. A request that returns while it ends can crash the
process."""
_THREAD = threading.local()
_ENDED = threading.Event()
_RUNNING: WeakSet[Future[Any]] = WeakSet()


def gave_up() -> bool:
    """Return whether the result of this thread is no longer awaited."""
    own = getattr(_THREAD, "ended", None)
    return _ENDED.is_set() or (own is not None and own.is_set())


def pause(seconds: float) -> None:
    """Sleep like ``time.sleep()``, but return early if the result of this thread is no longer awaited."""
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0 and not gave_up():
        time.sleep(min(left, _LOOK))


class Pool(ThreadPoolExecutor):
    """A thread pool whose threads stop waiting once it is shut down."""

    def __init__(self, count: int, name: str, start: Callable[[], Any] | None = None):
        self._ended = ended = threading.Event()

        def begin() -> None:
            _THREAD.ended = ended
            if start is not None:
                start()

        super().__init__(count, name, begin)

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        self._ended.set()
        super().shutdown(wait, cancel_futures=cancel_futures)


class Requests:
    """Runs at most ``count`` requests at a time, in threads that do not delay the end of the process."""

    def __init__(self, count: int, name: str):
        self._count, self._name = count, name
        self._threads = 0
        self._idle = threading.Semaphore(0)
        self._lock = threading.Lock()
        self._queue: SimpleQueue[tuple[Future[Any], Callable[[], Any]]] = SimpleQueue()

    def results(self, work: Sequence[Callable[[], R]]) -> list[R]:
        """Run the work and return its results.

        Raises the first error, and :class:`OSError` if the results are no longer awaited.
        """
        futures: list[Future[R]] = [self._submit(one) for one in work]
        try:
            while wait(futures, _LOOK).not_done:
                if gave_up():
                    raise OSError(errno.ECANCELED, "the answer is no longer awaited")
            return [future.result() for future in futures]
        finally:
            # Work that has not begun never starts.
            for future in futures:
                future.cancel()

    def _submit(self, work: Callable[[], R]) -> Future[R]:
        future: Future[R] = Future()
        _RUNNING.add(future)
        self._queue.put((future, work))
        # The semaphore counts idle threads. Start another thread only if none is idle.
        if not self._idle.acquire(blocking=False):
            with self._lock:
                number, self._threads = self._threads, min(self._threads + 1, self._count)
            if number < self._count:
                arguments = self._queue, self._idle
                threading.Thread(target=_serve, args=arguments, name=f"{self._name}_{number}", daemon=True).start()
        return future


def _serve(queue: SimpleQueue[tuple[Future[Any], Callable[[], Any]]], idle: threading.Semaphore) -> None:
    while True:
        future, work = queue.get()
        if future.set_running_or_notify_cancel():
            try:
                future.set_result(work())
            except BaseException as e:
                future.set_exception(e)
        # An idle thread would otherwise keep its last result alive.
        del future, work
        idle.release()


def _at_exit() -> None:
    wait([future for future in _RUNNING if future.running()], _GRACE)


atexit.register(_at_exit)
# Runs before pool threads are joined. Hooks registered later, including those of concurrent.futures, run earlier.
threading._register_atexit(_ENDED.set)  # type: ignore[attr-defined]
