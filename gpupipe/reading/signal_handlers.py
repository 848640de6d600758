"""Exceptions that a script's signal handlers raise, which come wherever the main thread happens to be."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["blocked", "raised_by_handler"]


def raised_by_handler(error: BaseException | None) -> BaseException | None:
    """The exception that a signal handler of the script raised, if it is ``error``, or what led to it; else ``None``.

    Such as ``TimeoutError`` out of a handler of SIGALRM, which says nothing of the sample that is being read.
    """
    if threading.current_thread() is not threading.main_thread():
        return None  # Python runs handlers in the main thread only
    handlers = {getattr(signal.getsignal(number), "__code__", None) for number in signal.valid_signals()} - {None}
    while error is not None and handlers:
        trace = error.__traceback__
        while trace is not None:
            if trace.tb_frame.f_code in handlers:
                return error
            trace = trace.tb_next
        error = error.__cause__ or error.__context__
    return None


@contextmanager
def blocked() -> Iterator[None]:
    """Signals to this thread come at the end: in ``os.fork()`` Python would swallow what their handlers raise. A forked
    child has to unblock them."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
