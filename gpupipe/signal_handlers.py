"""Where a script's signal handlers may strike: they run, and raise, wherever the main thread happens to be."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

_NUMBERS = sorted(map(int, signal.valid_signals()))
"""Computed once, because ``valid_signals()`` takes half a millisecond."""
_replaced: list[dict[int, Any]] = []
"""Handlers of the script, by number, for each block that defers them."""


@contextmanager
def deferred() -> Iterator[None]:
    """Run Python's signal handlers at the end of a block that must not be interrupted.

    A thread's signal mask cannot do that: the kernel delivers a signal to any thread that does not block it, and Python
    runs its handler in the main thread anyway.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    theirs: dict[int, Any] = {}
    came: list[int] = []
    _replaced.append(theirs)
    try:
        for number in _NUMBERS:
            if callable(handler := signal.getsignal(number)):
                theirs[number] = handler
                signal.signal(number, lambda number, frame: came.append(number))
        yield
    finally:
        if _replaced:  # not in a process that was forked within the block
            _replaced.pop()
        restore = [partial(signal.signal, *one) for one in theirs.items()]
        # A restored handler may be called at once, and raise.
        _all([*restore, lambda: _all([partial(theirs[n], n, sys._getframe()) for n in came])])


def _all(calls: list[Callable[[], object]]) -> None:
    """Make all calls, even if one raises."""
    if calls:
        try:
            calls[0]()
        finally:
            _all(calls[1:])


def _in_forked_child() -> None:
    """Give a process that was forked within a block the handlers of the script.

    A Ctrl-C goes to all processes of a terminal. It stays without an effect here: the process that has forked this one
    handles it, and a traceback of this one would only hide where the script was.
    """
    while _replaced:
        for number, handler in _replaced.pop().items():
            if number != signal.SIGINT:
                signal.signal(number, handler)


os.register_at_fork(after_in_child=_in_forked_child)
