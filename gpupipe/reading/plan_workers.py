"""Runs ``job(plan)`` for a stream of plans, in order, in worker processes of torch's DataLoader."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset as TorchDataset

from ..codecs.openers import pickled, register
from ..errors import EngineError, GpupipeError
from ..signal_handlers import deferred
from ..stages import Spent, add, spent
from ..types import Plan
from .setup import Setup
from .torch_worker_processes import WorkerIterator

R = TypeVar("R")


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


def _items(plans: Iterator[Plan], sent: deque[Item]) -> Iterator[Item]:
    """Yield the plans, and add everything in flight to ``sent``."""
    item: Item
    while True:
        try:
            item = next(plans)
        except StopIteration:
            return
        except Exception as e:
            item = _Failure(e)  # raising here would hit the batch that is being delivered now
        sent.append(item)
        yield item
        if isinstance(item, _Failure):
            return


class _Jobs(TorchDataset[Any], Generic[R]):
    """Dataset of the DataLoader: item ``(run, plan)`` is ``job(plan)``."""

    def __init__(self, job: Callable[[Plan], R], *, shared: bool):
        self.job = job
        # Name the CPU, because scripts may call torch.set_default_device().
        current = torch.zeros(1, dtype=torch.int64, device="cpu")
        self.current: Tensor = current.share_memory_() if shared else current  # type: ignore[no-untyped-call]
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


class _Loader(DataLoader[Any]):
    """torch's DataLoader, whose workers stay until :meth:`end`."""

    _iterator: Any

    def _get_iterator(self) -> Any:
        return super()._get_iterator() if self.num_workers == 0 else WorkerIterator(self).without_signals()

    def end(self) -> None:
        """End the processes. A later ``iter()`` starts new ones."""
        iterator, self._iterator = self._iterator, None
        if isinstance(iterator, WorkerIterator):
            iterator._shutdown_workers()


class Workers(Generic[R]):
    """Runs a job in ``setup.num_workers`` processes (0: in this one). Nothing starts before the first :meth:`run`.

    Args:
        job: picklable, called with one plan at a time.
        setup: its worker options have the same meaning as in torch.
        pin_memory: let torch's thread move tensors of the results to pinned memory.
    """

    def __init__(self, job: Callable[[Plan], R], setup: Setup, *, pin_memory: bool = False):
        self._job, self._setup, self._pin_memory = job, setup, pin_memory
        self._loader: _Loader | None = None
        self._run: WorkerRun[R] | None = None

    def run(self, plans: Iterator[Plan]) -> WorkerRun[R]:
        """Start on ``plans``, ending the previous run. Iterating yields ``(plan, job(plan))`` in order.

        At most ``prefetch_factor`` plans per worker are taken ahead of delivery.
        """
        if self._run is not None:
            self._run.close()
        if self._loader is None:
            self._loader = self._made()
        self._run = WorkerRun(self._loader, plans)
        return self._run

    def _made(self) -> _Loader:
        s = self._setup
        several: dict[str, Any] = {}
        if s.num_workers > 0:  # torch rejects these without workers
            several = {
                "prefetch_factor": s.prefetch_factor,
                "persistent_workers": True,
                "timeout": s.timeout,
                "multiprocessing_context": s.multiprocessing_context,
            }
        return _Loader(
            _Jobs(self._job, shared=s.num_workers > 0),
            batch_size=None,
            sampler=_Feed(),
            num_workers=s.num_workers,
            collate_fn=_as_is,
            pin_memory=self._pin_memory,
            worker_init_fn=s.worker_init_fn,
            generator=torch.Generator(),  # otherwise every epoch would advance the global one
            **several,
        )

    def close(self) -> None:
        """End all worker processes and torch's pinning thread. The next :meth:`run` starts new ones."""
        if self._run is not None:
            self._run.close()
        loader, self._loader, self._run = self._loader, None, None
        if loader is not None:
            loader.end()


class WorkerRun(Generic[R]):
    """One pass over plans; see :meth:`Workers.run`."""

    def __init__(self, loader: _Loader, plans: Iterator[Plan]):
        self._loader = loader
        self._sent: deque[Item] = deque()
        feed: Any = loader.sampler
        # Processes outlive a run, and skip the plans that an earlier run left in the queue.
        feed.items, feed.run = _items(plans, self._sent), feed.run + 1
        self._number = feed.run
        self._current[0] = self._number
        try:
            # torch draws a seed on the default device, with a CPU generator. An interrupt between the start of workers
            # and this assignment would leave them to the traceback.
            with torch.device("cpu"), deferred():
                self._results: Iterator[Any] | None = iter(loader)
        except BaseException as e:
            loader.end()
            if isinstance(e, OSError):
                raise EngineError(
                    f"cannot start {loader.num_workers} worker processes: {e}; lower num_workers, or raise the limits "
                    "on processes, memory and open files (ulimit -a)"
                ) from e
            raise

    @property
    def _current(self) -> Tensor:
        jobs: Any = self._loader.dataset
        return jobs.current  # type: ignore[no-any-return]

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
        except BaseException:
            # Interrupted queues may contain half a message: only new processes are safe.
            self.close()
            self._loader.end()
            raise
        item = self._sent.popleft()
        if isinstance(result, _Failure):
            raise result.error
        assert isinstance(item, Plan)
        # In this process, stages have counted their time already.
        if result.process != os.getpid():
            add(result.spent)
        return item, result.result

    def close(self) -> None:
        """Abandon work in flight."""
        if self._results is not None:
            self._results = None
            if int(self._current[0]) == self._number:
                self._current[0] = -1
