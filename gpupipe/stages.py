"""Stages of a loader's work: the time that each takes, and ranges of the same names for profilers.

    with DECODING:
        ...

charges the time to a stage, without the time of stages within it. Every thread has its own account, so nothing waits.
Worker processes send what they spent along with their results (:func:`spent`, :func:`add`).

While ``torch.profiler`` or ``torch.autograd.profiler.emit_nvtx`` is active, every stage is also a range
``gpupipe: NAME``.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import weakref
from contextlib import ContextDecorator
from typing import Any, NamedTuple


class Spent(NamedTuple):
    """Seconds by stage, in the order of :data:`NAMES`."""

    wall: tuple[float, ...]
    cpu: tuple[float, ...]
    """Processor time of the threads in these stages."""

    def since(self, before: Spent) -> Spent:
        """Return the difference to an earlier value."""
        return Spent(*(tuple(a - b for a, b in zip(*both, strict=True)) for both in zip(self, before, strict=True)))


class Stage(ContextDecorator):
    """A stage; see the module. One object serves all threads, also as a decorator of functions."""

    def __init__(self, name: str):
        self.name, self.number = name, len(NAMES)
        NAMES.append(name)

    def __enter__(self) -> None:
        account = _here.account
        account.charge()
        account.stack.append((self.number, _range(self.name)))

    def __exit__(self, *exc: object) -> None:
        account = _here.account
        account.charge()
        shown = account.stack.pop()[1]
        if shown is not None:
            shown.__exit__(None, None, None)


NAMES: list[str] = []
STORAGE = Stage("storage")
"""Reads encoded bytes."""
DECODING = Stage("decoding")
"""Decodes images and clips. Reads the files, where the decoder does so."""
GRAPH = Stage("graph")
"""Waits for DALI's graph, which reads, decodes and transforms in threads of its own."""
TRANSFORMS = Stage("transforms")
"""Runs ops on the host."""
USER_CODE = Stage("user code")
"""Runs the script's Dataset, transforms and collate function."""
NEXT = Stage("next batch")
"""Is in ``next(loader)``, and in none of the others."""


class _Account:
    """Seconds of one thread."""

    def __init__(self) -> None:
        self.thread = weakref.ref(threading.current_thread())
        self.number = threading.get_native_id()
        self.stack: list[tuple[int, Any]] = []
        self.wall, self.cpu = [0.0] * len(NAMES), [0.0] * len(NAMES)
        self._wall = self._cpu = 0.0

    def charge(self) -> None:
        """Charge the time since the last call to the current stage."""
        wall, cpu = time.perf_counter(), time.thread_time()
        if self.stack:
            stage = self.stack[-1][0]
            self.wall[stage] += wall - self._wall
            self.cpu[stage] += cpu - self._cpu
        self._wall, self._cpu = wall, cpu


class _Here(threading.local):
    def __init__(self) -> None:
        self.account = _Account()
        with _adding:
            # Nothing tells when a thread ends, so a new thread looks for accounts of ended ones.
            for ended in [account for account in _accounts if account.thread() is None]:
                _accounts.remove(ended)
                _sum(_ended, ended.wall, ended.cpu)
            _accounts.append(self.account)


_adding = threading.Lock()
_accounts: list[_Account] = []
_ended = ([0.0] * len(NAMES), [0.0] * len(NAMES))
"""Seconds of threads that have ended, and of worker processes."""
_here = _Here()


def own() -> float:
    """Return the processor time of this thread in :data:`NEXT` and none of the stages within it."""
    return _here.account.cpu[NEXT.number]


def spent() -> Spent:
    """Return the seconds of all threads of this process, and what was added. A stage that has not ended is not
    counted."""
    wall, cpu = list(_ended[0]), list(_ended[1])
    for account in tuple(_accounts):
        _sum((wall, cpu), account.wall, account.cpu)
    return Spent(tuple(wall), tuple(cpu))


def add(other: Spent) -> None:
    """Add seconds of a worker process."""
    with _adding:
        _sum(_ended, other.wall, other.cpu)


def queued() -> tuple[float, float]:
    """Return the seconds that threads with an account were ready to run and had no processor: this thread, and all
    others that live; 0 if Linux does not tell."""
    mine, others = 0, 0
    for account in tuple(_accounts):
        try:
            with open(f"/proc/self/task/{account.number}/schedstat", "rb") as file:
                # Three numbers: nanoseconds on a processor and in the queue, and turns on a processor.
                nanoseconds = int(file.read().split()[1])
        except (OSError, IndexError):
            continue
        if account is _here.account:
            mine = nanoseconds
        else:
            others += nanoseconds
    return mine / 1e9, others / 1e9


def _sum(into: tuple[list[float], list[float]], wall: Any, cpu: Any) -> None:
    for totals, values in zip(into, (wall, cpu), strict=True):
        for number, value in enumerate(values):
            totals[number] += value


def _range(name: str) -> Any:
    """Return a range that has begun, if a profiler of torch is active."""
    profiler = sys.modules.get("torch.autograd.profiler")
    if profiler is None or not profiler._is_profiler_enabled:
        return None
    shown = profiler.record_function(f"gpupipe: {name}")
    shown.__enter__()
    return shown


def _in_forked_child() -> None:
    global _adding
    _adding = threading.Lock()
    _accounts[:] = [_here.account]
    _here.account.number = threading.get_native_id()


os.register_at_fork(after_in_child=_in_forked_child)
