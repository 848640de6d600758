"""All samples of a folder through a form to a writer, in processes."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from itertools import islice

from ..errors import DatasetError, EngineError
from . import folder
from .base import Form, Kept, Sample, Writer, Written
from .journal import Journal

__all__ = ["pack"]

_BYTES, _FILES = 8_000_000, 512
"""Of one task: what a form does to many files at once takes less time than one after another."""


def pack(
    source: str,
    samples: Sequence[Sample],
    form: Form,
    writer: Writer,
    journal: Journal,
    *,
    processes: int,
    progress: Callable[[int], None],
) -> tuple[list[Written], int]:
    """Write all samples that the journal does not have: (what is there of each, in the same order; how many were
    written now).

    Args:
        source: the folder that they are below.
        processes: how many work; none is started if there is no more than one task.
        progress: is told how many samples are done.

    Raises:
        DatasetError: a file cannot be read or written.
        EngineError: a process died.
    """
    left = [s for s in samples if (one := journal.is_done(s)) is None or not writer.has(s, one.written)]
    tasks = list(_tasks(left))
    done = len(samples) - len(left)
    progress(done)
    for written in _results(source, tasks, form, writer, processes):
        journal.add(written)
        done += len(written)
        progress(done)
    return [journal.done[s.name] for s in samples], len(left)


def _tasks(samples: Sequence[Sample]) -> Iterator[list[Sample]]:
    task: list[Sample] = []
    size = 0
    for sample in samples:
        if task and (size + sample.size > _BYTES or len(task) == _FILES):
            yield task
            task, size = [], 0
        task.append(sample)
        size += sample.size
    if task:
        yield task


def _results(
    source: str, tasks: list[list[Sample]], form: Form, writer: Writer, processes: int
) -> Iterator[list[Written]]:
    """Of each task, in order; two for each process are under way."""
    if len(tasks) < 2:
        for task in tasks:
            yield _work(source, task, form, writer)
        return
    # Started anew and not forked: the caller may have threads.
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(min(processes, len(tasks)), context, _ignore_interrupts)
    waiting: deque[Future[list[Written]]] = deque()
    more = iter(tasks)
    try:
        waiting.extend(pool.submit(_work, source, task, form, writer) for task in islice(more, 2 * processes))
        while waiting:
            result = waiting.popleft().result()
            waiting.extend(pool.submit(_work, source, task, form, writer) for task in islice(more, 1))
            yield result
    except BrokenProcessPool:
        raise EngineError(
            "a process died, which it does if memory is short; run the same command again to go on, with a smaller "
            "--num-workers"
        ) from None
    finally:
        pool.shutdown(cancel_futures=True)


def _ignore_interrupts() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent


def _work(source: str, task: list[Sample], form: Form, writer: Writer) -> list[Written]:
    """One task: read, convert, write."""
    files = [folder.read(source, sample) for sample in task]
    done = []
    for sample, data, made in zip(task, files, form(files), strict=True):
        kept = made if isinstance(made, Kept) else Kept("", "")
        content = data if isinstance(made, Kept) else made
        try:
            writer.write(sample, content)
        except OSError as e:
            where = os.fspath(e.filename or sample.name)
            raise DatasetError(f"{where}: {e.strerror}; run the same command again when it can be written") from None
        done.append(Written(sample.name, sample.size, sample.mtime_ns, len(content), kept.kind, kept.reason))
    return done
