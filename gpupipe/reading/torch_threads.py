"""Threads in which torch's own functions stay in their thread."""

from __future__ import annotations

import threading

import torch

from ..codecs.patience import Pool
from ..signal_handlers import deferred

__all__ = ["torch_threads"]


def torch_threads(count: int, name: str) -> Pool:
    """A pool of ``count`` threads, which run already. torch's parallel loops, whose parts wait for each other all the
    time, are not parallel in them."""
    # torch keeps the number of its own threads for each thread, and one number for threads to come.
    theirs, started = torch.get_num_threads(), threading.Barrier(count + 1)

    def start() -> None:
        torch.get_num_threads()  # whose first call in a thread takes over the number for threads to come
        torch.set_num_threads(1)
        started.wait()

    pool = Pool(count, name, start)
    try:
        with deferred():  # if Ctrl-C came in between, those that run would wait for the others for ever
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
