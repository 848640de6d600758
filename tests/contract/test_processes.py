"""Worker processes that die, and processes that are forked: nothing is lost, nothing is doubled, nothing hangs."""

from __future__ import annotations

import gc
import logging
import os
import resource
import signal
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from interpreter import QUIET, Interpreter
from support import BATCH, SEED, TRAIN, Case, Encoded, all_seen, children, in_a_child, same, seen, settled
from torch.utils.data import DataLoader as TorchLoader

from gpupipe import DataLoader
from gpupipe.datasets import from_torch
from gpupipe.errors import EngineError
from gpupipe.reading.torch_worker_processes import OwnIterator, WorkerLoader, _Iterator

pytestmark = pytest.mark.usefixtures("many_torch_threads")

TESTS = Path(__file__).resolve().parents[1]
ENDS: dict[str, Callable[[], Any]] = {
    "SIGKILL": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "SIGSEGV": lambda: os.kill(os.getpid(), signal.SIGSEGV),
    "exit": lambda: os._exit(3),
}


class Mortal(Encoded):
    """Ends its process when it is asked for sample ``at``, as often as there are files in a folder."""

    def __init__(self, files: list[bytes], at: int, end: str, lives: Path, times: int = 1):
        super().__init__(files)
        self.at, self.end, self.lives = at, end, lives
        lives.mkdir()
        for i in range(times):
            (lives / str(i)).touch()

    def __getitem__(self, i: int) -> tuple[bytes, int]:
        if i == self.at:
            for life in sorted(self.lives.iterdir()):
                life.unlink()
                ENDS[self.end]()
        return super().__getitem__(i)


@pytest.fixture
def files(numbered: Path) -> list[bytes]:
    return [p.read_bytes() for p in sorted(numbered.rglob("*.jpg"))]


@pytest.fixture(params=["torch", "dali"])
def load(request: pytest.FixtureRequest, device: str) -> Iterator[Callable[..., DataLoader]]:
    made: list[DataLoader] = []

    def loader(dataset: Encoded, num_workers: int = 2, **arguments: Any) -> DataLoader:
        given = {"batch_size": BATCH, "shuffle": True, "seed": SEED, "engine": request.param, "device": device}
        mine = from_torch(dataset, media="bytes", transform=TRAIN)
        made.append(DataLoader(mine, num_workers=num_workers, **{**given, **arguments}))
        return made[-1]

    yield loader
    for one in made:
        one.close()


