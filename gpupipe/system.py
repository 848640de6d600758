"""Memory and processes as reported by Linux. Functions return ``None``, 0 or nothing if it reports nothing."""

from __future__ import annotations

import ctypes
import math
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_PROC, _CGROUPS, _SHM = Path("/proc"), Path("/sys/fs/cgroup"), Path("/dev/shm")


def memory_limit() -> int | None:
    """Return the bytes that this process may use at most: the smaller limit of machine and container, plus all swap.

    Other processes use a part of it.
    """
    found = _fields(_PROC / "meminfo")
    if "MemTotal" not in found:
        return None
    return min(found["MemTotal"], cgroup_limit() or found["MemTotal"]) + found.get("SwapTotal", 0)


def cgroup_limit() -> int | None:
    """Return the smallest memory limit in bytes among the control groups of this process, without swap."""
    limits = []
    for folder, first in _groups("memory"):
        with suppress(OSError, ValueError):  # missing, or "max"
            limits.append(int((folder / ("memory.limit_in_bytes" if first else "memory.max")).read_text()))
    return min(limits, default=None)


def _groups(controller: str) -> Iterator[tuple[Path, bool]]:
    """Yield the control groups of this process that have a controller, and whether they are of version 1."""
    for line in _lines(_PROC / "self/cgroup"):
        _, controllers, path = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        # Version 1 names its controllers; version 2 has one tree for all.
        root = _CGROUPS / controller if controllers else _CGROUPS
        group = root / path.lstrip("/")
        for folder in (group, *group.parents):  # in a container the group is hidden, and is mounted as the root
            yield folder, bool(controllers)
            if folder == root:
                break


def cores() -> int:
    """Return how many processors this process may use at once: those it may run on, or fewer by the limit of a control
    group."""
    most = len(os.sched_getaffinity(0))
    for folder, first in _groups("cpu"):
        with suppress(OSError, ValueError, ZeroDivisionError):  # missing, or "max"
            if first:
                quota, period = (int((folder / f"cpu.cfs_{name}_us").read_text()) for name in ("quota", "period"))
            else:
                quota, period = map(int, (folder / "cpu.max").read_text().split())
            if quota > 0:
                most = min(most, max(math.ceil(quota / period), 1))
    return most


def shm_size() -> int | None:
    """Return the size in bytes of /dev/shm, where worker processes store batches; ``None`` if it is missing or
    unlimited."""
    with suppress(OSError):
        stat = os.statvfs(_SHM)
        return stat.f_blocks * stat.f_frsize or None
    return None


def shm_free() -> int | None:
    """Return the free bytes of /dev/shm, or ``None`` if it is missing."""
    with suppress(OSError):
        stat = os.statvfs(_SHM)
        return stat.f_bavail * stat.f_frsize
    return None


@cache
def most_maps() -> int:
    """Return how many regions of memory Linux lets a process map."""
    with suppress(OSError, ValueError):
        return int((_PROC / "sys/vm/max_map_count").read_text())
    return 0


def memory_available() -> int | None:
    """Return the bytes that processes could use now without swapping."""
    return _fields(_PROC / "meminfo").get("MemAvailable")


# ---- processes


@dataclass(frozen=True)
class ProcessMemory:
    """Memory of a process in bytes. ``rss`` counts shared pages fully, ``pss`` by share, ``uss`` not at all."""

    rss: int
    pss: int
    uss: int


def process(pid: int | None = None) -> ProcessMemory | None:
    """Return the memory of a process, by default this one; ``None`` if it ended or cannot be read."""
    found = _fields(_PROC / str(pid or os.getpid()) / "smaps_rollup")
    if "Pss" not in found:
        return None
    return ProcessMemory(found["Rss"], found["Pss"], found["Private_Clean"] + found["Private_Dirty"])


def children(pid: int | None = None) -> list[int]:
    """Return all living descendants of a process, by default this one."""
    below: dict[int, list[int]] = {}
    with suppress(OSError):
        for other in (int(entry) for entry in os.listdir(_PROC) if entry.isdigit()):
            state, parent, *_ = _stat(other) or ("Z", "0")
            if state != "Z":  # not a zombie
                below.setdefault(int(parent), []).append(other)
    found = [pid or os.getpid()]
    # The list grows while it is read, up to the last descendants.
    for one in found:
        found += below.get(one, [])
    return found[1:]


def cpu_seconds(pid: int | None = None) -> float:
    """Return the user and system time used by a process, by default this one, and its living descendants."""
    family = (pid or os.getpid(), *children(pid))
    # Fields 14 and 15: ticks in user and in system mode.
    return sum(int(ticks) for one in family for ticks in _stat(one)[11:13]) / os.sysconf("SC_CLK_TCK")


def _stat(pid: int) -> list[str]:
    """Return the fields of ``/proc/PID/stat`` from the third one, the state."""
    # Before it comes the program's name in parentheses, which may contain spaces and parentheses.
    return "".join(_lines(_PROC / str(pid) / "stat")).rpartition(")")[2].split()


def _fields(file: Path) -> dict[str, int]:
    """Parse lines like ``MemTotal:  24541700 kB`` into bytes by name."""
    rows = (line.split() for line in _lines(file) if line.endswith(" kB"))
    return {row[0].rstrip(":"): int(row[1]) * 1024 for row in rows}


def _lines(file: Path) -> list[str]:
    with suppress(OSError):
        return file.read_text().splitlines()
    return []


def trim() -> None:
    """Return freed memory to the system, which takes some milliseconds.

    Threads that allocate and free images of changing sizes leave holes in malloc's arenas, and malloc keeps up to 64 MB
    at the end of each. Holes are reused, so they stop growing, but nothing else returns them.
    """
    function = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if function is not None:
        function(0)
