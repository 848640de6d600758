"""What a part that must not be left half way does with signals."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from gpupipe.signal_handlers import deferred


class Told(Exception):
    pass


@pytest.fixture
def heard() -> Iterator[list[int]]:
    """The numbers that the script's handlers were called with. That of SIGUSR1 raises."""
    came: list[int] = []

    def one(number: int, frame: Any) -> None:
        came.append(number)
        raise Told

    def two(number: int, frame: Any) -> None:
        came.append(number)

    before = [signal.signal(signal.SIGUSR1, one), signal.signal(signal.SIGUSR2, two)]
    yield came
    assert signal.signal(signal.SIGUSR1, before[0]) is one
    assert signal.signal(signal.SIGUSR2, before[1]) is two


def test_handlers_run_at_the_end_all_of_them_and_in_their_order(heard: list[int]) -> None:
    sent = [signal.SIGUSR1, signal.SIGUSR2, signal.SIGUSR1]

    @deferred()
    def part() -> None:
        for number in sent:
            signal.raise_signal(number)
        assert heard == []

    with pytest.raises(Told):
        part()
    assert heard == sent


def test_a_signal_that_another_thread_was_given(heard: list[int]) -> None:
    @deferred()
    def part() -> None:
        thread = threading.Thread(target=signal.raise_signal, args=(signal.SIGUSR1,))
        thread.start()
        thread.join()
        assert heard == []

    with pytest.raises(Told):
        part()
    assert heard == [signal.SIGUSR1]


def test_one_within_another(heard: list[int]) -> None:
    @deferred()
    def part() -> None:
        with deferred():
            signal.raise_signal(signal.SIGUSR2)
        assert heard == []

    part()
    assert heard == [signal.SIGUSR2]


def test_a_process_that_is_forked_within_has_the_scripts_handlers(heard: list[int]) -> None:
    """But for Ctrl-C, which the process handles that forked it."""
    handlers = [signal.getsignal(number) for number in (signal.SIGUSR1, signal.SIGUSR2)]

    def same() -> None:
        signal.raise_signal(signal.SIGINT)
        os._exit([signal.getsignal(number) for number in (signal.SIGUSR1, signal.SIGUSR2)] != handlers)

    with deferred(), deferred():
        process = multiprocessing.get_context("fork").Process(target=same)
        process.start()
        process.join()
        assert process.exitcode == 0
    assert heard == []


def test_what_the_part_itself_raises_is_not_lost(heard: list[int]) -> None:
    @deferred()
    def part() -> None:
        signal.raise_signal(signal.SIGUSR2)
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        part()
    assert heard == [signal.SIGUSR2]


def test_other_threads_have_no_handlers(heard: list[int]) -> None:
    ours = signal.getsignal(signal.SIGUSR1)
    seen = []

    def look() -> None:
        with deferred():
            seen.append(signal.getsignal(signal.SIGUSR1))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert seen == [ours]


THREADS = """
import signal, threading, time
import torch
from gpupipe.reading.torch_threads import torch_threads

class Told(Exception):
    pass

def tell(number, frame):
    raise Told

signal.signal(signal.SIGUSR1, tell)
theirs, number = torch.get_num_threads, torch.get_num_threads()

def interrupting():
    if threading.current_thread() is not threading.main_thread():
        signal.raise_signal(signal.SIGUSR1)
        time.sleep(0.05)
    return theirs()

torch.get_num_threads = interrupting
told = 0
for _ in range(3):
    try:
        torch_threads(3, "some")
    except Told:
        told += 1
until = time.monotonic() + 20
while len(threading.enumerate()) > 1 and time.monotonic() < until:
    time.sleep(0.01)
print(told, len(threading.enumerate()), theirs() == number)
"""


def test_threads_whose_start_is_interrupted_end() -> None:
    done = subprocess.run([sys.executable, "-c", THREADS], capture_output=True, text=True, timeout=120)
    assert (done.stdout, done.returncode) == ("3 1 True\n", 0), done.stderr
