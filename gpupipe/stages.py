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
from collections.abc import Iterable
from contextlib import ContextDecorator
from operator import add as add_up, sub
from typing import Any


class Spent(tuple[float, ...]):
    """Seconds by stage, in the order of :data:`NAMES`."""

    __slots__ = ()

    def since(self, before: Spent) -> Spent:
        """Return the difference to an earlier value."""
        return Spent(map(sub, self, before))


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
        self.stack: list[tuple[int, Any]] = []
        self.seconds = [0.0] * len(NAMES)
        self.own = 0.0
        """Processor time in :data:`NEXT`."""
        self._wall = self._cpu = 0.0

    def charge(self) -> None:
        """Charge the time since the last call to the current stage."""
        wall, cpu = time.perf_counter(), time.thread_time()
        if self.stack:
            stage = self.stack[-1][0]
            self.seconds[stage] += wall - self._wall
            if stage == NEXT.number:
                self.own += cpu - self._cpu
        self._wall, self._cpu = wall, cpu


class _Here(threading.local):
    def __init__(self) -> None:
        self.account = _Account()
        with _adding:
            # Nothing tells when a thread ends, so a new thread looks for accounts of ended ones.
            for ended in [account for account in _accounts if account.thread() is None]:
                _accounts.remove(ended)
                _add(ended.seconds)
            _accounts.append(self.account)


_adding = threading.Lock()
_accounts: list[_Account] = []
_ended = [0.0] * len(NAMES)
"""Seconds of threads that have ended, and of worker processes."""
_here = _Here()


def own() -> float:
    """Return the processor time of this thread in :data:`NEXT` and none of the stages within it."""
    return _here.account.own


def spent() -> Spent:
    """Return the seconds of all threads of this process, and what was added. A stage that has not ended is not
    counted."""
    total = _ended
    for account in tuple(_accounts):
        total = [*map(add_up, total, account.seconds)]
    return Spent(total)


def add(other: Spent) -> None:
    """Add seconds of a worker process."""
    with _adding:
        _add(other)


def _add(seconds: Iterable[float]) -> None:
    _ended[:] = map(add_up, _ended, seconds)


def _range(name: str) -> Any:
    """Return a range that has begun, if a profiler of torch is active."""
    profiler = sys.modules.get("torch.autograd.profiler")
    if profiler is None or not profiler._is_profiler_enabled:
        return None
    shown = profiler.record_function(f"gpupipe: {name}")
    shown.__enter__()
    return shown


def _in_forked_child() -> None:
    """Begin at zero: a worker process sends what it spent itself."""
    global _adding
    _adding = threading.Lock()
    _accounts[:] = [_here.account]
    _here.account.seconds[:] = _ended[:] = [0.0] * len(_ended)


os.register_at_fork(after_in_child=_in_forked_child)
