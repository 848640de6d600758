"""Run the tasks of ``gpupipe pack`` in processes, and count the samples that are done."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from typing import Any, TypeVar

from ..codecs.openers import pickled, register
from ..errors import EngineError

T = TypeVar("T")
R = TypeVar("R")

Tell = Callable[[int], None]
"""``tell(n)`` reports that n more samples are done."""
Work = Callable[[T, Tell], R]

_SHOWN = 0.2
"""Seconds between two updates of the progress."""


def in_processes(work: Work[T, R], tasks: Sequence[T], processes: int, progress: Tell) -> Generator[R, None, None]:
    """Yield ``work(task, tell)`` for each task, in order. Close the generator to stop early: running tasks end at their
    next call of ``tell``.

    Args:
        work: a module-level function, or a :func:`functools.partial` of one.
        processes: number of processes; none is started for 1, for a single task, or if Pillow has plugins that cannot
            be sent.
        progress: called with the number of samples that are done.

    Raises:
        EngineError: a process died.
    """
    plugins = pickled()
    if min(processes, len(tasks)) < 2 or plugins is None:
        count_here = 0

        def tell(n: int) -> None:
            nonlocal count_here
            count_here += n
            progress(count_here)

        for task in tasks:
            yield work(task, tell)
        return
    # Spawned and not forked, because the caller may have threads.
    context = multiprocessing.get_context("spawn")
    count, stop = context.Value("q", 0), context.Value("b", 0)
    pool = ProcessPoolExecutor(min(processes, len(tasks)), context, _begin, (count, stop, plugins))
    try:
        for future in [pool.submit(_run, work, task) for task in tasks]:
            while wait([future], timeout=_SHOWN).not_done:
                progress(count.value)
            progress(count.value)
            yield future.result()
    except BrokenProcessPool:
        raise EngineError(
            "a process died, probably for lack of memory; run the same command again with a smaller --num-workers to "
            "continue"
        ) from None
    finally:
        # Running tasks stop at their next tell(), so shutdown() does not wait for whole tasks.
        stop.value = 1
        pool.shutdown(cancel_futures=True)


_count: Any = None
_stop: Any = None


class _Stopped(Exception):
    """The result is no longer awaited."""


def _begin(count: Any, stop: Any, plugins: bytes) -> None:
    global _count, _stop
    register(plugins)
    _count, _stop = count, stop
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """End this process together with its parent, however that ends."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _run(work: Work[Any, R], task: Any) -> R:
    return work(task, _tell)


def _tell(n: int) -> None:
    if _stop.value:
        raise _Stopped
    with _count.get_lock():
        _count.value += n
