"""What is seen of a worker process from outside."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from support import settled

from gpupipe.reading.worker_activity import Patience, show_stack_on_request, stack_of

pytestmark = [
    pytest.mark.skipif(not os.path.exists("/proc/self/task"), reason="there is no /proc"),
    pytest.mark.filterwarnings("ignore:.*is multi-threaded, use of fork"),
]

FORK: Any = multiprocessing.get_context("fork")


def asleep() -> None:
    show_stack_on_request()
    time.sleep(60)


def in_a_worker_of_a_worker() -> None:
    show_stack_on_request()
    asleep()


def computing() -> None:
    while True:
        pass


def polling() -> None:
    while True:
        time.sleep(0.01)


def waiting_for_a_child() -> None:
    pid = os.fork()
    if not pid:
        computing()
    os.waitpid(pid, 0)


@contextmanager
def process(target: Callable[[], None]) -> Iterator[int]:
    process = FORK.Process(target=target, daemon=True)
    process.start()
    try:
        yield process.pid
    finally:
        for child in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split():
            os.kill(int(child), 9)
        process.kill()
        process.join()


@pytest.mark.parametrize("where", [asleep, in_a_worker_of_a_worker])
def test_the_stack_names_the_innermost_function(where: Callable[[], None]) -> None:
    with process(where) as pid:
        assert settled(lambda: "in asleep" in stack_of(pid).partition("\n")[0], True)
        assert "in asleep" in stack_of(pid)  # once more


def test_a_process_that_would_die_of_it_is_not_asked() -> None:
    with process(computing) as pid:
        assert "unknown" in stack_of(pid)
        assert "unknown" in stack_of(2**22 + 1)


@pytest.mark.parametrize(
    ("work", "idle"), [(asleep, True), (computing, False), (polling, False), (waiting_for_a_child, False)]
)
def test_who_does_nothing(work: Callable[[], None], idle: bool) -> None:
    with process(work) as pid:
        time.sleep(0.1)
        patience = Patience(0.3)
        assert patience.waited(0.3, [pid]) is None
        time.sleep(0.3)
        assert patience.waited(0.2, [pid]) is None
        assert patience.waited(0.1, [pid]) == ([pid] if idle else [])


def test_what_comes_makes_patience_new() -> None:
    patience = Patience(0.3)
    me = [os.getpid()]
    patience.waited(0, me)
    assert patience.waited(0.2, me) is None
    patience.came()
    patience.waited(0, me)
    assert patience.waited(0.2, me) is None
