"""Worker processes that die, and processes that are forked: nothing is doubled, nothing hangs."""

from __future__ import annotations

import multiprocessing
import os
import signal
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from interpreter import QUIET, Interpreter
from support import BATCH, SEED, TRAIN, Case, N, all_seen, children, in_a_child, settled

from gpupipe import DataLoader
from gpupipe.datasets import ImageFolder
from gpupipe.errors import EngineError

pytestmark = pytest.mark.usefixtures("many_torch_threads")

TESTS = Path(__file__).resolve().parents[1]


@pytest.fixture(params=["torch", "dali"])
def load(request: pytest.FixtureRequest, device: str) -> Iterator[Callable[..., DataLoader]]:
    made: list[DataLoader] = []

    def loader(dataset: Any, num_workers: int = 2, **arguments: Any) -> DataLoader:
        given = {"batch_size": BATCH, "shuffle": True, "seed": SEED, "engine": request.param, "device": device}
        made.append(DataLoader(dataset, num_workers=num_workers, **{**given, **arguments}))
        return made[-1]

    yield loader
    for one in made:
        one.close()


class Folder(ImageFolder):
    """Calls a function before it opens sample ``at``."""

    def __init__(self, root: Path, at: int, work: Callable[[], Any]):
        super().__init__(root, TRAIN)
        self.at, self.work = at, work

    def fetch(self, index: int) -> Any:
        if index == self.at:
            self.work()
        return super().fetch(index)


@pytest.mark.parametrize("between", [False, True])
def test_a_worker_that_dies_is_torchs_error_and_the_next_epoch_has_new_ones(
    between: bool, numbered: Path, tmp_path: Path
) -> None:
    """Whether it dies in the middle of an epoch or between two."""
    lives = tmp_path / "lives"

    def die() -> None:
        with suppress(FileNotFoundError):
            lives.unlink()  # in one worker only
            os._exit(3)

    before = children()
    dataset = Folder(numbered, 12, die)
    with DataLoader(dataset, BATCH, num_workers=2, engine="torch", device="cpu", persistent_workers=True) as loader:
        if between:
            list(loader)
            # Python may have started other processes, such as its resource tracker.
            os.kill(min(worker.pid or 0 for worker in multiprocessing.active_children()), signal.SIGKILL)
        else:
            lives.touch()
        with pytest.raises(RuntimeError, match=r"DataLoader worker \(pid"):
            list(loader)
        assert settled(lambda: children() - before, set())
        assert sorted(all_seen(loader)) == list(range(N))


def test_a_worker_that_cannot_start_is_an_error_that_says_so(numbered: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before, real, left = children(), os.fork, [1]

    def fork() -> int:
        left[0] -= 1
        if left[0] < 0:
            raise BlockingIOError(11, "Resource temporarily unavailable")
        return real()

    loader = DataLoader(ImageFolder(numbered, TRAIN), BATCH, num_workers=2, engine="torch", device="cpu")
    with monkeypatch.context() as patch:
        patch.setattr(os, "fork", fork)
        with pytest.raises(EngineError, match=r"cannot start 2 worker processes: .*temporarily unavailable; lower"):
            next(iter(loader))
    assert settled(lambda: children() - before, set())  # the one that had started
    assert len(list(loader)) == 5
    loader.close()


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
@pytest.mark.parametrize(("engine", "kind"), [("torch", "tar"), ("dali", "folder")])
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


def test_what_a_signal_handler_raises_reaches_the_script_that_waits_for_a_worker(
    numbered: Path, tmp_path: Path
) -> None:
    def handler(number: int, frame: Any) -> None:
        raise OutOfTime

    def wait() -> None:
        while not (tmp_path / "go").exists():
            time.sleep(0.02)

    before, started = signal.signal(signal.SIGALRM, handler), children()
    try:
        with DataLoader(Folder(numbered, 11, wait), BATCH, num_workers=2, engine="torch", device="cpu") as loader:
            signal.setitimer(signal.ITIMER_REAL, 0.7)
            with pytest.raises(OutOfTime):
                list(loader)
            assert settled(children, started)  # a queue may be in the middle of a message
            (tmp_path / "go").touch()
            assert sorted(all_seen(loader)) == list(range(N))
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
