"""Runs ``job(plan)`` for a stream of plans, in order, in worker processes of torch's DataLoader."""

from __future__ import annotations

import errno
import logging
import os
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.utils.data import Dataset as TorchDataset

from ..codecs.openers import pickled, register
from ..codecs.retry import with_retries
from ..errors import EngineError, GpupipeError
from ..signal_handlers import pass_on, raised_by_handler
from ..stages import Spent, add, spent
from ..types import Plan
from .setup import Setup
from .torch_worker_processes import WorkerLoader, WorkersLost

R = TypeVar("R")

log = logging.getLogger("gpupipe")


@dataclass(frozen=True)
class _Failure:
    """An error on its way to its plan."""

    error: Exception


class _Done(NamedTuple):
    """A result, which torch may move to pinned memory, and what it took."""

    result: Any
    process: int
    spent: Spent


Item = Plan | _Failure
"""Object sent to a worker, waiting in order for its result."""


class _Feed:
    """Sampler of the DataLoader: the items of the current run, tagged with its number."""

    def __init__(self) -> None:
        self.items: Iterator[Item] = iter(())
        self.run = 0

    def __iter__(self) -> Iterator[tuple[int, Item]]:
        run = self.run
        return ((run, item) for item in self.items)


def _items(plans: Iterator[Plan], again: deque[Item], sent: deque[Item]) -> Iterator[Item]:
    """Yield items to repeat, then the plans. Adds everything in flight to ``sent``."""
    while True:
        item: Item
        if again:
            item = again.popleft()
        else:
            try:
                item = next(plans)
            except StopIteration:
                return
            except Exception as e:
                pass_on(e)
                item = _Failure(e)  # raising here would hit the batch that is being delivered now
        sent.append(item)
        yield item
        if isinstance(item, _Failure):
            return


class _Jobs(TorchDataset[Any], Generic[R]):
    """Dataset of the DataLoader: item ``(run, plan)`` is ``job(plan)``."""

    def __init__(self, job: Callable[[Plan], R], setup: Setup):
        self.job, self.given = job, setup.given
        # Name the CPU, because scripts may call torch.set_default_device().
        current = torch.zeros(1, dtype=torch.int64, device="cpu")
        self.current: Tensor = current.share_memory_() if setup.num_workers > 0 else current  # type: ignore[no-untyped-call]
        """i64[1]: number of the current run, visible to all workers."""

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "plugins": pickled()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        plugins = state.pop("plugins")
        if plugins is not None:
            register(plugins)
        self.__dict__.update(state)

    def __getitem__(self, item: tuple[int, Item]) -> _Done | _Failure | None:
        run, plan = item
        if run != int(self.current[0]):
            return None  # abandoned while it waited in the queue
        if isinstance(plan, _Failure):
            return plan
        before = spent()
        try:
            return _Done(self.job(plan), os.getpid(), spent().since(before))
        except GpupipeError as e:
            return _Failure(e)  # unchanged; torch would wrap it in the text of a traceback


def _as_is(result: R) -> R:
    return result


class _Pool(Generic[R]):
    """Worker processes, and the number of the run they work for. It has no reference to a run, which would be a
    cycle."""

    def __init__(self, job: Callable[[Plan], R], setup: Setup, pin_memory: bool):
        self._job = job
        self._setup = setup
        self._pin_memory = pin_memory
        self._feed = _Feed()
        self._jobs: _Jobs[R] | None = None
        self._loader: WorkerLoader | None = None

    def start(self, items: Iterator[Item]) -> tuple[int, Iterator[Any]]:
        """Return (number of the run, its results), starting the processes if there are none."""
        # Processes outlive a run, and skip the plans that an earlier run left in the queue.
        self._feed.items, self._feed.run = items, self._feed.run + 1
        try:
            return self._feed.run, with_retries(lambda: "worker processes", self._begin)
        except BaseException as e:
            self.stop()
            if isinstance(e, OSError):
                raise EngineError(
                    f"cannot start {self._setup.num_workers} worker processes: {e}; lower num_workers, or raise the "
                    "limits on processes, memory and open files (ulimit -a)"
                ) from e
            raise

    def _begin(self) -> Iterator[Any]:
        try:
            if self._loader is None:
                self._jobs, self._loader = self._build()
            assert self._jobs is not None
            self._jobs.current[0] = self._feed.run
            with torch.device("cpu"):  # torch draws a seed on the default device, with a CPU generator
                return iter(self._loader)
        except RuntimeError as e:  # torch's, for a number in shared memory
            if os.strerror(errno.EMFILE) in str(e):
                raise OSError(errno.EMFILE, os.strerror(errno.EMFILE)) from e
            raise

    def is_ready(self) -> bool:
        """Return whether the next result has arrived; always ``True`` without processes."""
        return self._loader is None or self._loader.is_ready()

    def give_up(self, run: int) -> None:
        """Make workers skip plans of this run that they have not begun."""
        if self._jobs is not None and int(self._jobs.current[0]) == run:
            self._jobs.current[0] = -1

    def stop(self) -> None:
        loader, self._loader, self._jobs = self._loader, None, None
        if loader is not None:
            loader.end()

    def _build(self) -> tuple[_Jobs[R], WorkerLoader]:
        s = self._setup
        jobs = _Jobs(self._job, s)
        several: dict[str, Any] = {}
        if s.num_workers > 0:  # torch rejects these without workers
            several = {
                "prefetch_factor": s.prefetch_factor,
                "persistent_workers": True,
                "timeout": s.timeout,
                "multiprocessing_context": s.multiprocessing_context,
            }
        loader = WorkerLoader(
            jobs,
            batch_size=None,
            sampler=self._feed,
            num_workers=s.num_workers,
            collate_fn=_as_is,
            pin_memory=self._pin_memory,
            worker_init_fn=s.worker_init_fn,
            generator=torch.Generator(),  # otherwise every epoch would advance the global one
            **several,
        )
        return jobs, loader


