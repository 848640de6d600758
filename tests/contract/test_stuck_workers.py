"""Worker processes that live and do nothing are replaced, and no worker keeps its loader from ending."""

from __future__ import annotations

import gc
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support import BATCH, SEED, TRAIN, Encoded, all_seen, children, same, settled
from torch.utils.data import Dataset, IterableDataset

from gpupipe import DataLoader
from gpupipe.datasets import from_torch
from gpupipe.loader.torch_loader import Loader
from gpupipe.reading import worker_activity

pytestmark = pytest.mark.skipif(not os.path.exists("/proc/self/task"), reason="there is no /proc")

LOCK = threading.Lock()


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_activity, "PATIENCE", 0.5)


@pytest.fixture
def files(numbered: Path) -> list[bytes]:
    return [p.read_bytes() for p in sorted(numbered.rglob("*.jpg"))]


class Stuck(Encoded):
    """Calls a function at sample 7 of the first process that comes there."""

    def __init__(self, files: list[bytes], once: Path, at_seven: Callable[[], Any]):
        super().__init__(files)
        self.once, self.at_seven = once, at_seven

    def __getitem__(self, i: int) -> tuple[bytes, int]:
        if i == 7 and not self.once.exists():
            self.once.touch()
            self.at_seven()
        return super().__getitem__(i)


def take_lock() -> None:
    with LOCK:
        pass


def sleep_forever() -> None:
    time.sleep(1e6)


def stop_itself() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def work() -> None:
    """For longer than the patience of these tests."""
    until = time.monotonic() + 1.5
    while time.monotonic() < until:
        pass


@pytest.fixture
def locked() -> Iterator[None]:
    """Another thread has the lock while workers are forked, and lets go of it in this process alone."""
    LOCK.acquire()
    yield
    LOCK.release()


def load(dataset: Encoded, workers: int = 2, **arguments: Any) -> DataLoader:
    mine = from_torch(dataset, media="bytes", transform=TRAIN)
    given = {"batch_size": BATCH, "shuffle": True, "seed": SEED, "engine": "torch", "device": "cpu", **arguments}
    return DataLoader(mine, num_workers=workers, **given)


@pytest.mark.usefixtures("locked")
@pytest.mark.parametrize(
    ("way", "words"), [(take_lock, "take_lock"), (sleep_forever, "sleep_forever"), (stop_itself, "stopped")]
)
def test_a_worker_that_does_nothing_is_replaced(
    way: Callable[[], Any], words: str, files: list[bytes], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    before = children()
    with load(Encoded(files), 0) as loader:
        wanted = list(loader)
    with caplog.at_level(logging.WARNING, "gpupipe"), load(Stuck(files, tmp_path / "once", way)) as loader:
        got = list(loader)
    assert same(got, wanted)
    (record,) = caplog.records
    assert "has done nothing for" in record.message and words in record.message
    assert settled(lambda: children() - before, set())


def test_a_worker_that_works_is_left_alone(
    files: list[bytes], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """However long it takes. The log says what it does."""
    with load(Stuck(files, tmp_path / "once", work)) as loader:
        assert sorted(all_seen(loader)) == list(range(len(files)))
    (record,) = caplog.records
    assert "continues to wait" in record.message and "in work\n" in record.message


class Own(Dataset[int]):
    """Of torch's own loader."""

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


def test_torchs_own_loader_says_what_its_workers_do(caplog: pytest.LogCaptureFixture) -> None:
    """It waits on: user code may not run twice."""
    assert list(Loader(Own(1.2), batch_size=1, num_workers=2)) == [0, 1, 2, 3]
    (record,) = caplog.records
    assert "continues to wait" in record.message and "in __getitem__" in record.message


def sleeping(iterator: Any) -> None:
    """Its dataset does so by now."""
    assert settled(lambda: "in __getitem__" in worker_activity.stack_of(iterator._workers[0].pid), True)


def stopped(iterator: Any) -> None:
    for worker in iterator._workers:
        os.kill(worker.pid, signal.SIGSTOP)


def with_the_lock_of_the_event(iterator: Any) -> None:
    """As a worker has it that was stopped in the middle."""
    iterator._workers_done_event._cond.acquire()


@pytest.mark.parametrize("way", [sleeping, stopped, with_the_lock_of_the_event])
def test_no_worker_of_torchs_own_loader_keeps_it_from_ending(way: Callable[[Any], None]) -> None:
    before = children()
    iterator: Any = iter(Loader(Own(30 if way is sleeping else 0), num_workers=1))
    assert len(children() - before) == 1
    way(iterator)
    thread = threading.Thread(target=iterator._shutdown_workers, daemon=True)
    thread.start()
    thread.join(4)  # torch would take 5 s, 10 s or for ever
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
