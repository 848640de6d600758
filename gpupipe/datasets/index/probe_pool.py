"""Probing of many images or videos in several processes.

Workers are plain programs on pipes. ``multiprocessing`` would run the user's ``__main__`` again (spawn), or copy a
process that may hold CUDA and threads (fork).
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Generic, Protocol, TypeVar

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
from ...codecs.unpack import Packed

R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)

POOL_FROM = 2_000
"""Number of files from which worker processes pay off."""
_CHUNK = 256
_CRASHES = tuple(getattr(signal, s) for s in ("SIGSEGV", "SIGABRT", "SIGBUS", "SIGFPE", "SIGILL"))

_DIED = "the process that read its header died of "
_JUDGED = (UNDECODABLE, BOMB, ZERO_SIZED, TRUNCATED)
"""What depends on the plugin that reads a file."""

_BOOT = """
import sys, json, importlib
sys.path[:], program, given = map(json.loads, sys.argv[1:])
importlib.import_module(program).serve(given)
"""


class Prober(Protocol[R_co]):
    """Functions that probe one kind of file: in this process, and in worker processes that run ``program``."""

    program: str
    """Module with the function ``serve(settings)``. Its imports are light, because every process loads them."""
    pool_from: int
    """Number of files from which worker processes pay off."""
    chunk: int
    """Number of files per request."""

    def settings(self) -> str:
        """Return what a worker must know about this process."""
        ...

    def here(self, place: Place) -> R_co:
        """Return the result for one file, read in this process, inside :meth:`quiet`."""
        ...

    def quiet(self) -> AbstractContextManager[Any]: ...

    def died(self, reason: str) -> R_co:
        """Return the result for a file that crashes its reader."""
        ...

    def doubts(self, place: Place, result: Any) -> bool:
        """Return whether this process may read a file differently than the worker that answered."""
        ...


class PictureProber:
    """Probes image files."""

    program = "gpupipe.codecs.probe"
    pool_from = POOL_FROM
    chunk = _CHUNK

    def __init__(self, limits: Limits = Limits()):
        self.limits = limits
        self._plugins = plugins()
        """What workers do not have."""

    def settings(self) -> str:
        return settings(self.limits)

    def here(self, place: Place) -> Probe:
        return probe(place, self.limits)

    def of_bytes(self, data: bytes, packed: Packed | None = None) -> Probe:
        """Return the result for the content of one file, unpacked by ``packed``, inside :meth:`quiet`."""
        return probe_bytes(data, self.limits, packed)

    def quiet(self) -> AbstractContextManager[Any]:
        return quiet()

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

    def stop(self) -> None:
        for stream in (self._process.stdin, self._process.stdout):
            with contextlib.suppress(OSError):
                if stream is not None:
                    stream.close()  # a worker ends when its stdin does
        try:
            self._process.wait(1)
        except subprocess.TimeoutExpired:
            self.kill()
            self._process.wait()

    def kill(self) -> None:
        self._process.kill()


class _Driver(threading.Thread, Generic[R]):
    """Feeds one worker. Puts (chunk number, results) into ``done``; the caller handles results of ``None``."""

    def __init__(
        self,
        chunks: Iterator[tuple[int, list[Place]]],
        lock: threading.Lock,
        done: queue.Queue[_Answer],
        prober: Prober[R],
    ) -> None:
        super().__init__(daemon=True, name="gpupipe-probe")
        self._chunks, self._lock, self._done, self._prober = chunks, lock, done, prober
        self._worker: _Worker[R] | None = None
        self._gave_up = False
        self.stopping = False

    def run(self) -> None:
        try:
            while not self.stopping:
                # A generator must not be advanced by two threads at once.
                with self._lock:
                    chunk = next(self._chunks, None)
                if chunk is None:
                    break
                number, places = chunk
                self._done.put((number, places, self._probe(places)))
        except BaseException as e:
            self._done.put(e)
        finally:
            if self._worker is not None:
                self._worker.stop()

    def _probe(self, places: list[Place]) -> list[R | None]:
        try:
            return list(self._ask(places))
        except (_Died, OSError):
            # Probe one by one in fresh processes, to find a file that crashes its reader without affecting others.
            return [self._probe_one(place) for place in places]

    def _probe_one(self, place: Place) -> R | None:
        if self._gave_up or self.stopping:
            return None
        try:
            return self._ask([place])[0]
        except _Died as e:
            if e.crash:
                return self._prober.died(f"{_DIED}{e.crash}")
            self._gave_up = True  # not the file's fault: processes cannot be started here, or are being killed
        except OSError:
            self._gave_up = True
        return None

    def _ask(self, places: list[Place]) -> list[R]:
        if self._gave_up:
            raise _Died(0)
        if self._worker is None:
            self._worker = _Worker(self._prober)
        try:
            return self._worker.ask(places)
        except _Died:
            self._worker = None
            raise

    def abandon(self) -> None:
        self.stopping = True
        if self._worker is not None:
            self._worker.kill()


_Answer = tuple[int, list[Place], list[Any]] | BaseException


def _chunks(count: int, place_of: Callable[[int], Place], size: int) -> Iterator[tuple[int, list[Place]]]:
    """Yield (number of the first, places) of about ``size`` files. Images of one page stay together, so that only one
    worker unpacks it."""
    chunk: list[Place] = []
    for k in range(count):
        place = place_of(k)
        shared = place.packed is not None and place.packed.shared
        if len(chunk) >= size and not (shared and chunk[-1][:3] == place[:3]):
            yield k - len(chunk), chunk
            chunk = []
        chunk.append(place)
    if chunk:
        yield count - len(chunk), chunk


def probe_all(
    count: int,
    place_of: Callable[[int], Place],
    store: Callable[[int, R], None],
    progress: Callable[[int], None],
    prober: Prober[R],
) -> None:
    """Probe ``count`` files, calling ``store(k, result)`` once for each ``k``, on this thread, in any order.

    Fewer files than ``prober.pool_from`` are probed here, more in at most 16 worker processes, which have ended on
    return.
    """
    workers = min(os.cpu_count() or 1, 16)
    # An interpreter inside another program may not know how to start one.
    if count < prober.pool_from or not sys.executable:
        with prober.quiet():
            for k in range(count):
                store(k, prober.here(place_of(k)))
                # A small chunk means that each file takes long.
                if k % 64 == 0 or prober.chunk < 64:
                    progress(k)
        progress(count)
        return
    chunks = _chunks(count, place_of, prober.chunk)
    # Bounded, so that a slow consumer slows down the workers.
    done: queue.Queue[_Answer] = queue.Queue(4 * workers)
    lock = threading.Lock()
    drivers = [_Driver(chunks, lock, done, prober) for _ in range(workers)]
    stored = 0
    try:
        for driver in drivers:
            driver.start()
        while stored < count:
            answer = done.get()
            if isinstance(answer, BaseException):
                raise answer
            start, places, results = answer
            for k, result in enumerate(results):
                if result is None or prober.doubts(places[k], result):
                    with prober.quiet():
                        result = prober.here(places[k])
                store(start + k, result)
            stored += len(results)
            progress(stored)
    except BaseException:
        for driver in drivers:
            driver.abandon()
        while any(d.is_alive() for d in drivers):
            with contextlib.suppress(queue.Empty):
                done.get(timeout=0.05)  # a driver that waits for a free place would never see the request to stop
        raise
    for driver in drivers:
        driver.join()