@pytest.mark.part("at", "end", of=5)
@pytest.mark.slow
@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("at", [0, 12, 22])
def test_a_worker_that_dies_once_costs_nothing(
    at: int,
    end: str,
    files: list[bytes],
    load: Callable[..., DataLoader],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    wanted = list(load(Encoded(files), 0))
    before = children()
    loader = load(Mortal(files, at, end, tmp_path / "lives"), persistent_workers=True)
    with caplog.at_level(logging.WARNING, "gpupipe"):
        got = list(loader)
    assert same(got, wanted)
    (record,) = caplog.records
    words = {"exit": "exited with code 3"}.get(end, f"was killed by {end}")
    assert words in record.message and "worker " in record.message and "(pid " in record.message
    assert len(children() - before) == 2  # the new ones; none of the old
    assert len(list(loader)) == len(wanted)


def test_a_second_death_is_an_error_that_names_both(
    files: list[bytes], load: Callable[..., DataLoader], tmp_path: Path
) -> None:
    before = children()
    loader = load(Mortal(files, 5, "exit", tmp_path / "lives", times=2), shuffle=False)
    iterator = iter(loader)
    first = next(iterator)
    with pytest.raises(EngineError, match=r"exited with code 3.*because worker .*exited with code 3.*num_workers=0"):
        list(iterator)
    assert settled(lambda: children() - before, set())
    assert seen(first) == [0, 1, 2, 3, 4]
    assert all_seen(loader) == list(range(len(files)))  # the next epoch has new workers, and may lose one again


def test_every_epoch_may_lose_one(files: list[bytes], load: Callable[..., DataLoader]) -> None:
    loader = load(Encoded(files))
    before = children()
    for _ in range(3):
        iterator = iter(loader)
        got = seen(next(iterator))
        os.kill(min(children() - before), signal.SIGKILL)
        assert sorted([*got, *all_seen(iterator)]) == list(range(len(files)))


def test_dead_workers_leave_no_pipe_open(files: list[bytes], load: Callable[..., DataLoader]) -> None:
    def lose_one() -> int:
        iterator = iter(loader)
        next(iterator)
        os.kill(min(children() - before), signal.SIGKILL)
        list(iterator)
        return len(os.listdir("/proc/self/fd"))

    before = children()
    with load(Encoded(files), 2, persistent_workers=True) as loader:
        gc.collect()
        gc.disable()  # it would find them, some day
        try:
            first = lose_one()
            assert [lose_one() for _ in range(2)] == [first] * 2
        finally:
            gc.enable()


@pytest.mark.parametrize("where", ["here", "thread"])
def test_a_death_is_met_in_next_and_not_in_the_scripts_own_code(
    where: str, files: list[bytes], load: Callable[..., DataLoader]
) -> None:
    """torch raises it from a signal handler, in the middle of a training step."""
    wanted = list(load(Encoded(files), 0))
    got: list[Any] = []

    def script() -> None:
        before = children()
        loader = load(Encoded(files))
        for batch in loader:
            if not got:
                for pid in children() - before:
                    os.kill(pid, signal.SIGKILL)
                until = time.monotonic() + 0.3
                while time.monotonic() < until:  # bytecode, between which signal handlers run
                    pass
            got.append(batch)

    if where == "here":
        script()
    else:
        thread = threading.Thread(target=script)
        thread.start()
        thread.join(60)
    assert same(got, wanted)


def test_death_between_two_epochs(
    files: list[bytes], load: Callable[..., DataLoader], caplog: pytest.LogCaptureFixture
) -> None:
    before = children()
    loader, other = load(Encoded(files), persistent_workers=True), load(Encoded(files), 0)
    assert same(list(loader), list(other))
    os.kill(max(children() - before), signal.SIGTERM)
    time.sleep(0.1)
    assert same(list(loader), list(other))
    assert "all workers are restarted" in caplog.text


def test_results_that_cannot_be_received_are_made_again(
    files: list[bytes],
    load: Callable[..., DataLoader],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The limit on open files: a tensor comes as a file descriptor."""
    wanted = list(load(Encoded(files), 0))
    loader = load(Encoded(files))
    real, left = _Iterator.__mro__[1]._arrived, [1]  # type: ignore[attr-defined]

    def flaky(self: Any, seconds: float) -> Any:
        found = real(self, seconds)
        if found[0] and left[0]:
            left[0] -= 1
            raise OSError(24, "Too many open files")
        return found

    monkeypatch.setattr(_Iterator.__mro__[1], "_arrived", flaky)
    assert same(list(loader), wanted)
    assert "a result cannot be received: OSError: [Errno 24] Too many open files; all workers" in caplog.text


@pytest.mark.parametrize("lost", [False, True])
def test_pinning_ends_before_the_workers_whose_memory_it_receives(lost: bool) -> None:
    """Otherwise torch's thread would ask a worker for memory that is gone, and print a traceback."""

    class Pinning:
        """In the place of torch's thread, which there is with CUDA only."""

        def join(self, timeout: float) -> None:
            alive.extend(worker.is_alive() for worker in iterator._workers)

    alive: list[bool] = []

    loader = WorkerLoader(range(8), num_workers=2, persistent_workers=True)  # type: ignore[arg-type]
    iterator: Any = iter(loader)
    next(iterator)
    iterator._pin_memory_thread, iterator._pin_memory_thread_done_event = Pinning(), threading.Event()
    iterator._lost = lost  # then a queue's lock may be held by the dead, and the workers are ended first
    loader.end()
    assert alive == [not lost] * 2
    assert iterator._pin_memory_thread_done_event.is_set()


def test_a_worker_that_cannot_start_is_an_error_that_says_so(
    files: list[bytes], load: Callable[..., DataLoader], monkeypatch: pytest.MonkeyPatch
) -> None:
    before, real, left = children(), os.fork, [1]

    def fork() -> int:
        left[0] -= 1
        if left[0] < 0:
            raise BlockingIOError(11, "Resource temporarily unavailable")
        return real()

    loader = load(Encoded(files))
    with monkeypatch.context() as patch:
        patch.setattr(os, "fork", fork)
        with pytest.raises(EngineError, match=r"cannot start 2 worker processes: .*temporarily unavailable; lower"):
            next(iter(loader))
    assert settled(lambda: children() - before, set())  # the one that had started
    assert len(list(loader)) == 5


FORK = """
    import os, sys, time
    sys.path.insert(0, {tests!r})
    from pathlib import Path
    import torch
    from support import Case, all_seen, seen
    from gpupipe.errors import EngineError
    def case(): return Case({engine!r}, {kind!r}, "cpu", Path({root!r}))
    torch.set_num_threads(1)
    mine = case()
    loader = mine.loader()
    iterator = iter(loader)
    got = seen(next(iterator))
    if not (pid := os.fork()):
        for use in (lambda: next(iterator), lambda: iter(loader)):
            try:
                use()
                print("not refused")
            except EngineError as e:
                assert "is a fork of it" in str(e) and "Make a loader in the child" in str(e)
        loader.close()
        if {then!r} == "own":
            assert sorted(all_seen(case().loader())) == list(range(23))
        if {then!r} == "drop":
            mine.made.clear()
            del iterator, loader, mine
            os._exit(7)
        sys.exit(7)
    until = time.monotonic() + 20
    while not (ended := os.waitpid(pid, os.WNOHANG))[0] and time.monotonic() < until:
        time.sleep(0.02)
    if not ended[0]:
        os.kill(pid, 9)
        os.waitpid(pid, 0)
    print("child:", os.waitstatus_to_exitcode(ended[1]) if ended[0] else "hangs")
    print("parent:", sorted([*got, *all_seen(iterator)]) == list(range(23)))
"""


@pytest.mark.part("engine", "then", of=3)
@pytest.mark.parametrize("then", ["exit", "drop", "own"])
@pytest.mark.parametrize(("engine", "kind"), [("torch", "bytes-2"), ("dali", "folder"), ("dali", "bytes-2")])
def test_a_forked_child_is_refused_and_ends_in_peace(
    engine: str, kind: str, then: str, warm: Interpreter, numbered: Path
) -> None:
    """DALI's destructors wait for threads that a child does not have, and multiprocessing ends its parent's workers."""
    script = textwrap.dedent(FORK).format(tests=str(TESTS), engine=engine, kind=kind, root=str(numbered), then=then)
    done = warm.run(code=script, warn=QUIET)
    assert (done.stdout.splitlines(), done.stderr) == (["child: 7", "parent: True"], "")


THREADS = """
    import os, sys, time
    import numpy as np, torch
    from gpupipe import DataLoader, datasets, transforms

    torch.set_num_threads(2)
    torch.rand(4_000_000).add_(1)  # starts OpenMP's threads, which a fork does not have
    pixels = datasets.Arrays(np.zeros((64, 64, 64, 3), np.uint8), range(64), transform=transforms.ToTensor())
    pid = os.fork()
    if not pid:
        count = sum(len(target) for _, target in DataLoader(pixels, 32, engine="torch", device="cpu"))
        os._exit(count if torch.get_num_threads() == 2 else 1)
    end = time.monotonic() + 20
    while not (ended := os.waitpid(pid, os.WNOHANG))[0] and time.monotonic() < end:
        time.sleep(0.01)
    if not ended[0]:
        os.kill(pid, 9)
    print(os.waitstatus_to_exitcode(ended[1]) if ended[0] else "hangs")
"""


def test_a_new_loader_in_a_child_does_not_wait_for_torchs_threads(warm: Interpreter) -> None:
    assert warm.run(code=textwrap.dedent(THREADS), warn=QUIET).stdout == "64\n"


def test_a_loader_that_nobody_started_may_be_used_in_a_child(numbered: Path) -> None:
    case = Case("null", "folder", "cpu", numbered)
    loader = case.loader()
    assert in_a_child(lambda: len(list(loader))) == 5


def test_fork_after_cuda_is_refused(numbered: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "_is_in_bad_fork", lambda: True)
    assert len(list(Case("null", "folder", "cpu", numbered).loader())) == 5  # the CPU does not mind
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    loader = Case("null", "folder", "cuda:0", numbered).loader()
    with pytest.raises(EngineError, match=r"device='cuda:0': CUDA was initialized in the parent.*'spawn'"):
        iter(loader)


class OutOfTime(Exception):
    """What a script's signal handler raises."""


class Alarming(Encoded):
    """In the middle of a sample the process gets a signal."""

    def __getitem__(self, i: int) -> tuple[bytes, int]:
        if i == 7:
            os.kill(os.getpid(), signal.SIGUSR1)
        return super().__getitem__(i)


@pytest.mark.parametrize("on_error", ["raise", "skip"])
def test_what_a_signal_handler_raises_reaches_the_script(
    on_error: str, files: list[bytes], load: Callable[..., DataLoader]
) -> None:
    """It says nothing of the sample that was being read."""

    def handler(number: int, frame: Any) -> None:
        raise OutOfTime

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        loader = load(Alarming(files), 0, on_error=on_error)
        with pytest.raises(OutOfTime):
            list(loader)
        assert loader.report().samples == []
    finally:
        signal.signal(signal.SIGUSR1, before)


class OutOfTimeAtRun(RuntimeError):
    """It is of a class that torch's loader and DALI raise, too."""


@pytest.mark.parametrize("kind", [OutOfTime, OutOfTimeAtRun])
def test_it_reaches_the_script_while_it_waits_for_a_worker(
    kind: type[Exception],
    files: list[bytes],
    load: Callable[..., DataLoader],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """And no worker is taken for lost."""

    def handler(number: int, frame: Any) -> None:
        raise kind

    before, started = signal.signal(signal.SIGALRM, handler), children()
    try:
        with load(Waiting(files, tmp_path / "go"), 2) as loader:
            signal.setitimer(signal.ITIMER_REAL, 0.7)
            with pytest.raises(kind):
                list(loader)
            assert settled(children, started)  # a queue may be in the middle of a message
            (tmp_path / "go").touch()
            assert sorted(all_seen(loader)) == list(range(len(files)))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert "restarted" not in caplog.text


class Waiting(Encoded):
    """A sample in the middle does not come until there is a file."""

    def __init__(self, files: list[bytes], go: Path):
        super().__init__(files)
        self.go = go

    def __getitem__(self, i: int) -> tuple[bytes, int]:
        while i == 11 and not self.go.exists():
            time.sleep(0.02)
        return super().__getitem__(i)


@pytest.mark.parametrize("workers", [0, 1])
def test_what_the_script_has_caught_is_not_raised_again_for_a_bad_sample(
    workers: int, files: list[bytes], load: Callable[..., DataLoader]
) -> None:
    """It goes on in its ``except``, so Python notes the one as context of the other."""

    def handler(number: int, frame: Any) -> None:
        raise OutOfTime

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        with load(Encoded([*files[:3], files[3][:300], *files[4:]]), workers, on_error="skip") as loader:
            try:
                signal.raise_signal(signal.SIGUSR1)
            except OutOfTime:
                assert sorted(all_seen(loader)) == [i for i in range(len(files)) if i != 3]
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_a_new_loader_in_a_forked_child(files: list[bytes], load: Callable[..., DataLoader]) -> None:
    """Of a process in the middle of an epoch."""
    loader = load(Encoded(files))
    iterator = iter(loader)
    first = seen(next(iterator))

    def epoch() -> bool:
        with load(Encoded(files)) as other:
            return sorted(all_seen(other)) == list(range(len(files)))

    assert in_a_child(epoch) == 1
    assert sorted(first + all_seen(iterator)) == list(range(len(files)))


def test_descriptors_above_1023(files: list[bytes], load: Callable[..., DataLoader]) -> None:
    """select() takes no such numbers."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, 2048)), hard))
    taken = [os.open(os.devnull, os.O_RDONLY) for _ in range(1024)]
    try:
        for persistent_workers in (True, False):
            with load(Encoded(files), persistent_workers=persistent_workers) as loader:
                assert len(list(loader)) == 5
        assert list(OwnIterator(TorchLoader(range(5), num_workers=2))) == [0, 1, 2, 3, 4]  # type: ignore[arg-type]
    finally:
        for fd in taken:
            os.close(fd)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_descriptors_that_come_back_cost_nothing(files: list[bytes], load: Callable[..., DataLoader]) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    taken: list[int] = []

    def give_back() -> None:
        while taken:
            os.close(taken.pop())

    with load(Encoded(files), on_error="skip", max_bad=1.0) as loader:
        iterator = iter(loader)
        got = seen(next(iterator))
        resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 64, hard))
        timer = threading.Timer(2, give_back)
        try:
            with suppress(OSError):
                while True:
                    taken.append(os.open(os.devnull, os.O_RDONLY))
            timer.start()
            for batch in iterator:
                got += seen(batch)
        finally:
            timer.cancel()
            give_back()
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert sorted(got) == list(range(len(files)))
