"""A timeout shows where a worker is, and no worker keeps its loader from ending."""

from __future__ import annotations

import gc
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
from support import BATCH, SEED, TRAIN, N, all_seen, children, settled
from torch.utils.data import DataLoader as TorchLoader, Dataset, IterableDataset, _utils

from gpupipe import DataLoader
from gpupipe.datasets import ImageFolder
from gpupipe.errors import EngineError
from gpupipe.reading import torch_worker_processes
from gpupipe.reading.torch_worker_processes import WorkerIterator
from gpupipe.reading.worker_stacks import show_stack_on_request, stack_of

pytestmark = pytest.mark.skipif(not os.path.exists("/proc/self/task"), reason="there is no /proc")

LOCK = threading.Lock()


class Stuck(ImageFolder):
    """Calls a function at sample 7 of the first process that comes there."""

    def __init__(self, root: Path, once: Path, at_seven: Callable[[], Any]):
        super().__init__(root, TRAIN)
        self.once, self.at_seven = once, at_seven

    def fetch(self, index: int) -> Any:
        if index == 7 and not self.once.exists():
            self.once.touch()
            self.at_seven()
        return super().fetch(index)


def take_lock() -> None:
    with LOCK:
        pass


def sleep_forever() -> None:
    time.sleep(1e6)


def stop_itself() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


@pytest.fixture
def locked() -> Iterator[None]:
    """Another thread has the lock while workers are forked, and lets go of it in this process alone."""
    LOCK.acquire()
    yield
    LOCK.release()


def load(dataset: ImageFolder, workers: int = 2, **arguments: Any) -> DataLoader:
    given = {"batch_size": BATCH, "shuffle": True, "seed": SEED, "engine": "torch", "device": "cpu", **arguments}
    return DataLoader(dataset, num_workers=workers, **given)


@pytest.mark.usefixtures("locked")
@pytest.mark.parametrize(
    ("way", "words"), [(take_lock, "in take_lock"), (sleep_forever, "in sleep_forever"), (stop_itself, "not answer")]
)
def test_a_timeout_shows_where_the_worker_is(
    way: Callable[[], Any], words: str, numbered: Path, tmp_path: Path
) -> None:
    before = children()
    with load(Stuck(numbered, tmp_path / "once", way), timeout=1) as loader:
        with pytest.raises(EngineError, match=rf"timed out after 1 seconds.*\nworker \d \(pid \d+\):\n.*{words}"):
            list(loader)
        assert settled(lambda: children() - before, set())
        assert sorted(all_seen(loader)) == list(range(N))  # with new workers


def test_the_timeout_is_five_minutes_by_default(numbered: Path) -> None:
    """Without workers it is 0, as torch asks for."""
    for given, workers, found in (({}, 2, 300), ({}, 0, 0), ({"timeout": 0}, 2, 0), ({"timeout": 5}, 2, 5)):
        with load(ImageFolder(numbered, TRAIN), workers, **given) as loader:
            assert loader.timeout == found


class Loader(TorchLoader[Any]):
    """torch's loader with the iterator of live sessions."""

    def _get_iterator(self) -> Any:
        return WorkerIterator(self)


class Own(Dataset[int]):
    """A script's own."""

    def __init__(self, seconds: float = 0.0):
        self.seconds = seconds

    def __len__(self) -> int:
        return 4

    def __getitem__(self, i: int) -> int:
        time.sleep(self.seconds)
        return i


class Counting(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(3))


def test_a_timeout_of_torchs_own_loader_shows_it_too() -> None:
    loader = Loader(Own(1e6), num_workers=1, timeout=0.5)
    with pytest.raises(
        RuntimeError, match=r"timed out after 0\.5 seconds.*\nworker 0 \(pid \d+\):\n.*(\n.*)?in __getitem__"
    ):
        next(iter(loader))


def test_a_worker_of_a_worker_has_a_stack_of_its_own() -> None:
    show_stack_on_request()
    read, write = os.pipe()
    if not (pid := os.fork()):
        show_stack_on_request()
        os.read(read, 1)
        os._exit(0)
    try:
        assert settled(lambda: "test_a_worker_of_a_worker" in stack_of(pid), True)
        assert "unknown" in stack_of(2**22 + 1)
    finally:
        os.write(write, b"x")
        os.waitpid(pid, 0)
        os.close(read)
        os.close(write)


def sleeping(iterator: Any) -> None:
    """Its dataset does so by now."""
    assert settled(lambda: "in __getitem__" in stack_of(iterator._workers[0].pid), True)


def stopped(iterator: Any) -> None:
    for worker in iterator._workers:
        os.kill(worker.pid, signal.SIGSTOP)


@pytest.mark.parametrize("way", [sleeping, stopped])
def test_no_worker_of_torchs_own_loader_keeps_it_from_ending(
    way: Callable[[Any], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_utils, "MP_STATUS_CHECK_INTERVAL", 0.2)
    before = children()
    iterator: Any = iter(Loader(Own(1e6 if way is sleeping else 0), num_workers=1))
    assert len(children() - before) == 1
    way(iterator)
    thread = threading.Thread(target=iterator._shutdown_workers, daemon=True)
    thread.start()
    thread.join(30)
    assert not thread.is_alive() and settled(children, before)


def test_a_stream_of_which_one_worker_has_ended() -> None:
    loader = Loader(Counting(), num_workers=2)
    assert sorted(int(i) for i in loader) == [0, 0, 1, 1, 2, 2]


def test_an_iterator_in_a_cycle_is_collected_at_once() -> None:
    """The collector closes the queues of torch's iterator before it is asked to end its workers."""
    before = children()

    class Cycle:
        pass

    gc.collect()
    gc.disable()
    try:
        cycle: Any = Cycle()
        cycle.me, cycle.batches = cycle, iter(Loader(Own(), num_workers=2))
        next(cycle.batches)
        codes: list[int | None] = []
        workers = list(cycle.batches._workers)
        del cycle
        gc.collect()
        codes += [worker.exitcode for worker in workers]
    finally:
        gc.enable()
    assert codes == [0, 0]  # they ended by themselves
    assert children() == before


@pytest.mark.parametrize("own", [False, True])
def test_a_worker_that_waits_for_torchs_generator_says_so(
    own: bool, numbered: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread draws while it is forked, so the generator's lock is never released in the worker. The timeout is
    not waited for."""
    monkeypatch.setattr(torch_worker_processes, "_BIRTH", 0.5)
    monkeypatch.setattr(_utils, "MP_STATUS_CHECK_INTERVAL", 0.5)
    before, ended = children(), threading.Event()

    def draw() -> None:
        numbers = torch.empty(10_000_000)
        while not ended.is_set():
            numbers.uniform_()

    thread = threading.Thread(target=draw)
    thread.start()
    try:
        loader = Loader(Own(0), num_workers=2) if own else load(ImageFolder(numbered, TRAIN))
        with pytest.raises(RuntimeError, match=r"multiprocessing_context=(?s:.*)in manual_seed"):
            list(chain.from_iterable(loader for _ in range(5)))
    finally:
        ended.set()
        thread.join()
    del loader
    gc.collect()
    assert settled(lambda: children() - before, set())
