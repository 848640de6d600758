"""torch's DataLoader over a dataset whose images wait."""

from __future__ import annotations

import multiprocessing
from contextlib import nullcontext
from typing import Any

from torch._utils import ExceptionWrapper
from torch.utils.data import IterableDataset
from torch.utils.data.dataloader import DataLoader as TorchLoader, _DatasetKind, _SingleProcessDataLoaderIter
from torch.utils.data.datapipes.datapipe import IterDataPipe, MapDataPipe

from ..planning.bad_samples import OnError
from ..reading.torch_worker_processes import WorkerIterator
from . import functions, looks
from .asked import Asked
from .fetching import Asking, Collate, InWorker, Samples
from .shipping import Shipment
from .switch import switched
from .trays import Trays


class LiveLoader(TorchLoader[Any]):
    """torch's DataLoader, whose iterators yield shipments.

    Torch's own code does everything: samplers, worker processes, collate functions and random numbers.

    Args:
        waits: whether images wait.
        on_error: see :class:`gpupipe.DataLoader`.
        keeps_states: whether each batch tells the states of the generators before it.
        arguments: those of torch's DataLoader.
    """

    def __init__(self, *, waits: bool, on_error: OnError = "raise", keeps_states: bool = True, **arguments: Any):
        super().__init__(**arguments)
        self._waits = waits
        self.given = self.dataset
        self._on_error, self._keeps_states = on_error, keeps_states
        self.trays: list[Trays] = []
        """Those of worker processes that have ended."""

    @property
    def is_stream(self) -> bool:
        """Whether the dataset decides which samples come."""
        return isinstance(self.given, IterableDataset)

    @property
    def forks(self) -> bool:
        """Whether worker processes are forked."""
        context: Any = self.multiprocessing_context or multiprocessing
        return bool(self.num_workers and context.get_start_method() == "fork")

    @property
    def asks(self) -> bool:
        """Whether samples are asked for through :class:`Samples`. torch treats pipes in ways of their own."""
        return not self.is_stream and not isinstance(self.given, (IterDataPipe, MapDataPipe))

    def _get_iterator(self) -> Any:
        theirs = vars(self)["dataset"], self.collate_fn, self.worker_init_fn
        if self._waits:
            functions.install()
        if self.asks:
            vars(self)["dataset"] = Samples(self.given, self._on_error, keeps_states=self._keeps_states)
        self.collate_fn = Collate(self.collate_fn, self._waits, self.num_workers > 0)
        workers = range(self.num_workers if self._waits and self.forks else 0)
        trays = [self.trays.pop() if self.trays else Trays() for _ in workers]
        if self.num_workers:
            self.worker_init_fn = InWorker(self.worker_init_fn, self._waits, trays)
            self.check_worker_number_rationality()
        try:
            return _InWorkers(self, trays) if self.num_workers else _Here(self)
        finally:
            vars(self)["dataset"], self.collate_fn, self.worker_init_fn = theirs

    @property
    def _index_sampler(self) -> Any:
        inner = super()._index_sampler
        if not self.asks:
            return inner
        return Asking(inner)


class _Here(_SingleProcessDataLoaderIter):
    """Iterator whose samples are made in this process, when they are asked for."""

    def __init__(self, loader: LiveLoader):
        super().__init__(loader)
        self._waits = loader._waits

    def pull(self) -> Shipment:
        """Return the next batch. Raises StopIteration, and what the script's code raises."""
        with switched(True) if self._waits else nullcontext():
            try:
                found: Shipment = next(self)
            except BaseException:
                looks.taken()  # or the next loader would count its images
                raise
            return found

    pull_ahead = pull

    def may_pull_ahead(self) -> bool:
        return True

    def asked_for(self) -> None:
        """Nothing is owed."""

    def again(self, asked: Asked, worker: int) -> Shipment:
        """Return a batch once more, made with pixels."""
        made: Shipment = self._dataset_fetcher.fetch(asked)
        return made


class _InWorkers(WorkerIterator):
    """Iterator whose samples are made in worker processes.

    It reads its sampler exactly as far ahead as torch's does, also if batches are taken from workers before they are
    asked for.
    """

    def __init__(self, loader: LiveLoader, trays: list[Trays]):
        self._trays, self._idle_trays = trays, loader.trays
        self._ahead = False
        """Whether a batch is taken ahead."""
        self._owed = 0
        """Number of items of the sampler that torch would have read since."""
        super().__init__(loader)

    def _shutdown_workers(self) -> None:
        super()._shutdown_workers()
        trays, self._trays = self._trays, []
        for worker, own in zip(self._workers, trays, strict=False):
            if not worker.is_alive():
                own.free()
                self._idle_trays.append(own)

    def _try_put_index(self) -> None:
        if self._ahead:
            self._owed += 1
        else:
            super()._try_put_index()

    def pull(self) -> Shipment:
        """Return the next batch. Raises StopIteration, and what the script's code raises."""
        found: Shipment = next(self)
        return found

    def asked_for(self) -> None:
        """Read the item of the sampler that torch reads when a batch is asked for that was taken ahead."""
        if self._owed:
            self._owed -= 1
            self._try_put_index()

    def pull_ahead(self) -> Shipment:
        """Return a later batch. It has arrived if :meth:`may_pull_ahead` has said so."""
        self._ahead = True
        try:
            return self.pull()
        finally:
            self._ahead = False

    def may_pull_ahead(self) -> bool:
        """Return whether the next batch has arrived."""
        if self._rcvd_idx >= self._send_idx:
            return False
        if self._dataset_kind == _DatasetKind.Iterable:  # the order of arrival also tells which streams have ended
            return not self._data_queue.empty()
        while len(self._task_info[self._rcvd_idx]) == 1 and not self._data_queue.empty():
            self._note(*self._get_data())  # type: ignore[no-untyped-call]
        return len(self._task_info[self._rcvd_idx]) == 2

    def _note(self, number: int, data: Any) -> None:
        """Keep a batch that has arrived until it is its turn."""
        self._tasks_outstanding -= 1
        self._task_info[number] += (data,)

    def again(self, asked: Asked, worker: int) -> Shipment:
        """Return a batch once more, made with pixels by the worker that has made it."""
        self._index_queues[worker].put((_AGAIN, asked))
        while True:
            number, data = self._get_data()  # type: ignore[no-untyped-call]
            if number == _AGAIN:
                break
            self._note(number, data)
        if isinstance(data, ExceptionWrapper):
            data.reraise()  # type: ignore[no-untyped-call]
        return data  # type: ignore[no-any-return]


_AGAIN = -1
"""Number of a batch that is made once more."""
