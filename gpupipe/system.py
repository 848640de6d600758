"""What Linux says of memory and of processes; ``None``, 0 or nothing if it does not say."""

from __future__ import annotations

import ctypes
import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

__all__ = [
    "ProcessMemory",
    "cgroup_limit",
    "children",
    "cpu_seconds",
    "memory_available",
    "memory_limit",
    "process",
    "shm_free",
    "shm_size",
    "trim",
]

_PROC, _CGROUPS, _SHM = Path("/proc"), Path("/sys/fs/cgroup"), Path("/dev/shm")


def memory_limit() -> int | None:
    """Bytes that this process may have at most: the machine's or, if that is less, its container's; and all swap.

    An upper bound, for deciding what can never fit; other processes have their part of it.
    """
    found = _fields(_PROC / "meminfo")
    if "MemTotal" not in found:
        return None
    return min(found["MemTotal"], cgroup_limit() or found["MemTotal"]) + found.get("SwapTotal", 0)


def cgroup_limit() -> int | None:
    """The smallest memory limit, in bytes, of the control groups that this process is in; swap not counted."""
    limits = []
    for line in _lines(_PROC / "self/cgroup"):
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        # Version 1 names its controllers, version 2 has them all in one tree.
        root, name = (_CGROUPS / "memory", "memory.limit_in_bytes") if controllers else (_CGROUPS, "memory.max")
        group = root / path.lstrip("/")
        for folder in (group, *group.parents):  # in a container the group is hidden, and the mounted root is it
            with suppress(OSError, ValueError):  # not there, or "max"
                limits.append(int((folder / name).read_text()))
            if folder == root:
                break
    return min(limits, default=None)


def shm_size() -> int | None:
    """Size of /dev/shm in bytes, where worker processes put their batches; ``None`` if there is none, or no limit."""
    with suppress(OSError):
        stat = os.statvfs(_SHM)
        return stat.f_blocks * stat.f_frsize or None
    return None


def shm_free() -> int | None:
    """Bytes of /dev/shm that are free; ``None`` if there is none."""
    with suppress(OSError):
        stat = os.statvfs(_SHM)
        return stat.f_bavail * stat.f_frsize
    return None


def memory_available() -> int | None:
    """Bytes of the machine that processes could take now without swapping."""
    return _fields(_PROC / "meminfo").get("MemAvailable")


# ---- processes


@dataclass(frozen=True)
class ProcessMemory:
    """Bytes of a process. Shared pages count whole in ``rss``, by share in ``pss``, not at all in ``uss``."""

    rss: int
    pss: int
    uss: int


def process(pid: int | None = None) -> ProcessMemory | None:
    """The memory of a process, this one by default; ``None`` if it cannot be read or has ended."""
    found = _fields(_PROC / str(pid or os.getpid()) / "smaps_rollup")
    if "Pss" not in found:
        return None
    return ProcessMemory(found["Rss"], found["Pss"], found["Private_Clean"] + found["Private_Dirty"])


def children(pid: int | None = None) -> list[int]:
    """All living processes that descend from one, this one by default."""
    below: dict[int, list[int]] = {}
    with suppress(OSError):
        for other in (int(entry) for entry in os.listdir(_PROC) if entry.isdigit()):
            state, parent, *_ = _stat(other) or ("Z", "0")
            if state != "Z":  # ended, and only its parent has not asked how
                below.setdefault(int(parent), []).append(other)
    found = [pid or os.getpid()]
    for one in found:
        found += below.get(one, [])
    return found[1:]


def cpu_seconds(pid: int | None = None) -> float:
    """User and system time, so far, of a process and of all living ones that descend from it; this one by default."""
    family = (pid or os.getpid(), *children(pid))
    return sum(int(ticks) for one in family for ticks in _stat(one)[11:13]) / os.sysconf("SC_CLK_TCK")


def _stat(pid: int) -> list[str]:
    """The fields of ``/proc/PID/stat`` from the third one on, the state."""
    return "".join(_lines(_PROC / str(pid) / "stat")).rpartition(")")[2].split()


def _fields(file: Path) -> dict[str, int]:
    """Bytes by name, from lines like ``MemTotal:  24541700 kB``."""
    rows = (line.split() for line in _lines(file) if line.endswith(" kB"))
    return {row[0].rstrip(":"): int(row[1]) * 1024 for row in rows}


def _lines(file: Path) -> list[str]:
    with suppress(OSError):
        return file.read_text().splitlines()
    return []


def trim() -> None:
    """Give freed memory back to the system; takes some milliseconds.

    Threads that allocate and free images of changing sizes leave holes in malloc's arenas, and it keeps up to 64 MB at
    the end of each. The holes are used again, so they grow no further; but nothing else returns them.
    """
    function = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if function is not None:
        function(0)
