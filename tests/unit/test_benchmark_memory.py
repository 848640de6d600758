"""What benchmarks call memory: batches in a queue of worker processes are memory, though no process has them mapped."""

from __future__ import annotations

import mmap
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SIZE = 64 << 20


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> Callable[[], dict[str, float]]:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    from _common import memory_mb

    return lambda: memory_mb(os.getpid())


def test_shared_memory_counts_once_whether_it_is_mapped_or_not(memory: Callable[[], dict[str, float]]) -> None:
    before = memory()
    with tempfile.TemporaryFile(dir="/dev/shm") as file:
        os.posix_fallocate(file.fileno(), 0, SIZE)
        queued = memory()
        with mmap.mmap(file.fileno(), SIZE) as mapped:
            mapped[::4096] = bytes(SIZE // 4096)
            held = memory()
    for kind in ("pss", "uss", "own"):
        # What the process shares with others counts anew when one of them ends, so the sums move by a few megabytes.
        assert queued[kind] - before[kind] == pytest.approx(SIZE / 1024 / 1e3, abs=20), kind
        assert held[kind] - before[kind] == pytest.approx(SIZE / 1024 / 1e3, abs=20), kind
