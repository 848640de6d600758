"""Probing many files in several processes.

The workers are plain programs on pipes. ``multiprocessing`` would run the user's ``__main__`` again (spawn), or copy
a process that may hold CUDA and threads (fork).
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence

from . import probe as _program
from .probe import UNDECODABLE, Probe, probe, quiet, receive, send, settings, unpack

__all__ = ["POOL_FROM", "probe_all"]

POOL_FROM = 2_000
"""From this many files on, worker processes pay for their start."""
_CHUNK = 256
_CRASHES = tuple(getattr(signal, s) for s in ("SIGSEGV", "SIGABRT", "SIGBUS", "SIGFPE", "SIGILL"))

_BOOT = """
import sys, json, types
sys.path[:], folder, given = map(json.loads, sys.argv[1:])
package = sys.modules["_gpupipe_probing"] = types.ModuleType("_gpupipe_probing")
package.__path__ = [folder]
from _gpupipe_probing.probe import serve
serve(given)
"""


def _command(max_pixels: int | None = None) -> list[str]:
    # The files under another name, with our own sys.path: by theirs, each worker would import gpupipe and numpy.
    given = (sys.path, os.path.dirname(_program.__file__), settings(max_pixels))
    return [sys.executable, "-c", _BOOT, *map(json.dumps, given)]


class _Died(Exception):
    def __init__(self, code: int):
        self.crash = signal.Signals(-code).name if code < 0 and -code in _CRASHES else None


class _Worker:
    def __init__(self, max_pixels: int | None) -> None:
        self._process = subprocess.Popen(
            _command(max_pixels), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )

    def ask(self, paths: Sequence[bytes]) -> list[Probe]:
        """One result per path. Raises ``_Died``."""
        process = self._process
        assert process.stdin is not None and process.stdout is not None
        try:
            send(process.stdin, b"\0".join(paths))  # type: ignore[arg-type]
            answer = receive(process.stdout)  # type: ignore[arg-type]
            results = None if answer is None else unpack(answer)
        except (OSError, ValueError, struct.error):  # it has gone, or somebody else prints on its stdout
            results = None
        if results is None or len(results) != len(paths):
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


class _Driver(threading.Thread):
    """Feeds one worker. Puts (chunk number, results) into ``done``; ``None`` in results is left to the caller."""

    def __init__(
        self,
        chunks: Iterator[tuple[int, list[bytes]]],
        lock: threading.Lock,
        done: queue.Queue[_Answer],
        max_pixels: int | None,
    ) -> None:
        super().__init__(daemon=True, name="gpupipe-probe")
        self._chunks, self._lock, self._done, self._max_pixels = chunks, lock, done, max_pixels
        self._worker: _Worker | None = None
        self._gave_up = False
        self.stopping = False

    def run(self) -> None:
        try:
            while not self.stopping:
                with self._lock:
                    chunk = next(self._chunks, None)
                if chunk is None:
                    break
                number, paths = chunk
                self._done.put((number, paths, self._probe(paths)))
        except BaseException as e:
            self._done.put(e)
        finally:
            if self._worker is not None:
                self._worker.stop()

    def _probe(self, paths: list[bytes]) -> list[Probe | None]:
        try:
            return list(self._ask(paths))
        except (_Died, OSError):
            # One by one in fresh processes, so that a file which takes its reader down is found, and takes nobody
            # else with it.
            return [self._probe_one(path) for path in paths]

    def _probe_one(self, path: bytes) -> Probe | None:
        if self._gave_up or self.stopping:
            return None
        try:
            return self._ask([path])[0]
        except _Died as e:
            if e.crash:
                return Probe(UNDECODABLE, reason=f"the process that read its header died of {e.crash}")
            self._gave_up = True  # it was not the file: processes cannot be had here, or are being killed
        except OSError:
            self._gave_up = True
        return None

    def _ask(self, paths: list[bytes]) -> list[Probe]:
        if self._gave_up:
            raise _Died(0)
        if self._worker is None:
            self._worker = _Worker(self._max_pixels)
        try:
            return self._worker.ask(paths)
        except _Died:
            self._worker = None
            raise

    def abandon(self) -> None:
        self.stopping = True
        if self._worker is not None:
            self._worker.kill()


_Answer = tuple[int, list[bytes], list[Probe | None]] | BaseException


def probe_all(
    count: int,
    path_of: Callable[[int], bytes],
    store: Callable[[int, Probe], None],
    progress: Callable[[int], None],
    max_pixels: int | None = None,
) -> None:
    """Probe ``count`` files: ``store(k, result)`` once for each ``k``, on this thread, in any order.

    Below :data:`POOL_FROM` files here, otherwise in worker processes, at most 16; they have ended on return.
    """
    workers = min(os.cpu_count() or 1, 16)
    if count < POOL_FROM or not sys.executable:
        with quiet():
            for k in range(count):
                store(k, probe(path_of(k), max_pixels))
                if k % 64 == 0:
                    progress(k)
        progress(count)
        return
    chunks = ((at, [path_of(k) for k in range(at, min(at + _CHUNK, count))]) for at in range(0, count, _CHUNK))
    # Bounded: somebody who cannot keep up holds the workers back.
    done: queue.Queue[_Answer] = queue.Queue(4 * workers)
    lock = threading.Lock()
    drivers = [_Driver(chunks, lock, done, max_pixels) for _ in range(workers)]
    stored = 0
    try:
        for driver in drivers:
            driver.start()
        while stored < count:
            answer = done.get()
            if isinstance(answer, BaseException):
                raise answer
            start, paths, results = answer
            for k, result in enumerate(results):
                if result is None:
                    with quiet():
                        result = probe(paths[k], max_pixels)
                store(start + k, result)
            stored += len(results)
            progress(stored)
    except BaseException:
        for driver in drivers:
            driver.abandon()
        while any(d.is_alive() for d in drivers):
            with contextlib.suppress(queue.Empty):
                done.get(timeout=0.05)  # one that waits for a free place would never see that it should stop
        raise
    for driver in drivers:
        driver.join()
