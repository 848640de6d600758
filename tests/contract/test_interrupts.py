"""SIGINT, SIGTERM and SIGKILL in the middle of an epoch: it ends at once, leaves nothing, and a notebook can go on."""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
import textwrap
import threading
import time
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from interpreter import QUIET, Interpreter
from support import BATCH, SEED, TRAIN, Case, children, interrupt_after, python_threads, same, settled

from gpupipe import DataLoader
from gpupipe.datasets import ImageFolder
from gpupipe.engines.dali import engine as dali, executors
from gpupipe.engines.dali.runner import Runner
from gpupipe.engines.host.image_threads import ImageThreads, Making
from gpupipe.engines.torch import engine as reference, worker_tasks as jobs
from gpupipe.loader import bottleneck, epoch as iteration, plan_stream, planned, running
from gpupipe.planning import epoch as planning
from gpupipe.reading import paths, plan_workers as workers, torch_worker_processes as processes

TESTS = Path(__file__).resolve().parents[1]
PATIENCE = 60.0
"""Seconds that a loaded machine gets; benchmarks measure how long it takes."""

SCRIPT = """
    import json, os, signal, sys, time
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.path.insert(0, {tests!r})
    from pathlib import Path
    from support import TRAIN, Case, children
    from gpupipe.datasets import ImageFolder
    class Slow(ImageFolder):
        def fetch(self, index):
            if index == 20:
                time.sleep(60)
            return super().fetch(index)
    case = Case({engine!r}, {kind!r}, {device!r}, Path({root!r}))
    dataset = case.dataset()
    if {place!r} == "waiting":
        dataset = Slow({root!r}, TRAIN)
    loader = case.loader(dataset, shuffle=False)
    while True:
        for batch in loader:
            if loader.stats()["batches"] == 1:
                print(json.dumps([os.getpid(), *children()]), flush=True)
            elif {place!r} == "training":
                time.sleep(60)
"""
"""``running``: batches, and epochs, one after the other. ``waiting``: for a worker. ``training``: in the script."""


def alive(pids: list[int]) -> list[int]:
    """Those that run, zombies left out: who collects them is not our affair."""
    found = []
    for pid in pids:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z":
                found.append(pid)
        except OSError:
            pass
    return found


SENT = [
    *(("torch", "tar", "running", sent) for sent in ("SIGINT", "SIGINT to all", "SIGTERM")),
    *(("torch", "tar", "waiting", sent) for sent in ("SIGINT", "SIGINT to all", "SIGTERM", "SIGKILL to all")),
    *(("torch", "tar", "training", sent) for sent in ("SIGINT to all", "SIGTERM to all")),
    *(("dali", "folder", "running", sent) for sent in ("SIGINT", "SIGTERM")),
]


@pytest.mark.part("engine", "kind", "place", "sent", of=5)
@pytest.mark.parametrize(("engine", "kind", "place", "sent"), SENT)
def test_a_signal_ends_everything(
    engine: str, kind: str, place: str, sent: str, warm: Interpreter, numbered: Path, tmp_path: Path, device: str
) -> None:
    script = textwrap.dedent(SCRIPT).format(
        tests=str(TESTS), engine=engine, kind=kind, device=device, root=str(numbered), place=place
    )
    env = {**os.environ, "TMPDIR": str(tmp_path)}
    # An interrupt within Python's own open() or socket.__init__() leaves a file open.
    with warm.start(code=script, env=env, warn=[*QUIET, "ignore::ResourceWarning"], session=True) as process:
        pids = [process.pid]
        try:
            pids = json.loads(process.line())
            assert len(pids) == (3 if kind == "tar" else 1)
            time.sleep(0.4)  # into later batches; the slow one waits for its fifth
            number = signal.Signals[sent.split()[0]]
            (os.killpg if sent.endswith("all") else os.kill)(pids[0], number)
            process.wait(30)
            until = time.monotonic() + PATIENCE
            while alive(pids) and time.monotonic() < until:
                time.sleep(0.02)
            assert alive(pids) == []
            assert process.returncode == -number
        finally:
            for pid in alive(pids):
                os.kill(pid, signal.SIGKILL)
        said = process.said
    if number == signal.SIGINT:
        assert said.count("Traceback") == 1 and said.rstrip().endswith("KeyboardInterrupt"), said
    else:
        assert said == ""


