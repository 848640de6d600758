"""Exceptions that a script's signal handlers raise, which come wherever the main thread happens to be."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

__all__ = ["deferred", "pass_on", "raised_by_handler"]


def pass_on(error: Exception) -> None:
    """Raise the exception that a signal handler of the script raised, if it is ``error``, or what led to it. For those
    who catch everything: such as ``TimeoutError`` out of a handler of SIGALRM says nothing of what was being done."""
    if (theirs := raised_by_handler(error)) is not None:
        raise theirs


def raised_by_handler(caught: BaseException) -> BaseException | None:
    """The exception that :func:`pass_on` would raise, or ``None``."""
    if threading.current_thread() is not threading.main_thread():
        return None  # Python runs handlers in the main thread only
    handlers = {getattr(signal.getsignal(number), "__code__", None) for number in signal.valid_signals()} - {None}
    if not handlers:
        return None
    around = _frames_around(caught)
    link: BaseException | None = caught
    seen: set[int] = set()
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        trace = link.__traceback__
        if trace is not None and trace.tb_frame in around:
            return None  # it led to nothing here: the script caught it, and goes on in its "except"
        while trace is not None:
            if trace.tb_frame.f_code in handlers:
                return link
            trace = trace.tb_next
        link = link.__cause__ or link.__context__
    return None


def _frames_around(error: BaseException) -> set[FrameType]:
    """Those that called the one that caught it."""
    frame = None if error.__traceback__ is None else error.__traceback__.tb_frame.f_back
    found = set()
    while frame is not None:
        found.add(frame)
        frame = frame.f_back
    return found


@contextmanager
def deferred() -> Iterator[None]:
    """Python's signal handlers run at the end, for a part that must not be left half way. No thread's signal mask can
    do that: the kernel gives a signal to any thread that does not block it, and Python runs its handler in the main
    thread all the same. In ``os.fork()`` Python even swallows what a handler raises.

    A forked child has the script's handlers again, at once, and no signal of its parent's."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    theirs: dict[int, Any] = {}
    try:
        for number in signal.valid_signals():
            if callable(handler := signal.getsignal(number)):
                theirs[number] = handler
                signal.signal(number, lambda number, frame: came.append(number))
        _DEFERRED.append(theirs)
        yield
    finally:
        with suppress(ValueError):  # not there yet, or in a forked child
            _DEFERRED.remove(theirs)
        try:
            _restore(theirs)
        finally:
            _run(theirs, came)


_DEFERRED: list[dict[int, Any]] = []


def _restore(handlers: dict[int, Any]) -> None:
    """Any handler that is in place again may be called at once, and raise."""
    left = list(handlers.items())
    try:
        while left:
            signal.signal(*left[-1])
            left.pop()
    finally:
        if left:
            _restore(dict(left))


def _run(handlers: dict[int, Any], came: list[int]) -> None:
    """Each of them, whatever the one before raises."""
    if came:
        try:
            handlers[came[0]](came[0], sys._getframe())
        finally:
            _run(handlers, came[1:])


def _in_forked_child() -> None:
    while _DEFERRED:
        _restore(_DEFERRED.pop())


os.register_at_fork(after_in_child=_in_forked_child)
