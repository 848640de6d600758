"""Starting, stopping and leaving: no thread, process, reference cycle or message is left behind."""

from __future__ import annotations

import gc
import textwrap
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from interpreter import QUIET, Interpreter
from support import (
    Case,
    N,
    all_seen,
    children,
    in_a_child,
    native_session,
    native_threads,
    python_threads,
    seen,
    settled,
)  # fmt: skip

from gpupipe import DataLoader

pytestmark = pytest.mark.usefixtures("many_torch_threads")

TESTS = Path(__file__).resolve().parents[1]


@pytest.fixture
def no_collector() -> Iterator[None]:
    """Only reference counts free anything."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def resting() -> tuple[set[str], int, set[int]]:
    """(Python's threads, the number of all threads, child processes), once nothing is ending any more."""
    before, since = None, time.monotonic()
    while True:
        now = python_threads(), native_threads(), children()
        if now != before:
            before, since = now, time.monotonic()
        elif time.monotonic() - since > 0.15:
            return now
        time.sleep(0.01)


def test_constructing_starts_nothing(case: Case) -> None:
    case.loader().close()  # whatever libraries start for good
    threads, native, processes = resting()
    loader = case.loader()
    len(loader)
    repr(loader)
    loader.state_dict()
    assert python_threads() == threads
    assert native_threads() == native
    assert children() == processes


def test_close_leaves_no_thread_and_no_process(case: Case) -> None:
    with case.loader() as warm:  # torch's own pool of threads stays for ever
        list(warm)
    gc.collect()
    threads, native, processes = resting()
    loader = case.loader()
    batch = next(iter(loader))  # in the middle of an epoch
    if case.kind == "tar" and case.engine == "torch":
        assert len(children() - processes) == 2
    loader.close()
    assert settled(python_threads, threads)
    assert settled(lambda: children() - processes, set())
    if case.device == "cpu":  # CUDA keeps threads of its own
        assert settled(native_threads, native), f"{native_threads()} threads instead of {native}"
    assert len(seen(batch)) == 5  # what was handed out lives on


def test_dropping_a_loader_frees_it_without_the_collector(case: Case, no_collector: None) -> None:
    with case.loader() as warm:
        list(warm)
    case.made.clear()
    _, native, processes = resting()
    loader = case.loader()
    case.made.clear()
    iterator = iter(loader)
    next(iterator)
    running = native_session(loader).running.engine
    assert running is not None
    gone, engine = weakref.ref(loader), weakref.ref(running)
    del running
    del loader
    assert engine() is not None  # the iterator keeps it
    next(iterator)
    del iterator
    assert gone() is None, f"a reference cycle: {gc.get_referrers(gone())}"
    assert engine() is None, f"a reference cycle: {gc.get_referrers(engine())}"
    assert settled(lambda: children() - processes, set())
    if case.device == "cpu":
        del warm
        assert settled(native_threads, native)


def test_dropping_an_exhausted_loader_frees_it(case: Case, no_collector: None) -> None:
    loader = case.loader()
    case.made.clear()
    list(loader)
    gone = weakref.ref(loader)
    del loader
    assert gone() is None


def test_the_loop_alone_keeps_the_loader(case: Case) -> None:
    arguments = {"batch_size": 5, "num_workers": case.workers, "engine": case.engine, "device": case.device}
    got = [i for batch in DataLoader(case.dataset(), **arguments) for i in seen(batch)]
    assert got == list(range(N))


def test_close_twice_and_iterate_after_close(case: Case) -> None:
    loader = case.loader()
    iterator = iter(loader)
    next(iterator)
    loader.close()
    loader.close()
    with pytest.raises(StopIteration):
        next(iterator)
    assert sorted(all_seen(loader)) == list(range(N))
    loader.close()


def test_close_before_anything(case: Case) -> None:
    loader = case.loader()
    loader.close()
    assert sorted(all_seen(loader)) == list(range(N))


def test_context_manager_closes_also_after_an_error(case: Case) -> None:
    processes = children()
    loader = case.loader()

    def script() -> None:
        with loader:
            for _ in loader:
                raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        script()
    assert settled(lambda: children() - processes, set())
    assert loader.state_dict()["delivered"] == 5


def test_workers_that_do_not_persist_end_with_the_epoch(case: Case) -> None:
    with case.loader() as warm:
        list(warm)
    _, native, processes = resting()
    loader = case.loader(persistent_workers=False)
    first = all_seen(loader)
    assert settled(lambda: children() - processes, set())
    if case.device == "cpu":
        assert settled(native_threads, native)
    assert sorted(first) == sorted(all_seen(loader)) == list(range(N))


def test_persistent_workers_are_the_same_in_the_next_epoch(decoding: Case) -> None:
    if (decoding.engine, decoding.kind) != ("torch", "tar"):
        pytest.skip("has no worker processes")
    before = children()
    loader = decoding.loader(persistent_workers=True)
    list(loader)
    first = children() - before
    list(loader)
    assert children() - before == first
    assert len(first) == 2


@pytest.mark.parametrize("end", ["runs out", "exits"])
@pytest.mark.parametrize(("engine", "kind"), [("torch", "tar"), ("dali", "folder")])
def test_interpreter_exit_with_a_live_iterator_is_silent(
    engine: str, kind: str, end: str, warm: Interpreter, numbered: Path, device: str
) -> None:
    last = {"runs out": "", "exits": "raise SystemExit(3)"}[end]
    script = f"""
        import sys
        sys.path.insert(0, {str(TESTS)!r})
        from pathlib import Path
        from support import Case
        case = Case({engine!r}, {kind!r}, {device!r}, Path({str(numbered)!r}))
        loader = case.loader(prefetch_factor=3)
        iterator = iter(loader)
        batch = next(iterator)
        other = case.loader()
        for kept in other:
            break
        print("reached the end")
        {last}
    """
    done = warm.run(code=textwrap.dedent(script), warn=QUIET)
    assert done.stderr == ""
    assert done.stdout.strip() == "reached the end"
    assert done.returncode == (3 if end == "exits" else 0)


def test_a_forked_child_never_deletes_what_dali_made(numbered: Path) -> None:
    """DALI's destructor waits for threads that the child does not have, and ends the process."""
    pytest.importorskip("nvidia.dali")
    loader = Case("dali", "folder", "cpu", numbered).loader()
    iterator = iter(loader)
    next(iterator)
    engine: Any = native_session(loader).running.engines[0]

    def delete() -> None:
        engine.runner._graph = None
        gc.collect()

    assert in_a_child(delete) == 0
