"""Blocks of containers on this machine's disk.

Every block is a file of its own, written under another name and renamed, so that a process that is killed leaves no
half block, and all processes of a machine use the same ones. The oldest are removed when there are too many bytes. Age
counts from when a block was loaded: in an epoch every sample comes once, so having been used lately says nothing. What
costs more to make than to read may be kept instead, until it has not been used for some time (``unused``).
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import logging
import os
import shutil
import threading
import time
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

__all__ = ["BlockCache"]

U8 = npt.NDArray[np.uint8]

_log = logging.getLogger("gpupipe")

_SHARE = 64
"""A process looks after the whole when it has written this part of it."""
_OLD_TEMPORARY = 3600.0


class BlockCache:
    """Files in a folder that is ours alone. Safe in any thread; several processes may share the folder.

    Args:
        folder: absolute; made when the first block is written.
        limit: bytes, of all files together. Each process may be over by a part of it.
        unused: ``None``: when it is full, the oldest blocks make place for new ones. Otherwise only those that were not
            read for so many seconds do, and what finds no place is not kept.
    """

    def __init__(self, folder: str, limit: int, unused: float | None = None):
        self._folder = folder
        self._limit = limit
        self._unused = unused
        self._total = limit
        """With ``unused``: bytes that there are, as far as this process knows; at first nothing is known."""
        self._writing = 0
        """Bytes of those that threads are about to write."""
        self._full = False
        self._written = limit  # so that the first block looks at what others have left
        self._lock = threading.Lock()
        self._broken = not limit

    def _file(self, url: bytes, version: int, number: int) -> str:
        name = hashlib.blake2b(b"%d %s" % (version, url), digest_size=16).hexdigest()
        return f"{self._folder}/{name[:2]}/{name[2:]}-{number}.block"

    def read(self, url: bytes, version: int, number: int, start: int, view: U8) -> bool:
        """Fill ``view`` with the bytes of a block from ``start`` on. Whether they were there."""
        fd, used = self._open(url, version, number)
        if fd < 0:
            return False
        try:
            if os.preadv(fd, [view.data], start) != len(view):
                return False
            if self._unused is not None and time.time() - used > self._unused / 2:
                os.utime(fd)
            return True
        except OSError:
            return False
        finally:
            os.close(fd)

    def has(self, url: bytes, version: int, number: int) -> bool:
        return version != 0 and os.path.exists(self._file(url, version, number))

    def _open(self, url: bytes, version: int, number: int) -> tuple[int, float]:
        """(file descriptor, or -1; when it was written or used)"""
        from ...datasets.index.cache import distrust

        try:
            fd = os.open(self._file(url, version, number), os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            return -1, 0.0
        found = os.fstat(fd)
        if distrust(found) is None:
            return fd, found.st_mtime
        os.close(fd)
        return -1, 0.0

    def put(self, url: bytes, version: int, number: int, block: bytes | memoryview) -> None:
        """Keep a block. One that cannot be written is not kept."""
        if self._broken or self._full or not version:  # a store that tells no versions could change what it has unseen
            return
        if self._unused is not None and not self._has_room(len(block)):
            return
        path = self._file(url, version, number)
        try:
            self._make(os.path.dirname(path))
            temporary = f"{path}.{os.getpid()}-{threading.get_ident():x}.tmp"
            fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                with open(fd, "wb") as file:
                    file.write(block)
                os.replace(temporary, path)
            except BaseException:
                with contextlib.suppress(OSError):
                    os.unlink(temporary)
                raise
        except OSError as e:
            with self._lock:
                known, self._broken = self._broken, True
            if not known:
                _log.warning("blocks cannot be kept in %s (%s), and are loaded each time", self._folder, e.strerror)
            return
        with self._lock:
            self._written += len(block)
            due = self._written >= self._limit / _SHARE
            if due:
                self._written = 0
            if self._unused is not None:
                self._writing -= len(block)
                if due:
                    self._count()
        if due and self._unused is None:
            self.trim()

    def _has_room(self, count: int) -> bool:
        """Whether that many bytes more may be written, once those that nobody reads have gone. They count from now."""
        with self._lock:
            if self._total + count > self._limit:
                self._count()
                if self._total + count > self._limit:
                    self._full = not self._writing  # else it was counted twice, perhaps
                    return False
            self._total += count
            self._writing += count
            return True

    def _count(self) -> None:
        """Look at what all processes have written, and let old blocks go."""
        self._total = self._writing
        with contextlib.suppress(OSError):  # there is no folder yet
            self._total += self._trim()

    def _make(self, folder: str) -> None:
        from ...datasets.index.cache import make_folder

        if not os.path.isdir(folder):
            make_folder(self._folder)
            with contextlib.suppress(FileExistsError):
                os.mkdir(folder, 0o700)

    def held(self) -> tuple[int, int]:
        """(bytes, blocks) that there are, of all processes; looks at every file."""
        try:
            sizes = [entry.st_size for path, entry in self._files() if path.endswith(".block")]
        except OSError:
            return 0, 0
        return sum(sizes), len(sizes)

    def clear(self) -> None:
        """Remove all blocks, and the folders that they were in."""
        with contextlib.suppress(OSError):
            for path, _ in self._files():
                with contextlib.suppress(OSError):
                    os.unlink(path)
            for folder in list(os.scandir(self._folder)):
                if len(folder.name) == 2 and folder.is_dir(follow_symlinks=False):
                    with contextlib.suppress(OSError):
                        os.rmdir(folder.path)

    def trim(self) -> None:
        """Remove the oldest blocks until no more than 7/8 of the limit are left, or those that may go. One process at a
        time does it."""
        try:
            lock = os.open(os.path.join(self._folder, "lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError:
            return
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._trim()
        except OSError:
            pass  # another process is at it, or the file system has no locks
        finally:
            os.close(lock)

    def _trim(self) -> int:
        """Bytes that are left; the limit if the disk has no space for more."""
        found, now = [], time.time()
        for path, entry in self._files():
            if path.endswith(".tmp"):
                if now - entry.st_mtime > _OLD_TEMPORARY:  # of a process that was killed
                    with contextlib.suppress(OSError):
                        os.unlink(path)
            else:
                found.append((entry.st_mtime_ns, entry.st_size, path))
        total = sum(size for _, size, _ in found)
        free = shutil.disk_usage(self._folder).free
        most = min(self._limit * 7 // 8, (total + free) // 2)
        crowded = total > self._limit * 15 // 16 or free < self._limit // _SHARE
        if self._unused is not None and not crowded:
            most = total
        for mtime_ns, size, path in sorted(found):
            if total <= most or (self._unused is not None and now - mtime_ns / 1e9 < self._unused):
                break
            with contextlib.suppress(OSError):
                os.unlink(path)
            total -= size
        return total if free > self._limit // _SHARE else self._limit

    def _files(self) -> Iterator[tuple[str, os.stat_result]]:
        for folder in os.scandir(self._folder):
            if len(folder.name) == 2 and folder.is_dir(follow_symlinks=False):
                with contextlib.suppress(OSError), os.scandir(folder.path) as entries:
                    for entry in entries:
                        if entry.name.endswith((".block", ".tmp")):  # nothing but what we wrote
                            with contextlib.suppress(OSError):
                                yield entry.path, entry.stat(follow_symlinks=False)

    def forked(self) -> None:
        """Another thread may have held the lock, or written, which the child does not have."""
        self._lock, self._writing, self._total = threading.Lock(), 0, self._limit
