"""What the operating system says of memory: how much this process may have, what it has, and what malloc keeps of it.

Linux's own files, and glibc where it is there. Elsewhere the answers are ``None``, or psutil's where it is installed.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Malloc", "Process", "cgroup_limit", "children", "malloc", "memory_limit", "process", "shm_size", "trim"]

_PROC = Path("/proc")
_CGROUPS = Path("/sys/fs/cgroup")
_SHM = Path("/dev/shm")
_NO_LIMIT = 1 << 60
"""cgroup v1 says "no limit" by a number near 2^63."""


# ---- how much there is


def memory_limit() -> int | None:
    """Bytes that this process may have at most: the machine's memory and swap, or its container's where that is less.

    An upper bound, for deciding what can never fit; other processes have their part of it.
    """
    found = _fields(_PROC / "meminfo")
    if "MemTotal" not in found:
        return None
    return min(found["MemTotal"] + found.get("SwapTotal", 0), cgroup_limit(found.get("SwapTotal", 0)) or _NO_LIMIT)


def cgroup_limit(swap: int = 0) -> int | None:
    """The smallest limit of the control groups that this process is in, version 1 or 2; ``None`` where there is none.

    Args:
        swap: the machine's swap in bytes, which a group may use on top where nothing says that it may not.
    """
    limits = []
    for root, path in _groups():
        for folder in (path, *path.parents):
            # Version 1 counts memory and swap together in one file, version 2 apart.
            if (both := _number(folder / "memory.memsw.limit_in_bytes")) is not None:
                limits.append(both)
            elif (own := _number(folder / "memory.limit_in_bytes")) is not None:
                limits.append(own + swap)
            elif (own := _number(folder / "memory.max")) is not None:
                allowed = _number(folder / "memory.swap.max")
                limits.append(own + (swap if allowed is None else min(allowed, swap)))
            if folder == root:
                break
    return min(limits, default=None)


def _groups() -> Iterator[tuple[Path, Path]]:
    """(mounted root, this process's folder below it). In a container the folder may be hidden, and the root is it."""
    with contextlib.suppress(OSError):
        for line in (_PROC / "self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers and "memory" not in controllers.split(","):
                continue
            for root in (_CGROUPS / "memory",) if controllers else (_CGROUPS, _CGROUPS / "unified"):
                yield root, root / path.lstrip("/")


def _number(file: Path) -> int | None:
    try:
        value = int(file.read_text())
    except (OSError, ValueError):  # not there, or "max"
        return None
    return value if value < _NO_LIMIT else None


def shm_size() -> int | None:
    """Size of /dev/shm in bytes, where worker processes put their batches; ``None`` where there is none."""
    try:
        stat = os.statvfs(_SHM)
    except OSError:
        return None
    return stat.f_blocks * stat.f_frsize or None  # 0 of a file system without a limit


# ---- what processes have


@dataclass(frozen=True)
class Process:
    """Bytes of one process. Shared pages count whole in ``rss``, by share in ``pss``, not at all in ``uss``."""

    rss: int
    pss: int
    uss: int


def process(pid: int | None = None) -> Process | None:
    """The memory of a process, this one by default; ``None`` where it cannot be read or has ended."""
    pid = os.getpid() if pid is None else pid
    found = _fields(_PROC / str(pid) / "smaps_rollup")
    if "Pss" in found:
        return Process(found["Rss"], found["Pss"], found["Private_Clean"] + found["Private_Dirty"])
    with contextlib.suppress(Exception):  # not installed, or the process is somebody else's
        full = importlib.import_module("psutil").Process(pid).memory_full_info()
        return Process(full.rss, getattr(full, "pss", full.uss), full.uss)
    return None


def children(pid: int | None = None) -> list[int]:
    """All processes that descend from one, this one by default."""
    parents: dict[int, list[int]] = {}
    with contextlib.suppress(OSError):
        for entry in os.listdir(_PROC):
            if entry.isdigit():
                with contextlib.suppress(OSError):
                    stat = (_PROC / entry / "stat").read_text()
                    parents.setdefault(int(stat.rpartition(")")[2].split()[1]), []).append(int(entry))
    found = [os.getpid() if pid is None else pid]
    for one in found:
        found += parents.get(one, [])
    return found[1:]


def _fields(file: Path) -> dict[str, int]:
    """Bytes by name, from lines like ``MemTotal:  24541700 kB``."""
    found = {}
    with contextlib.suppress(OSError):
        for line in file.read_text().splitlines():
            name, _, rest = line.partition(":")
            if rest.endswith(" kB"):
                found[name] = int(rest.split()[0]) * 1024
    return found


# ---- glibc


@dataclass(frozen=True)
class Malloc:
    """Bytes of addresses that glibc's malloc has from the system."""

    used: int
    """Handed out."""
    free: int
    """Kept for what is asked for next. What :func:`trim` gave back is still counted here, until it is asked for."""


class _MallInfo2(ctypes.Structure):
    # Of these: hblkhd, mapped by itself; uordblks and fordblks, used and free in arenas.
    _names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
    _fields_ = [(name, ctypes.c_size_t) for name in _names.split()]


def _libc(name: str) -> ctypes._NamedFuncPointer | None:
    """A function of glibc's own; ``None`` with another C library, or an older one."""
    if not sys.platform.startswith("linux"):
        return None
    return getattr(ctypes.CDLL(None), name, None)


def malloc() -> Malloc | None:
    """What malloc has; ``None`` without glibc 2.33."""
    function = _libc("mallinfo2")
    if function is None:
        return None
    function.restype = _MallInfo2
    info = function()
    return Malloc(used=info.uordblks + info.hblkhd, free=info.fordblks)


def trim() -> None:
    """Give freed memory back to the system; takes some milliseconds.

    Threads that allocate and free images of changing sizes leave holes in malloc's arenas, and it keeps up to 64 MB
    at the end of each. The holes are used again, so they grow no further; but nothing else returns them.
    """
    function = _libc("malloc_trim")
    if function is not None:
        function(0)
