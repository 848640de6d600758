"""Processes to measure loaders in (see ``_loaders.py``), and the turns that they take.

Each candidate lives in a process of its own, so that its memory and CPU time are its own and no thread pool or Python
lock is shared; the parent lets them work in turn. A reading begins after some batches, when the queues that filled up
during the pause are used up, and ends with a pause until the process is idle again. So it holds neither a filling nor
a draining, and no candidate works during another's reading.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import statistics
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from _common import Table, describe_files, gpu_memory_mb, heading, memory_mb, result_name, save
from _loaders import Batches, Job, Work

from gpupipe.system import cpu_seconds

_PATIENCE = 240.0
"""Seconds that a process may take for a start or a reading, before it counts as hanging."""


@dataclass(frozen=True)
class Reading:
    """One round of one candidate."""

    images: int
    seconds: float
    cpu_seconds: float
    pss_mb: float
    uss_mb: float

    @property
    def images_per_second(self) -> float:
        return self.images / self.seconds


def _finish(work: Work) -> None:
    if work.device == "cuda":
        torch.cuda.synchronize()


def settle(patience: float = 20.0) -> None:
    """Wait until this process and its children stop working."""
    end, before = time.monotonic() + patience, cpu_seconds()
    while time.monotonic() < end:
        time.sleep(0.2)
        now = cpu_seconds()
        if now - before < 0.03:
            return
        before = now


def _read(batches: Batches, work: Work, warm: int, seconds: float) -> Reading:
    for _ in range(warm):
        next(batches)
    _finish(work)
    cpu, began, images = cpu_seconds(), time.perf_counter(), 0
    while time.perf_counter() - began < seconds:
        images += len(next(batches)[1])
    _finish(work)
    elapsed, cpu = time.perf_counter() - began, cpu_seconds() - cpu
    settle()
    memory = memory_mb(os.getpid())  # with full queues, as beside a device that is busy
    return Reading(images, elapsed, cpu, memory["pss"], memory["uss"])


def _serve(pipe: Any, job: Job, work: Work) -> None:
    # A spawned process would spawn its own workers; a script that a person starts on Linux forks them.
    multiprocessing.set_start_method("fork", force=True)
    try:
        pipe.send("imported")
        pipe.recv()
        began = time.perf_counter()
        batches = job.batches(work)
        next(batches)
        _finish(work)
        pipe.send(time.perf_counter() - began)
        settle()
        while (command := pipe.recv()) is not None:
            pipe.send(_read(batches, work, *command))
    except (EOFError, KeyboardInterrupt):
        pass
    except BaseException:
        pipe.send(traceback.format_exc())
    finally:
        pipe.close()
        os._exit(0)  # the parent needs nothing more, and some threads take their time


class Candidate:
    """A job in its own process.

    Args:
        begin: start it now. Without that it only imports, beside others that do so, until :meth:`begin`.

    Attributes:
        start_seconds: from listing the files to the first batch; the import of torch came before.
        gpu_mb: what starting it took from the GPU's memory, or ``None``.
    """

    def __init__(self, job: Job, work: Work, *, begin: bool = True):
        self.job, self.work = job, work
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, job, work))
        self._process.start()
        theirs.close()
        if begin:
            self.begin()

    def begin(self) -> None:
        """Start the loader, to its first batch. Raises RuntimeError with the reason if it cannot."""
        self._answer()  # it has imported
        before = gpu_memory_mb()
        self._pipe.send("begin")
        self.start_seconds: float = self._answer()
        now = gpu_memory_mb()
        self.gpu_mb = None if now is None or before is None else now - before

    def _answer(self) -> Any:
        if not self._pipe.poll(_PATIENCE):
            self._process.kill()
            raise RuntimeError(f"{self.job.name}: no answer within {_PATIENCE:.0f} s")
        try:
            answer = self._pipe.recv()
        except EOFError:
            self._process.join()
            raise RuntimeError(f"{self.job.name}: its process died with status {self._process.exitcode}") from None
        if isinstance(answer, str) and answer != "imported":
            raise RuntimeError(f"{self.job.name}:\n{answer}")
        return answer

    def read(self, seconds: float) -> Reading:
        """One reading of about ``seconds``."""
        # What can have piled up: `prefetch` batches, of each worker where there are worker processes.
        queued = (self.job.prefetch or 2) * (1 if "dali" in self.job.loader else self.job.workers or self.work.workers)
        self._pipe.send((queued + 2, seconds))
        reading: Reading = self._answer()
        return reading

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._pipe.send(None)
        self._process.join(10)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        self._pipe.close()


# ---- comparisons


def rounds(candidates: list[Candidate], count: int, seconds: float) -> Iterator[dict[str, Reading]]:
    """``count`` rounds; in each every candidate works once, and another one begins. One that does not count goes
    before, while caches fill and buffers grow."""
    for candidate in candidates:
        candidate.read(min(seconds, 1.5))
    for i in range(count):
        turn = i % len(candidates)
        yield {c.job.name: c.read(seconds) for c in candidates[turn:] + candidates[:turn]}


def ratio(a: list[float], b: list[float]) -> dict[str, float]:
    """Return the middle, smallest and largest ratio of readings of the same rounds."""
    each = [x / y for x, y in zip(a, b, strict=True)]
    return {"median": statistics.median(each), "min": min(each), "max": max(each)}


def summary(candidate: Candidate, readings: list[Reading]) -> dict[str, Any]:
    """Return the JSON values of one candidate."""
    speed = [r.images_per_second for r in readings]
    return {
        "options": asdict(candidate.job),
        "start_seconds": candidate.start_seconds,
        "gpu_mb": candidate.gpu_mb,
        "images_per_second": speed,
        "median_images_per_second": statistics.median(speed),
        "busy_cores": statistics.median(r.cpu_seconds / r.seconds for r in readings),
        "cpu_ms_per_image": statistics.median(1e3 * r.cpu_seconds / r.images for r in readings),
        "pss_mb": statistics.median(r.pss_mb for r in readings),
        "uss_mb": statistics.median(r.uss_mb for r in readings),
    }


def in_turns(
    jobs: Sequence[Job], work: Work, turns: int, seconds: float
) -> Iterator[tuple[dict[str, dict[str, Any]], dict[str, list[float]]]]:
    """After every round: (the summary of each candidate by name, its images per second in the rounds so far)."""
    candidates: list[Candidate] = []
    try:
        for job in jobs:
            candidates.append(Candidate(job, work))
            print(f"{job.name}: first batch after {candidates[-1].start_seconds:.1f} s", flush=True)
        readings: dict[str, list[Reading]] = {job.name: [] for job in jobs}
        for done in rounds(candidates, turns, seconds):
            for name, found in readings.items():
                found.append(done[name])
            speed = {name: [r.images_per_second for r in found] for name, found in readings.items()}
            yield {c.job.name: summary(c, readings[c.job.name]) for c in candidates}, speed
    finally:
        for candidate in candidates:
            candidate.close()


def measured(
    question: str, name: str, jobs: Sequence[Job], args: argparse.Namespace, paths: list[str], others: Mapping[str, str]
) -> dict[str, Any]:
    """Measure jobs on the same files in turns, and print and return the result.

    Args:
        question: docstring of the benchmark.
        name: of the result, without the device.
        others: name of the job to divide by, for each ratio.
    """
    work = Work(tuple(paths), args.batch_size, args.workers, args.device, epoch=args.epoch)
    result: dict[str, Any] = {**heading(question, args), "files": describe_files(paths)}
    for result["candidates"], speed in in_turns(jobs, work, args.rounds, args.seconds):
        result["ratios"] = {n: {key: ratio(speed[n], speed[job]) for key, job in others.items()} for n in speed}
        path = save(result_name(name, args), result)  # every round, so that an interruption loses nothing
    titles = [key.replace("to_", "x ").replace("_", " ") for key in others]
    table = Table("median", "images/s", *titles, "CPU ms", "PSS MB", "USS MB")
    for n, row in result["candidates"].items():
        ratios = [result["ratios"][n][key]["median"] for key in others]
        memory = row["cpu_ms_per_image"], row["pss_mb"], row["uss_mb"]
        table.row(n, row["median_images_per_second"], *ratios, *memory)
    print(path)
    return result
