"""Threads in which torch's functions run single-threaded."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from ..codecs.patience import Pool
from ..signal_handlers import deferred


@contextmanager
def one_torch_thread() -> Iterator[None]:
    """In this context, run torch's functions in the calling thread only."""
    threads = torch.get_num_threads()
    if threads > 1:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        if threads > 1:
            torch.set_num_threads(threads)


def torch_threads(count: int, name: str) -> Pool:
    """Return a pool of ``count`` running threads, in which torch's parallel loops are not parallel.

    The parts of parallel loops would constantly wait for each other.
    """
    # torch stores its number of threads per thread, plus a number for new threads.
    theirs, started = torch.get_num_threads(), threading.Barrier(count + 1)

    def start() -> None:
        torch.get_num_threads()  # the first call in a thread adopts the number for new threads
        torch.set_num_threads(1)
        started.wait()

    pool = Pool(count, name, start)
    try:
        with deferred():  # an interruption by Ctrl-C would leave running threads waiting forever
            try:
                for _ in range(count):
                    pool.submit(lambda: None)
                started.wait()
            except BaseException:
                started.abort()  # such as: can't start new thread
                raise
            finally:
                torch.set_num_threads(theirs)
    except BaseException:
        pool.shutdown(wait=False)
        raise
    return pool
