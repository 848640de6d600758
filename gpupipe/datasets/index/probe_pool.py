"""Probing of many images or videos in several processes.

Workers are plain programs on pipes. ``multiprocessing`` would run the user's ``__main__`` again (spawn), or copy a
process that may hold CUDA and threads (fork).
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from typing import Any, Generic, TypeVar

from ...codecs.files import Place, Undecodable, use_place
from ...codecs.limits import Limits
from ...codecs.openers import accepted, plugins
from ...codecs.probe import (
    BOMB,
    OK,
    TRUNCATED,
    UNDECODABLE,
    ZERO_SIZED,
    Probe,
    probe,
    probe_bytes,
    quiet,
    send,
    settings,
)

R = TypeVar("R")

_CRASHES = tuple(getattr(signal, s) for s in ("SIGSEGV", "SIGABRT", "SIGBUS", "SIGFPE", "SIGILL"))

_DIED = "the process that read its header died of "
_JUDGED = (UNDECODABLE, BOMB, ZERO_SIZED, TRUNCATED)
"""What depends on the plugin that reads a file."""

_BOOT = """
import sys, json, importlib
sys.path[:], program, given = map(json.loads, sys.argv[1:])
importlib.import_module(program).serve(given)
"""


class Prober(Generic[R]):
    """Functions that probe one kind of file: in this process, and in worker processes that run ``program``."""

    program: str
    """Module with the function ``serve(settings)``. Its imports are light, because every process loads them."""
    pool_from: int
    """Number of files from which worker processes pay off."""
    chunk: int
    """Number of files per request."""

    def settings(self) -> str:
        """Return what a worker must know about this process."""
        return ""

    def here(self, place: Place) -> R:
        """Return the result for one file, read in this process, inside :func:`~gpupipe.codecs.pillow.quiet`."""
        raise NotImplementedError

    def died(self, reason: str) -> R:
        """Return the result for a file that crashes its reader."""
        raise NotImplementedError

    def doubts(self, place: Place, result: R) -> bool:
        """Return whether this process may read a file differently than the worker that answered."""
        return False


class PictureProber(Prober[Probe]):
    """Probes image files."""

    program = "gpupipe.codecs.probe"
    pool_from = 2_000
    chunk = 256

    def __init__(self, limits: Limits = Limits()):
        self.limits = limits
        self._plugins = plugins()
        """What workers do not have."""

    def settings(self) -> str:
        return settings(self.limits)

    def here(self, place: Place) -> Probe:
        return probe(place, self.limits)

    def of_bytes(self, data: bytes) -> Probe:
        """Return the result for the content of one file."""
        return probe_bytes(data, self.limits)

    def died(self, reason: str) -> Probe:
        return Probe(UNDECODABLE, reason=reason)

    def doubts(self, place: Place, result: Probe) -> bool:
        if not self._plugins or result.reason.startswith(_DIED):
            return False
        if result.status != OK:
            return result.status in _JUDGED
        # A plugin may also come before the one that recognized it.
        with contextlib.suppress(Undecodable):
            return use_place(place, lambda file, read, size: accepted(file, self._plugins))
        return False


def _command(prober: Prober[Any] | None = None) -> list[str]:
    prober = prober or PictureProber()
    given = (sys.path, prober.program, prober.settings())
    return [sys.executable, "-c", _BOOT, *map(json.dumps, given)]


class _Died(Exception):
    def __init__(self, code: int):
        # Other signals, such as SIGKILL for lack of memory, say nothing about the file.
        self.crash = signal.Signals(-code).name if code < 0 and -code in _CRASHES else None


class _Worker(Generic[R]):
    def __init__(self, prober: Prober[R]) -> None:
        self._process = subprocess.Popen(
            _command(prober), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )

    def ask(self, places: Sequence[Place]) -> list[R]:
        """Return one result per place. Raises ``_Died``."""
        process = self._process
        assert process.stdin is not None and process.stdout is not None
        try:
            send(process.stdin, list(places))  # type: ignore[arg-type]
            results: list[R] | None = pickle.load(process.stdout)
        except Exception:  # it died, or other code prints to its stdout
            results = None
        if not isinstance(results, list) or len(results) != len(places):
            self.stop()
            raise _Died(process.returncode)
        return results

    def close(self) -> None:
        """Ask the process to end, which it does when its stdin is closed."""
        for stream in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(OSError):
                if stream is not None:
                    stream.close()

    def stop(self) -> None:
        self.close()
        try:
            self._process.wait(1)
        except subprocess.TimeoutExpired:
            self.kill()
            self._process.wait()

    def kill(self) -> None:
        self._process.kill()


class _Driver(Generic[R]):
    """Asks one worker at a time, from any thread. A new one is started after a crash."""

    def __init__(self, prober: Prober[R]) -> None:
        self._prober = prober
        self.worker: _Worker[R] | None = None
        self.gave_up = False

    def probe(self, places: list[Place]) -> list[R | None]:
        """Return one result per place; ``None`` for what the caller must read itself."""
        try:
            return list(self._ask(places))
        except (_Died, OSError):
            # Probe one by one in fresh processes, to find a file that crashes its reader without affecting others.
            return [self._probe_one(place) for place in places]

    def _probe_one(self, place: Place) -> R | None:
        try:
            return self._ask([place])[0]
        except (_Died, OSError) as e:
            if isinstance(e, _Died) and e.crash:
                return self._prober.died(f"{_DIED}{e.crash}")
            self.gave_up = True  # not the file's fault: processes cannot be started here, or are being killed
            return None

    def _ask(self, places: list[Place]) -> list[R]:
        if self.gave_up:
            raise _Died(0)
        if self.worker is None:
            self.worker = _Worker(self._prober)
        try:
            return self.worker.ask(places)
        except _Died:
            self.worker = None
            raise


def _chunks(count: int, place_of: Callable[[int], Place], size: int) -> Iterator[tuple[int, list[Place]]]:
    """Yield (number of the first, places) of ``size`` files."""
    for start in range(0, count, size):
        yield start, [place_of(k) for k in range(start, min(start + size, count))]


def _probe_here(
    count: int,
    place_of: Callable[[int], Place],
    store: Callable[[int, R], None],
    progress: Callable[[int], None],
    prober: Prober[R],
) -> None:
    with quiet():
        for k in range(count):
            store(k, prober.here(place_of(k)))
            # A small chunk means that each file takes long.
            if k % 64 == 0 or prober.chunk < 64:
                progress(k)
    progress(count)


def probe_all(
    count: int,
    place_of: Callable[[int], Place],
    store: Callable[[int, R], None],
    progress: Callable[[int], None],
    prober: Prober[R],
) -> None:
    """Probe ``count`` files, calling ``store(k, result)`` once for each ``k``, on this thread.

    Fewer files than ``prober.pool_from`` are probed here, more in at most 16 worker processes, which have ended on
    return.
    """
    # An interpreter inside another program may not know how to start one.
    if count < prober.pool_from or not sys.executable:
        return _probe_here(count, place_of, store, progress, prober)
    drivers: list[_Driver[R]] = [_Driver(prober) for _ in range(min(os.cpu_count() or 1, 16))]
    free = list(drivers)

    def probed(places: list[Place]) -> list[R | None]:
        driver = free.pop()  # there are as many as threads
        try:
            return driver.probe(places)
        finally:
            free.append(driver)

    chunks = _chunks(count, place_of, prober.chunk)
    waiting: deque[tuple[int, list[Place], Future[list[R | None]]]] = deque()
    pool = ThreadPoolExecutor(len(drivers), "gpupipe-probe")
    try:
        while True:
            # Bounded, so that a slow consumer slows down the workers.
            for start, places in islice(chunks, 4 * len(drivers) - len(waiting)):
                waiting.append((start, places, pool.submit(probed, places)))
            if not waiting:
                break
            start, places, found = waiting.popleft()
            for k, result in enumerate(found.result()):
                if result is None or prober.doubts(places[k], result):
                    with quiet():
                        result = prober.here(places[k])
                store(start + k, result)
            progress(start + len(places))
    except BaseException:
        for driver in drivers:
            driver.gave_up = True
            if (worker := driver.worker) is not None:
                worker.kill()
        raise
    finally:
        pool.shutdown(cancel_futures=True)
        left = [driver.worker for driver in drivers if driver.worker is not None]
        for end in (_Worker.close, _Worker.stop):
            for worker in left:
                end(worker)