class Workers(Generic[R]):
    """Runs a job in ``setup.num_workers`` processes (0: in this one). Nothing starts before the first :meth:`run`.

    Args:
        job: picklable, called with one plan at a time; called again if its worker died.
        setup: its worker options have the same meaning as in torch.
        pin_memory: let torch's thread move tensors of the results to pinned memory.
    """

    def __init__(self, job: Callable[[Plan], R], setup: Setup, *, pin_memory: bool = False):
        self._pool = _Pool(job, setup, pin_memory)
        self._run: WorkerRun[R] | None = None

    def run(self, plans: Iterator[Plan]) -> WorkerRun[R]:
        """Start on ``plans``, ending the previous run. Iterating yields ``(plan, job(plan))`` in order.

        At most ``prefetch_factor`` plans per worker are taken ahead of delivery.
        """
        if self._run is not None:
            self._run.close()
        self._run = WorkerRun(self._pool, plans)
        return self._run

    def close(self) -> None:
        """End all worker processes and torch's pinning thread. The next :meth:`run` starts new ones."""
        if self._run is not None:
            self._run.close()
        self._run = None
        self._pool.stop()


class WorkerRun(Generic[R]):
    """One pass over plans; see :meth:`Workers.run`.

    If a worker dies, all are restarted, once per epoch, and repeat the work in flight: a job is a function of its plan,
    so the results do not change.
    """

    def __init__(self, pool: _Pool[R], plans: Iterator[Plan]):
        self._pool = pool
        self._plans = plans
        self._sent: deque[Item] = deque()
        self._lost: tuple[str, int] | None = None
        """Text and epoch of the last recovered loss of workers. Frames of a traceback would keep the pipes of those
        workers open."""
        self._results: Iterator[Any] | None = None
        self._number = -1
        try:
            self._start(deque())
        except WorkersLost as e:  # happened during the previous run
            self._again(e)

    def _start(self, again: deque[Item]) -> None:
        self._sent = deque()
        self._number, self._results = self._pool.start(_items(self._plans, again, self._sent))

    def __iter__(self) -> WorkerRun[R]:
        return self

    def __next__(self) -> tuple[Plan, R]:
        if self._results is None:
            raise StopIteration
        try:
            result = self._receive()
        except StopIteration:
            self.close()
            raise
        except EngineError:
            self._interrupted()
            raise
        except BaseException as e:
            if isinstance(e, Exception) and raised_by_handler(e) is None:
                self._sent.popleft()
                raise  # raised by the job
            self._interrupted()
            raise
        item = self._sent.popleft()
        if isinstance(result, _Failure):
            raise result.error
        assert isinstance(item, Plan)
        # In this process, stages have counted their time already.
        if result.process != os.getpid():
            add(result.spent)
        return item, result.result

    def is_ready(self) -> bool:
        """Return whether iterating has nothing to wait for; always ``True`` without processes."""
        if self._results is None:
            return True
        try:
            return self._pool.is_ready()
        except WorkersLost as e:
            self._restart(e)
            return False
        except BaseException:
            self._interrupted()
            raise

    def _receive(self) -> Any:
        while True:
            assert self._results is not None
            try:
                return next(self._results)
            except WorkersLost as e:
                self._restart(e)

    def _interrupted(self) -> None:
        # Interrupted queues may contain half a message: only new processes are safe.
        self.close()
        self._pool.stop()

    def _restart(self, lost: WorkersLost) -> None:
        # A run continues across epochs.
        epoch = self._sent[0].epoch if self._sent and isinstance(self._sent[0], Plan) else -1
        first = self._lost[0] if self._lost is not None and self._lost[1] == epoch else None
        self._lost = str(lost), epoch
        if first is not None:
            self._interrupted()
            raise EngineError(
                f"{lost}, after others had been restarted in the same epoch because {first}. Workers are killed if the "
                "machine is short of memory or of /dev/shm: lower num_workers, prefetch_factor or batch_size. Workers "
                "that exit or crash do so in the code of the dataset: num_workers=0 shows where"
            ) from lost
        self._again(lost)

    def _again(self, lost: WorkersLost) -> None:
        log.warning("%s; all workers are restarted and repeat %d batches", str(lost), len(self._sent))
        self._pool.stop()
        self._start(self._sent)

    def close(self) -> None:
        """Abandon work in flight."""
        if self._results is not None:
            self._results = None
            self._pool.give_up(self._number)
