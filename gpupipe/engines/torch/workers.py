"""``job(plan)`` for a stream of plans, in order, in the worker processes of torch's own DataLoader."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset as TorchDataset

from ...errors import EngineError, GpupipeError
from ...types import Plan
from ..base import Setup

__all__ = ["WorkerRun", "Workers"]

R = TypeVar("R")


@dataclass(frozen=True)
class _Failure:
    """An error on its way to the plan that it belongs to."""

    error: Exception


class _Feed:
    """The DataLoader's sampler: whatever plans the present run has, tagged with the number of the run."""

    def __init__(self) -> None:
        self.plans: Iterator[Plan] = iter(())
        self.run = 0
        self.sent: deque[Plan | None] = deque()

    def __iter__(self) -> Iterator[tuple[int, Plan | _Failure]]:
        plans, run, sent = self.plans, self.run, self.sent
        while True:
            try:
                plan = next(plans)
            except StopIteration:
                return
            except Exception as e:
                # Raised here it would hit whichever batch is being handed out now.
                sent.append(None)
                yield run, _Failure(e)
                return
            sent.append(plan)
            yield run, plan


class _Jobs(TorchDataset[Any], Generic[R]):
    """The DataLoader's dataset: "item" ``(run, plan)`` is ``job(plan)``."""

    def __init__(self, job: Callable[[Plan], R], shared: bool):
        self.job = job
        current = torch.zeros(1, dtype=torch.int64)
        self.current: Tensor = current.share_memory_() if shared else current  # type: ignore[no-untyped-call]
        """i64[1]: the number of the present run, seen by all workers."""

    def __getitem__(self, item: tuple[int, Plan | _Failure]) -> R | _Failure | None:
        run, plan = item
        if run != int(self.current[0]):
            return None  # given up while it waited in the queue
        if isinstance(plan, _Failure):
            return plan
        try:
            return self.job(plan)
        except GpupipeError as e:
            return _Failure(e)  # as it is; torch would wrap it in the text of a traceback


def _as_is(result: R) -> R:
    return result


class Workers(Generic[R]):
    """Runs a job in ``setup.num_workers`` processes (0: in this one). Nothing starts before the first :meth:`run`.

    Args:
        job: picklable; called with one plan at a time.
        setup: its worker options, which mean what they mean to torch.
        pin_memory: let torch's thread move the results' tensors to pinned memory.
    """

    def __init__(self, job: Callable[[Plan], R], setup: Setup, *, pin_memory: bool = False):
        self._job = job
        self._setup = setup
        self._pin_memory = pin_memory
        self._feed = _Feed()
        self._jobs: _Jobs[R] | None = None
        self._loader: DataLoader[Any] | None = None
        self._run: WorkerRun[R] | None = None

    def run(self, plans: Iterator[Plan]) -> WorkerRun[R]:
        """Start on ``plans``: iterating gives ``(plan, job(plan))`` in order. Ends the run before it.

        At most ``prefetch_factor`` plans per worker are taken from ``plans`` ahead of what was handed out.
        """
        if self._run is not None:
            self._run.close()
            if self._run.broken:
                self.close()
        if self._loader is None:
            self._jobs, self._loader = self._build()
        assert self._jobs is not None
        self._feed.plans, self._feed.run, self._feed.sent = plans, self._feed.run + 1, deque()
        self._jobs.current[0] = self._feed.run
        self._run = WorkerRun(iter(self._loader), self._feed, self._jobs)
        return self._run

    def _build(self) -> tuple[_Jobs[R], DataLoader[Any]]:
        s = self._setup
        jobs = _Jobs(self._job, shared=s.num_workers > 0)
        several: dict[str, Any] = {}
        if s.num_workers > 0:  # torch refuses these without workers
            several = {
                "prefetch_factor": s.prefetch_factor,
                "persistent_workers": True,
                "timeout": s.timeout,
                "multiprocessing_context": s.multiprocessing_context,
            }
        loader: DataLoader[Any] = DataLoader(
            jobs,
            batch_size=None,
            sampler=self._feed,
            num_workers=s.num_workers,
            collate_fn=_as_is,
            pin_memory=self._pin_memory,
            worker_init_fn=s.worker_init_fn,
            generator=torch.Generator(),  # else every epoch would advance the global one
            **several,
        )
        return jobs, loader

    def close(self) -> None:
        """End all worker processes and torch's pinning thread. The next :meth:`run` starts new ones."""
        if self._run is not None:
            self._run.close()
        loader, self._loader, self._jobs, self._run = self._loader, None, None, None
        iterator = getattr(loader, "_iterator", None)
        if iterator is not None:
            iterator._shutdown_workers()


class WorkerRun(Generic[R]):
    """One pass over plans; see :meth:`Workers.run`."""

    def __init__(self, results: Iterator[Any], feed: _Feed, jobs: _Jobs[R]):
        self._results: Iterator[Any] | None = results
        self._number = feed.run
        self._sent = feed.sent
        self._jobs = jobs
        self.broken = False
        """Whether the worker processes died and must be started anew."""

    def __iter__(self) -> WorkerRun[R]:
        return self

    def __next__(self) -> tuple[Plan, R]:
        if self._results is None:
            raise StopIteration
        try:
            result = next(self._results)
        except StopIteration:
            self.close()
            raise
        except Exception as e:
            if not self._died(e):
                self._sent.popleft()
                raise
            self.broken = True
            self.close()
            raise EngineError(
                f"{e or type(e).__name__}; where workers die without a message, the machine is short of memory or of "
                "/dev/shm: lower num_workers, prefetch_factor or batch_size"
            ) from e
        plan = self._sent.popleft()
        if isinstance(result, _Failure):
            raise result.error
        assert plan is not None
        return plan, result

    def _died(self, error: Exception) -> bool:
        """Whether the error is about the worker processes; others come from the job."""
        if isinstance(error, (ConnectionError, EOFError)):
            return True  # the worker went while it was handing over a tensor's memory
        dead = any(not worker.is_alive() for worker in getattr(self._results, "_workers", ()))
        return dead or str(error).startswith("DataLoader ")  # torch's own words for a worker that died or timed out

    def close(self) -> None:
        """Give up what is in flight: workers pass over plans that they have not begun."""
        if self._results is not None:
            self._results = None
            if int(self._jobs.current[0]) == self._number:
                self._jobs.current[0] = -1
