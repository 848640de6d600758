"""Activity of worker processes: whether they work at all, and where in their code they are.

Without ``/proc``, which only Linux has, every worker counts as working, and stacks are unknown.
"""

from __future__ import annotations

import faulthandler
import os
import re
import signal
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

PATIENCE = 60.0
"""Seconds without a batch before workers are inspected."""

_NAME = "gpupipe-stack"
_SIGNAL = getattr(signal, "SIGRTMAX", 0) - 3
"""A signal without a meaning, which scripts do not use."""
_SWITCHES, _SHARE = 5.0, 0.01
"""Wake-ups per second, and share of a processor, below which a process counts as waiting. A worker's own watch wakes up
twice a second."""
_ANSWER = 0.5
"""Seconds that a worker has to write its stack."""
_KEPT: list[int] = []
"""File descriptor of this process's stack, which must stay open."""


def show_stack_on_request() -> None:
    """Make this worker write its stack to a file in memory when :func:`stack_of` asks, from C and without Python's
    lock."""
    if hasattr(os, "memfd_create") and hasattr(faulthandler, "register"):
        file = os.memfd_create(_NAME)
        faulthandler.register(_SIGNAL, file, all_threads=True, chain=False)
        while _KEPT:  # inherited from the worker that forked this process
            os.close(_KEPT.pop())
        _KEPT.append(file)


def stack_of(pid: int) -> str:
    """Return the stack of a worker's main thread, innermost function first, or why it is unknown."""
    if _state(pid) in "tT":
        return "  it is stopped (by SIGSTOP or a debugger)"
    found = _file_of_stack(pid)
    if found is None or not _catches(pid):
        return "  its stack is unknown"
    before = _size(found)
    with suppress(OSError):
        os.kill(pid, _SIGNAL)
    until = time.monotonic() + _ANSWER
    while time.monotonic() < until:
        size = _size(found)
        time.sleep(0.02)
        # The stack is complete when the file has stopped growing.
        if size > before and _size(found) == size:
            break
    with suppress(OSError):
        return _of_main_thread(found.read_bytes()[before:].decode(errors="replace"))
    return "  its stack is unknown"


def _of_main_thread(text: str) -> str:
    """Return the main thread's part of faulthandler's output, which begins with the youngest thread."""
    blocks = [block for block in text.strip().split("\n\n") if block]
    current = [block for block in blocks if block.startswith("Current thread")] or blocks[-1:]
    return "\n".join(current[0].splitlines()[1:]) if current else "  it does not answer"


def _file_of_stack(pid: int) -> Path | None:
    with suppress(OSError):
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with suppress(OSError):
                if os.readlink(link).startswith(f"/memfd:{_NAME}"):
                    return link
    return None


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _status(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return ""


def _state(pid: int) -> str:
    found = re.search(r"^State:\s*(\S)", _status(pid), re.MULTILINE)
    return found[1] if found else "?"


def _catches(pid: int) -> bool:
    """Return whether the process catches the signal, which would otherwise end it."""
    found = re.search(r"^SigCgt:\s*(\S+)", _status(pid), re.MULTILINE)
    return found is not None and bool(int(found[1], 16) >> (_SIGNAL - 1) & 1)


@dataclass(frozen=True)
class _Work:
    """Work done so far by a process, its threads and its children."""

    switches: int = 0
    """Number of times that the system scheduled one of them."""
    seconds: float = 0.0
    """Processor time."""

    def __add__(self, other: _Work) -> _Work:
        return _Work(self.switches + other.switches, self.seconds + other.seconds)


def _work(pid: int) -> _Work:
    done = _Work()
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            with suppress(OSError):
                done += _Work(sum(map(int, re.findall(r"ctxt_switches:\s*(\d+)", (task / "status").read_text()))))
                for child in (task / "children").read_text().split():
                    done += _work(int(child))
        # Fields 14 and 15 of proc_pid_stat(5) are utime and stime. Split after the name, which may contain spaces; two
        # fields come before that.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        done += _Work(0, (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK"))
    return done


class Patience:
    """Finds workers that were inactive during a long wait.

    It counts the time that the caller waited, not clock time: a script that was stopped for an hour, with its workers,
    has not waited.
    """

    def __init__(self, seconds: float | None = None):
        self.seconds = PATIENCE if seconds is None else seconds
        self._waited = 0.0
        self._before: dict[int, _Work] = {}

    def came(self) -> None:
        """Reset, because something arrived."""
        self._waited = 0.0
        self._before = {}

    def waited(self, seconds: float, pids: Iterable[int]) -> list[int] | None:
        """Count seconds in which nothing arrived. Return the inactive processes once patience has run out, otherwise
        ``None``."""
        if not self._before:
            self._before = {pid: _work(pid) for pid in pids}
            return None
        self._waited += seconds
        if self._waited < self.seconds:
            return None
        idle = [pid for pid, work in self._before.items() if self._is_little(work, _work(pid))]
        self.came()
        return idle

    def _is_little(self, before: _Work, now: _Work) -> bool:
        if not Path("/proc/self/task").exists():
            return False
        switches, seconds = now.switches - before.switches, now.seconds - before.seconds
        return switches <= 2 + _SWITCHES * self._waited and seconds <= 0.02 + _SHARE * self._waited
