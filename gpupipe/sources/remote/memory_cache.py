"""Blocks in memory, such as decoded images, which a process reads where they are.

Files in memory do not decay. So each process checks them once, and again after anyone has written to them. It maps
them then, and later reads neither copy nor open anything.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import resource
import weakref
from collections import defaultdict
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ... import system
from .block_cache import BlockCache, block_length, checksums

U8 = npt.NDArray[np.uint8]

_CHECKED = 1 << 20
"""Number of files whose check a process remembers, in 8 bytes each."""


class _Mapped(NamedTuple):
    """A file that was checked."""

    path: str
    inode: int
    changed: int
    """When it was changed, in ns. Every write changes this."""
    block: U8


_MAPPED: defaultdict[str, dict[tuple[bytes, int, int], _Mapped]] = defaultdict(dict)
"""Files that stay mapped, by folder."""


class MemoryCache(BlockCache):
    """Blocks in a folder in memory. Arrays that are read share its memory, and are read-only.

    The arguments are those of :class:`BlockCache`.
    """

    def __init__(self, folder: str, limit: int, unused: float | None = None):
        super().__init__(folder, limit, unused)
        self._checked = np.zeros(_CHECKED, np.uint64)
        """Hashes of files that this process has checked, each at a place that it determines. A hash that replaces
        another one there makes that file checked again."""
        self._mapped = _MAPPED[folder]

    def read(self, url: bytes, version: int, number: int, start: int, length: int) -> U8 | None:
        """Read u8[length], the bytes of a block from ``start`` on; ``None`` if they are missing or damaged."""
        key = url, version, number
        known = self._mapped.get(key)
        if known is None or not self._unchanged(known):
            self._mapped.pop(key, None)
            known = self._checked_file(*self._file(*key))
            if known is None:
                return None
            if len(self._mapped) < _room():
                self._mapped[key] = known
        return known.block[start : start + length] if start + length <= len(known.block) else None

    def _unchanged(self, known: _Mapped) -> bool:
        try:
            found = os.stat(known.path, follow_symlinks=False)
            self._used(known.path, found)
        except OSError:
            return False
        return (found.st_ino, found.st_ctime_ns) == (known.inode, known.changed)

    def _checked_file(self, path: str, seed: int) -> _Mapped | None:
        """Map a file, and check it if that was not done before. Return ``None`` if it is missing or damaged."""
        fd, found = self._open(path)
        if found is None:
            return None
        try:
            block, sums = _map(fd, found.st_size)
            file = hash((seed, found.st_ino, found.st_ctime_ns)) & 0xFFFF_FFFF_FFFF_FFFF
            if self._checked[file % _CHECKED] != file:
                if [digest for _, digest in checksums(block.data, seed)] != sums.tolist():
                    raise ValueError("checksums differ")
                self._checked[file % _CHECKED] = file
            self._used(path, found)
            return _Mapped(path, found.st_ino, found.st_ctime_ns, block)
        except ValueError:
            self._damaged(path, found)
            return None
        except OSError:  # such as too many maps
            return None
        finally:
            os.close(fd)

    def _trim(self) -> int:
        left = super()._trim()
        # Removed files take memory until they are unmapped.
        for key, known in [*self._mapped.items()]:
            if not os.path.exists(known.path):
                self._mapped.pop(key, None)
        return left


def unmap() -> None:
    """Unmap the files whose memory no array shares. The next reads map them again."""
    for mapped in _MAPPED.values():
        mapped.clear()


def _room() -> int:
    """Return how many files may stay mapped. Allocators and libraries need maps too."""
    # A limit of the address space would also count the mapped files.
    is_limited = resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY
    return 0 if is_limited else system.most_maps() // 4


def _map(fd: int, size: int) -> tuple[U8, npt.NDArray[np.uint64]]:
    """Return a block and its checksums. Raises :class:`ValueError` if the file is too short."""
    if not size:
        raise ValueError("the file is empty")
    content = np.frombuffer(memoryview(_pages(fd, size)), np.uint8)
    block, sums = content[: block_length(size)], content[block_length(size) :]
    block.flags.writeable = False
    return block, sums.view("<u8")


def _pages(fd: int, size: int) -> ctypes.Array[ctypes.c_uint8]:
    """Return the content of a file, which must not be written to. It is unmapped when the last array of it ends."""
    # Objects of Python's mmap would each keep a file open, up to Python 3.12 always.
    address = _libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, fd, 0)
    if address == _FAILED:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    pages = (ctypes.c_uint8 * size).from_address(address)
    weakref.finalize(pages, _libc.munmap, address, size).atexit = False  # arrays may still be in use then
    return pages


_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long)
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_FAILED = ctypes.c_void_p(-1).value
