"""Base class of files that are not on a disk. Standard library only, because a probing process loads it."""

from __future__ import annotations

import io
import os
from abc import abstractmethod
from typing import Any


class RawFile(io.RawIOBase):
    """Bytes that can be read like a file, from any position. Subclasses say where they come from.

    >>> class Zeros(RawFile):
    ...     def at(self, position, count):
    ...         return bytes(min(count, self.size - position))
    >>> io.BufferedReader(Zeros(3)).read()
    b'\\x00\\x00\\x00'
    """

    def __init__(self, size: int):
        self.size = size
        self._position = 0

    @abstractmethod
    def at(self, position: int, count: int) -> bytes | bytearray | memoryview:
        """Return at least one and at most ``count`` bytes at ``position``; none at the end."""

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        position = offset + (0, self._position, self.size)[whence]
        if position < 0:
            raise ValueError(f"byte {position} is before the beginning")
        self._position = position
        return position

    def readinto(self, buffer: Any) -> int:
        found = self.at(self._position, len(buffer))
        buffer[: len(found)] = found
        self._position += len(found)
        return len(found)