HERE, WORKERS = ("torch", "folder"), ("torch", "tar")
FOLDER, WHOLE = ("dali", "folder"), ("dali whole", "folder")

PLACES: dict[str, tuple[Any, str, int, list[tuple[str, str]]]] = {
    "begin": (planned.PlannedSession, "begin", 1, [HERE, WORKERS, FOLDER]),
    "plan": (planning.EpochPlan, "__getitem__", 3, [WORKERS, FOLDER]),
    "stream": (plan_stream.PlanStream, "__next__", 3, [HERE, WORKERS, FOLDER]),
    "end": (running.Running, "hand_on", 1, [FOLDER]),
    "go on": (plan_stream.PlanStream, "go_on", 1, [FOLDER]),
    "gone on": (running.Running, "hand_on", 2, [FOLDER]),
    "deliver": (iteration.EpochIterator, "_deliver", 3, [HERE, WORKERS, FOLDER]),
    "dali run": (dali.DaliEngine, "run", 1, [FOLDER]),
    "dali graph": (dali, "build_graph", 1, [FOLDER]),
    "dali schedule": (dali.DaliEngine, "schedule", 3, [FOLDER]),
    "dali pieces": (Runner, "add", 3, [FOLDER, WHOLE]),
    "dali feed graph": (Runner, "_begin", 3, [WHOLE]),
    "dali get": (Runner, "get", 3, [WHOLE]),
    "dali outputs": (Runner, "outputs", 3, [WHOLE]),
    "dali changed": (executors, "_changed", 3, [WHOLE]),
    "dali host": (ImageThreads, "start", 3, [FOLDER]),
    "dali host result": (Making, "result", 3, [FOLDER]),
    "dali wait": (dali.DaliEngine, "wait", 3, [FOLDER, WHOLE]),
    "dali finish": (dali.DaliEngine, "finish", 3, [FOLDER, WHOLE]),
    "dali feed": (paths.PathReader, "_load", 3, [FOLDER]),
    "torch tail": (reference, "finish_plan", 3, [HERE, WORKERS]),
    "start": (workers.Workers, "_made", 1, [HERE, WORKERS]),
    "leave": (bottleneck.Meter, "leave", 3, [HERE, WORKERS, FOLDER]),
    "items": (workers, "_items", 1, [WORKERS]),
    "job": (jobs.Decode, "_applied", 13, [HERE]),
    "message": (processes.WorkerIterator, "_try_get_data", 3, [WORKERS]),
    "started": (processes.WorkerIterator, "_reset", 1, [WORKERS]),
}
"""Functions of ours, which of their calls is interrupted, and in what (engine, kind of dataset)."""


def interrupt_once(patch: pytest.MonkeyPatch, place: str, when: str) -> list[int]:
    """Raise KeyboardInterrupt before or after a call of a function of ours. The list tells how often it did."""
    owner, name, call, _ = PLACES[place]
    real, calls, raised, mine = getattr(owner, name), [0], [], os.getpid()

    def interrupted(*args: Any, **kwargs: Any) -> Any:
        calls[0] += os.getpid() == mine
        now = calls[0] == call and not raised and os.getpid() == mine
        if now and when == "before":
            raised.append(1)
            raise KeyboardInterrupt
        result = real(*args, **kwargs)
        if now:
            raised.append(1)
            raise KeyboardInterrupt
        return result

    patch.setattr(owner, name, interrupted)
    return raised


