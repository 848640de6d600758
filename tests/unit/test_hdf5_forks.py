"""Rows that h5py reads, while the process forks: nothing waits for ever, and no signal is lost."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

h5py = pytest.importorskip("h5py")

SCRIPT = """
import os, signal, sys, threading, time, warnings
from gpupipe.formats.hdf5_arrays import H5Rows

warnings.simplefilter("ignore", DeprecationWarning)  # a fork beside threads is what this is about
rows = H5Rows(sys.argv[1], (16, 8, 8, 3), "images")
wanted = [rows[i].sum() for i in range(16)]  # h5py is imported here: which hook of a fork runs first depends on it

def child():
    pid = os.fork()
    if not pid:
        signal.alarm(10)
        right = [rows[i].sum() for i in range(16)] == wanted
        os._exit(0 if right else 1)
    return pid

def ended(pid):
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
"""

READERS = """
done = threading.Event()

def read():
    while not done.is_set():
        assert [rows[i].sum() for i in range(16)] == wanted

threads = [threading.Thread(target=read, daemon=True) for _ in range(3)]
for thread in threads:
    thread.start()
for _ in range(30):
    ended(child())
done.set()
for thread in threads:
    thread.join()
print("done")
"""

SIGNAL = """
from h5py._objects import phil

class Told(Exception):
    pass

def tell(number, frame):
    raise Told

signal.signal(signal.SIGALRM, tell)
reads = threading.Event()

def slow():
    with phil:  # what h5py holds while it reads a large chunk from a slow disk
        reads.set()
        time.sleep(0.6)

for _ in range(3):
    reads.clear()
    threads = [threading.Thread(target=slow), threading.Thread(target=rows.__getitem__, args=(3,))]
    threads[0].start()
    reads.wait()
    threads[1].start()
    pids = []
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.2)
        pids.append(child())
        time.sleep(1)
    except Told:
        print("told")
    for thread in threads:
        thread.join()
    for pid in pids:
        ended(pid)
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        pixels = np.random.default_rng(0).integers(0, 256, (16, 8, 8, 3), np.uint8)
        file.create_dataset("images", data=pixels, chunks=(4, 8, 8, 3), compression="gzip")
    return tmp_path / "a.h5"


def run(script: str, path: Path) -> Any:
    done = subprocess.run([sys.executable, "-c", SCRIPT + script, path], capture_output=True, text=True, timeout=60)
    assert done.stderr == ""
    return done.stdout


def test_forks_while_threads_read(path: Path) -> None:
    assert run(READERS, path) == "done\n"


def test_what_a_handler_raises_while_a_fork_waits_for_a_reader_reaches_the_script(path: Path) -> None:
    assert run(SIGNAL, path) == "told\n" * 3
