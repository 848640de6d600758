"""Exceptions that a script's signal handlers raise, which come wherever the main thread happens to be."""

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
from typing import Any

__all__ = ["defer_in_forks", "deferred", "pass_on", "raised_by_handler"]


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
        _defer(theirs, came)
        yield
    finally:
        try:
            _restore(theirs)
        finally:
            _run(theirs, came)


def defer_in_forks() -> None:
    """To be called once, after whoever waits in a hook of a fork has registered that. What comes while the main thread
    forks comes 50 ms later: a signal that interrupts a hook is lost."""
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork)


_LATER = 0.05
"""Seconds from a fork to the signals that came meanwhile: nobody can know when the last hook has returned."""
_DEFERRED: list[dict[int, Any]] = []
_FORKS: list[tuple[dict[int, Any], list[int]]] = []


def _defer(theirs: dict[int, Any], came: list[int]) -> None:
    for number in signal.valid_signals():
        if callable(handler := signal.getsignal(number)):
            theirs[number] = handler
            signal.signal(number, lambda number, frame: came.append(number))
    _DEFERRED.append(theirs)


def _restore(theirs: dict[int, Any]) -> None:
    """Any handler that is in place again may be called at once, and raise."""
    with suppress(ValueError):  # not there yet, or in a forked child
        _DEFERRED.remove(theirs)
    left = list(theirs.items())
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


def _before_fork() -> None:
    if threading.current_thread() is threading.main_thread():
        _FORKS.append(({}, []))
        _defer(*_FORKS[-1])


def _after_fork() -> None:
    if threading.current_thread() is threading.main_thread() and _FORKS:
        theirs, came = _FORKS.pop()
        _restore(theirs)
        if came:
            _thread.start_new_thread(_send, (came,))  # a Thread would wait here until it runs


def _send(came: list[int]) -> None:
    time.sleep(_LATER)
    for number in came:
        signal.pthread_kill(threading.main_thread().ident or 0, number)


def _in_forked_child() -> None:
    _FORKS.clear()
    while _DEFERRED:
        _restore(_DEFERRED[-1])


os.register_at_fork(after_in_child=_in_forked_child)