@pytest.mark.slow
@pytest.mark.part("place", "engine", "kind", "when", of=9)
@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(
    ("place", "engine", "kind"), [(place, *where) for place, (*_, wheres) in PLACES.items() for where in wheres]
)
def test_an_interrupt_anywhere_leaves_nothing_and_the_next_epoch_is_right(
    place: str, engine: str, kind: str, when: str, device: str, numbered: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a notebook, where the script goes on."""
    notebook = Case(engine, kind, device, numbered)
    wanted = wanted_of(notebook)
    gc.collect()
    before, threads = children(), python_threads()
    with notebook.loader() as loader:
        with monkeypatch.context() as patch:
            raised = interrupt_once(patch, place, when)
            with pytest.raises(KeyboardInterrupt):
                list(chain(loader, loader))
            assert raised
            assert settled(lambda: children() - before, set())
            assert settled(python_threads, threads)
        loader.set_epoch(1)
        assert same(list(loader), wanted)


def test_an_interrupt_as_soon_as_workers_have_begun(numbered: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They belong to the loader by then, not to the traceback alone."""
    interrupt_after(monkeypatch, workers._Loader, "_get_iterator")
    before = children()
    with Case("torch", "tar", "cpu", numbered).loader() as loader:
        with pytest.raises(KeyboardInterrupt) as caught:
            next(iter(loader))
        assert children() == before
        assert caught


def wanted_of(case: Case, epoch: int = 1) -> list[Any]:
    """An epoch, from a loader that nobody disturbed."""
    return undisturbed(epoch, case.engine, case.kind, case.device, case.root)


@cache
def undisturbed(epoch: int, *of_case: Any) -> list[Any]:
    case = Case(*of_case)
    with case.loader(num_workers=case.workers if case.kind in ("folder", "tar") else 0) as clean:
        clean.set_epoch(epoch)
        return list(clean)


class Stuck(ImageFolder):
    """Its last sample never comes, until it is let go."""

    def __init__(self, root: Path, free: Path):
        super().__init__(root, TRAIN)
        self.free = free

    def fetch(self, index: int) -> Any:
        while index == len(self) - 1 and not self.free.exists():
            time.sleep(0.1)
        return super().fetch(index)


def test_control_c_while_waiting_for_a_stuck_worker(numbered: Path, tmp_path: Path, device: str) -> None:
    def load(free: Path, workers: int = 2) -> DataLoader:
        given: Any = {"batch_size": BATCH, "shuffle": True, "seed": SEED, "engine": "torch", "device": device}
        return DataLoader(Stuck(numbered, free), num_workers=workers, **given)

    before, threads = children(), python_threads()
    loader = load(tmp_path / "free")
    timer = threading.Timer(0.7, lambda: os.kill(os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        list(loader)
    timer.join()
    assert settled(lambda: children() - before, set()) and settled(python_threads, threads)
    (tmp_path / "free").touch()
    with loader, load(tmp_path / "free", 0) as other:
        other.set_epoch(1)
        loader.set_epoch(1)
        assert same(list(loader), list(other))


@pytest.mark.timeout(90)  # the worker is stuck for good
def test_close_does_not_wait_for_a_stuck_worker(numbered: Path, tmp_path: Path, device: str) -> None:
    before = children()
    loader = DataLoader(Stuck(numbered, tmp_path / "never"), BATCH, num_workers=2, engine="torch", device=device)
    next(iter(loader))
    time.sleep(0.3)
    loader.close()
    assert children() == before


@pytest.mark.parametrize("engine", ["null"])
def test_nothing_runs_when_an_iterator_that_has_ended_goes(engine: Any, numbered: Path) -> None:
    """A KeyboardInterrupt that came then would be lost: Python swallows what finalizers raise."""
    with Case(engine, "arrays", "cpu", numbered).loader() as loader:
        iterator = iter(loader)
        list(iterator)
        ran = list[str]()
        sys.setprofile(lambda frame, event, _: ran.append(frame.f_code.co_name) if event == "call" else None)
        try:
            del iterator
        finally:
            sys.setprofile(None)
    assert ran == []
