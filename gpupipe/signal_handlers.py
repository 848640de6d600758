"""Exceptions raised by a script's signal handlers, which arrive wherever the main thread happens to be."""

from __future__ import annotations

import _thread
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any, Literal


def pass_on(error: Exception) -> None:
    """Raise the exception of a script's signal handler if it is ``error`` or led to it.

    Code that catches everything calls this. A ``TimeoutError`` from a handler of SIGALRM, for example, says nothing
    about the interrupted operation.
    """
    if (theirs := raised_by_handler(error)) is not None:
        raise theirs


def raised_by_handler(caught: BaseException) -> BaseException | None:
    """Return the exception that :func:`pass_on` would raise, or ``None``."""
    if threading.current_thread() is not threading.main_thread():
        return None  # Python runs handlers in the main thread only
    handlers = {getattr(signal.getsignal(number), "__code__", None) for number in _NUMBERS} - {None}
    if not handlers:
        return None
    around = _frames_around(caught)
    link: BaseException | None = caught
    seen: set[int] = set()
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        trace = link.__traceback__
        if trace is not None and trace.tb_frame in around:
            return None  # unrelated: the script caught it and continues in its "except"
        while trace is not None:
            if trace.tb_frame.f_code in handlers:
                return link
            trace = trace.tb_next
        link = link.__cause__ or link.__context__
    return None


def _frames_around(error: BaseException) -> set[FrameType]:
    """Return the callers of the frame that caught ``error``."""
    frame = None if error.__traceback__ is None else error.__traceback__.tb_frame.f_back
    found = set()
    while frame is not None:
        found.add(frame)
        frame = frame.f_back
    return found


@contextmanager
def deferred(*, by: Literal["end", "later"] = "end") -> Iterator[None]:
    """Run Python's signal handlers at the end of a block that must not be interrupted.

    A thread's signal mask cannot do that: the kernel delivers a signal to any thread that does not block it, and Python
    runs its handler in the main thread anyway. Python even swallows exceptions that a handler raises inside
    ``os.fork()``.

    A forked child gets the script's handlers back at once, and none of its parent's signals.

    Args:
        by: ``"later"`` sends the signals again after 50 ms. Finalizers need this, because Python swallows exceptions
            there too.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    part = _Part()
    try:
        part.begin()
        yield
    finally:
        try:
            part.end()
        finally:
            if by == "later":
                part.send()
            else:
                _run(part.theirs, part.came)


_NUMBERS = sorted(map(int, signal.valid_signals()), key=signal.SIGINT.__ne__)
"""All signals, Ctrl-C first: it may arrive until it is deferred, and a finalizer would swallow it. Computed once,
because ``valid_signals()`` takes half a millisecond, during which Ctrl-C did arrive."""
_LATER = 0.05
"""Seconds until signals are sent again, since it is unknown when the last finalizer returns."""


class _Part:
    """One block whose signals are deferred."""

    def __init__(self) -> None:
        self.theirs: dict[int, Any] = {}
        """Handlers of the script."""
        self.came: list[int] = []

    def begin(self) -> None:
        for number in _NUMBERS:
            if callable(handler := signal.getsignal(number)):
                self.theirs[number] = handler
                signal.signal(number, lambda number, frame: self.came.append(number))
        _PARTS.append(self)

    def end(self) -> None:
        with suppress(ValueError):  # not added yet, or in a forked child
            _PARTS.remove(self)
        _restore(self.theirs)

    def end_in_child(self) -> None:
        _PARTS.remove(self)
        _restore(self.theirs)

    def send(self) -> None:
        if self.came:
            _thread.start_new_thread(_send, (self.came,))  # Thread.start() would wait until it runs


_PARTS: list[_Part] = []


def _restore(handlers: dict[int, Any]) -> None:
    """Restore handlers. A restored handler may be called at once, and raise."""
    left = list(handlers.items())
    try:
        while left:
            signal.signal(*left[-1])
            left.pop()
    finally:
        if left:
            _restore(dict(left))


def _run(handlers: dict[int, Any], came: list[int]) -> None:
    """Call the handlers of all signals, even if one raises."""
    if came:
        try:
            handlers[came[0]](came[0], sys._getframe())
        finally:
            _run(handlers, came[1:])


def _send(came: list[int]) -> None:
    time.sleep(_LATER)
    for number in came:
        signal.pthread_kill(threading.main_thread().ident or 0, number)


def _in_forked_child() -> None:
    while _PARTS:
        _PARTS[-1].end_in_child()


os.register_at_fork(after_in_child=_in_forked_child)
