"""Finds the file that a piece of this process's memory is mapped from."""

from __future__ import annotations

from bisect import bisect_right

__all__ = ["MappedFiles"]


class MappedFiles:
    """Memory mappings of this process, read from ``/proc/self/maps``."""

    def __init__(self) -> None:
        self._ends: list[tuple[int, int, int, bytes]] = []
        with open("/proc/self/maps", "rb") as file:
            for line in file:
                parts = line.split(None, 5)
                if len(parts) < 6 or not parts[5].startswith(b"/"):
                    continue
                start, _, end = parts[0].partition(b"-")
                self._ends.append((int(start, 16), int(end, 16), int(parts[2], 16), _unescaped(parts[5].rstrip(b"\n"))))
        self._starts = [start for start, *_ in self._ends]

    def find(self, address: int, size: int) -> tuple[bytes, int] | None:
        """Return (file, position in it) for memory that is mapped from a file; ``None`` for other memory."""
        k = bisect_right(self._starts, address) - 1
        if k < 0:
            return None
        start, end, offset, path = self._ends[k]
        if not start <= address <= address + size <= end or path.endswith(b" (deleted)"):
            return None
        return path, address - start + offset


def _unescaped(path: bytes) -> bytes:
    return path.replace(b"\\012", b"\n")
