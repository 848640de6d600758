"""Positional access to an index file, with each block of 4 KiB checked against its checksum when it is read.

Nothing is memory-mapped: if a mapped file is truncated, or lost by a network file system, its readers die of SIGBUS. A
file up to :data:`IN_MEMORY` is copied when it is opened, and not read again. A larger one stays open, and is read by
position.

XXH3 (Y. Collet, https://xxhash.com) does not protect against an attacker, who would write matching checksums. It is 4
to 20 times as fast as CRC-32 and BLAKE2b, and 64 bits are enough against faults of disks, networks and programs.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
from xxhash import xxh3_64_intdigest

from ...codecs.files import pread
from ...codecs.retry import reason_of, with_retries
from ...errors import DatasetError

BLOCK = 4096
"""Bytes that are checked together. Reading a row costs this many."""
IN_MEMORY = 128 << 20
"""Largest file in bytes to keep in memory. The index of ImageNet's 1.3 million images has 96 MB, one of 14 million
images 1.1 GB."""
_AT_ONCE = 64 * BLOCK


class ColumnsError(DatasetError):
    """An index file is damaged, or of another version."""


def aligned(n: int) -> int:
    """Round up to a multiple of :data:`BLOCK`."""
    return -(-n // BLOCK) * BLOCK


def sums_of(data: memoryview) -> npt.NDArray[np.uint64]:
    """u64[blocks]"""
    starts = range(0, len(data), BLOCK)
    return np.fromiter((xxh3_64_intdigest(data[at : at + BLOCK]) for at in starts), np.uint64, len(starts))


class Blocks:
    """Data of an open file. Positions are bytes from the beginning of the data.

    Args:
        fd: the open file, closed by the caller.
        name: name of the file for messages.
        first: position of the data in the file.
        sums: u64[blocks], which determine the amount of data.

    All methods raise :class:`ColumnsError` if the bytes have changed since they were written.
    """

    def __init__(self, fd: int, name: str, first: int, sums: npt.NDArray[np.uint64]):
        self._name = name
        self._first = first
        self._sums = sums
        self._known = sums.data  # its items are Python integers, which compare faster
        self.size = len(sums) * BLOCK
        """Size in bytes."""
        self._content: bytes | None = None
        self._fd = fd
        if self.size <= IN_MEMORY:
            self._content = self._checked(0, self.size)
        else:
            self._fd = os.dup(fd)
            weakref.finalize(self, os.close, self._fd)
            # Nothing of it is kept, but opening a file finds all damage.
            for at in range(0, self.size, _AT_ONCE):
                self._checked(at, min(at + _AT_ONCE, self.size))

    @property
    def in_memory(self) -> bool:
        return self._content is not None

    def read(self, start: int, stop: int) -> bytes | memoryview:
        """Return the bytes from ``start`` to ``stop``."""
        if self._content is not None:
            return memoryview(self._content)[start:stop]
        low = start // BLOCK * BLOCK
        return memoryview(self._checked(low, aligned(stop)))[start - low : stop - low]

    def pieces(self, starts: Sequence[int], stops: Sequence[int]) -> list[bytes]:
        """Return many short texts or rows."""
        if self._content is not None:
            content = self._content
            return [content[a:b] for a, b in zip(starts, stops, strict=True)]
        found, near, low, high = [], b"", 0, 0
        for a, b in zip(starts, stops, strict=True):
            if not low <= a <= b <= high:  # neighbors are often in one block
                low, high = a // BLOCK * BLOCK, aligned(b)
                near = self._checked(low, high)
            found.append(near[a - low : b - low])
        return found

    def _checked(self, start: int, stop: int) -> bytes:
        """Read whole blocks from the file."""
        try:
            found = with_retries(lambda: self._name, lambda: pread(self._fd, stop - start, self._first + start))
        except OSError as e:
            raise ColumnsError(f"{self._name} cannot be read: {reason_of(e)}. Make the dataset again") from None
        first = start // BLOCK
        # The usual read of one block, without making arrays.
        if stop - start == BLOCK and len(found) == BLOCK and xxh3_64_intdigest(found) == self._known[first]:
            return found
        sums, known = sums_of(memoryview(found)), self._sums[first : stop // BLOCK]
        wrong = np.flatnonzero(sums != known[: len(sums)])
        if len(wrong) or len(sums) < len(known):
            at = self._first + start + BLOCK * int(wrong[0] if len(wrong) else len(sums))
            raise ColumnsError(
                f"{self._name} is damaged: bytes {at} to {at + BLOCK} have changed since they were written. Make the "
                "dataset again, which rebuilds its index from the files"
            )
        return found
