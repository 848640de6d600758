"""Blocks of containers on this machine's disk.

Every block is a file, written under a temporary name and renamed, so that a killed process leaves no partial block. All
processes of a machine share the blocks. The oldest are removed when they take too many bytes. Age counts from when a
block was loaded: every sample is used once per epoch, so recent use says nothing. Data that costs more to make than to
read may be kept until it has not been used for some time instead (``unused``).

No byte is used without a checksum. A file is a block followed by a checksum, u64, of every 64 KiB of it, so a read
checks no more than the parts that it needs. The name of the block and the number of the part seed the checksum,
so bytes of another block or place never match. A damaged file is removed, and its block is loaded again.
"""

from __future__ import annotations

import contextlib
import errno
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
from xxhash import xxh3_64_intdigest

from ...cache_folder import distrust, make_folder
from ...codecs.retry import is_transient

U8 = npt.NDArray[np.uint8]

_log = logging.getLogger("gpupipe")

_SHARE = 64
"""A process checks the total size after it has written this fraction of it."""
_OLD_TEMPORARY = 3600.0
_PART = 64 << 10
"""Bytes covered by one checksum."""
_SUM = 8


def bytes_kept(length: int) -> int:
    """Size of the file that stores a block of ``length`` bytes."""
    return length + _SUM * -(-length // _PART)


def block_length(kept: int) -> int:
    """Length of the block in a file; the inverse of :func:`bytes_kept`."""
    return kept - _SUM * -(-kept // (_PART + _SUM))


def checksums(block: memoryview, seed: int) -> Iterator[tuple[memoryview, int]]:
    """Iterate over (part, its checksum). The seed is that of the first part."""
    for number, at in enumerate(range(0, len(block), _PART)):
        part = block[at : at + _PART]
        yield part, xxh3_64_intdigest(part, seed=seed + number)


class BlockCache:
    """Files in a private folder. Thread-safe; several processes may share the folder.

    Args:
        folder: absolute; created when the first block is written.
        limit: bytes of all files together. Each process may exceed it by a fraction.
        unused: ``None``: when the cache is full, new blocks replace the oldest ones. Otherwise they replace only blocks
            that were not read for this many seconds, and blocks that do not fit are not kept.
    """

    def __init__(self, folder: str, limit: int, unused: float | None = None):
        self._folder = folder
        self._limit = limit
        self._unused = unused
        self._total = limit
        """With ``unused``: total bytes, as far as this process knows; at first nothing is known."""
        self._writing = 0
        """Bytes that threads are about to write."""
        self._full = False
        self._written = limit  # so that the first block counts what others have left
        self._lock = threading.Lock()
        self._broken = not limit

    def _file(self, url: bytes, version: int, number: int) -> tuple[str, int]:
        """Return (path, seed of its checksums)."""
        # Checksums of block n, part k use the seed (hash of the object) + n * 2**24 + k, so no two parts of an object
        # share one: a block would need 2**24 parts, which are 1 TiB.
        name = hashlib.blake2b(b"2 %d %s" % (version, url), digest_size=16).hexdigest()
        return f"{self._folder}/{name[:2]}/{name[2:]}-{number}.block", int(name[:15], 16) + (number << 24)

    def read(self, url: bytes, version: int, number: int, start: int, length: int) -> U8 | None:
        """Read u8[length], the bytes of a block from ``start`` on; ``None`` if they are missing or damaged."""
        path, seed = self._file(url, version, number)
        fd, found = self._open(path)
        if found is None:
            return None
        try:
            data = self._verified(fd, found, seed, start, length)
            if data is None:
                self._damaged(path, found)
            else:
                self._used(fd, found)
            return data
        except OSError as e:
            # EIO is a bad sector of this disk, and the next read would fail as well.
            if not is_transient(e) or e.errno == errno.EIO:
                self._damaged(path, found)
            return None
        finally:
            os.close(fd)

    def _used(self, file: int | str, found: os.stat_result) -> None:
        """Note that a file was read, for those that replace unused ones."""
        # Half of the time is exact enough, and spares most of these writes.
        if self._unused is not None and time.time() - found.st_mtime > self._unused / 2:
            os.utime(file)

    def _verified(self, fd: int, found: os.stat_result, seed: int, start: int, length: int) -> U8 | None:
        """Read u8[length] from ``start`` on; ``None`` if the bytes do not match their checksums."""
        size = block_length(found.st_size)
        if start + length > size:
            return None
        first, last = start // _PART, -(-(start + length) // _PART)
        data, sums = np.empty(min(last * _PART, size) - first * _PART, np.uint8), np.empty(last - first, "<u8")
        for view, at in ((data.data, first * _PART), (sums.data.cast("B"), size + first * _SUM)):
            if os.preadv(fd, [view], at) != len(view):
                return None
        found_sums = [digest for _, digest in checksums(data.data, seed + first)]
        return data[start - first * _PART :][:length] if found_sums == sums.tolist() else None

    def _damaged(self, path: str, found: os.stat_result) -> None:
        _log.info("%s is damaged; its block is loaded again", path)
        with contextlib.suppress(OSError):
            # Another process may have replaced it in the meantime.
            if os.stat(path).st_ino == found.st_ino and self._remove(path):
                with self._lock:
                    self._total -= found.st_size
                    self._full = False

    def forget(self, url: bytes, version: int, number: int) -> bool:
        """Stop using the copy of a block. Returns whether there was one."""
        return self._remove(self._file(url, version, number)[0])

    @staticmethod
    def _remove(path: str) -> bool:
        try:
            os.unlink(path)
        except OSError:
            return False
        return True

    def has(self, url: bytes, version: int, number: int) -> bool:
        return version != 0 and os.path.exists(self._file(url, version, number)[0])

    @staticmethod
    def _open(path: str) -> tuple[int, os.stat_result | None]:
        """Return (file descriptor, its status), or (-1, ``None``)."""
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:
            return -1, None
        found = os.fstat(fd)
        if distrust(found) is None:
            return fd, found
        os.close(fd)
        return -1, None

    def put(self, url: bytes, version: int, number: int, block: bytes | memoryview) -> None:
        """Store a block. Failures to write are ignored."""
        if self._broken or self._full or not version:  # a store without versions could change its content unnoticed
            return
        kept = bytes_kept(len(block))
        if self._unused is not None and not self._has_room(kept):
            return
        path, seed = self._file(url, version, number)
        try:
            self._make(os.path.dirname(path))
            temporary = f"{path}.{os.getpid()}-{threading.get_ident():x}.tmp"
            fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                with open(fd, "wb") as file:
                    file.write(block)
                    file.write(np.array([digest for _, digest in checksums(memoryview(block), seed)], "<u8").tobytes())
                    file.flush()
                    os.fsync(fd)
                os.replace(temporary, path)
            except BaseException:
                with contextlib.suppress(OSError):
                    os.unlink(temporary)
                raise
        except OSError as e:
            self._not_kept(kept, e)
            return
        with self._lock:
            self._written += kept
            due = self._written >= self._limit / _SHARE
            if due:
                self._written = 0
            if self._unused is not None:
                self._writing -= kept
                if due:
                    self._count()
        if due and self._unused is None:
            self.trim()

    def _not_kept(self, kept: int, error: OSError) -> None:
        """Handle a failed write. Temporary conditions, such as too many open files, do not affect later blocks."""
        with self._lock:
            if self._unused is not None:
                self._writing -= kept
                self._total -= kept
            known, self._broken = self._broken, not is_transient(error)
        if self._broken and not known:
            _log.warning("blocks cannot be kept in %s (%s) and are loaded every time", self._folder, error.strerror)

    def _has_room(self, count: int) -> bool:
        """Reserve room for ``count`` more bytes after removing unused blocks. Returns whether they may be written."""
        with self._lock:
            if self._total + count > self._limit:
                self._count()
                if self._total + count > self._limit:
                    self._full = not self._writing  # otherwise it may have been counted twice
                    return False
            self._total += count
            self._writing += count
            return True

    def _count(self) -> None:
        """Count the bytes of all processes and remove old blocks."""
        self._total = self._writing
        with contextlib.suppress(OSError):  # the folder may not exist yet
            self._total += self._trim()

    def _make(self, folder: str) -> None:
        if not os.path.isdir(folder):
            make_folder(self._folder)
            with contextlib.suppress(FileExistsError):
                os.mkdir(folder, 0o700)

    def held(self) -> tuple[int, int]:
        """Return (bytes, blocks) of all processes. Reads the status of every file."""
        try:
            sizes = [entry.st_size for path, entry in self._files() if path.endswith(".block")]
        except OSError:
            return 0, 0
        return sum(sizes), len(sizes)

    def clear(self) -> None:
        """Remove all blocks and their folders."""
        with contextlib.suppress(OSError):
            for path, _ in self._files():
                with contextlib.suppress(OSError):
                    os.unlink(path)
            for folder in list(os.scandir(self._folder)):
                if len(folder.name) == 2 and folder.is_dir(follow_symlinks=False):
                    with contextlib.suppress(OSError):
                        os.rmdir(folder.path)

    def trim(self) -> None:
        """Remove the oldest blocks, or those that are unused, down to 7/8 of the limit. One process at a time
        does this."""
        try:
            lock = os.open(os.path.join(self._folder, "lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError:
            return
        try:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:  # another process does it
                return
            except OSError:  # without locks, several processes may remove the same blocks, which does no harm
                pass
            with contextlib.suppress(OSError):
                self._trim()
        finally:
            os.close(lock)

    def _trim(self) -> int:
        """Return the bytes that are left; the limit if the disk has no more space."""
        found, now = [], time.time()
        for path, entry in self._files():
            if path.endswith(".tmp"):
                if now - entry.st_mtime > _OLD_TEMPORARY:  # left by a killed process
                    with contextlib.suppress(OSError):
                        os.unlink(path)
            else:
                found.append((entry.st_mtime_ns, entry.st_size, path))
        total = sum(size for _, size, _ in found)
        free = shutil.disk_usage(self._folder).free
        # Go down to 7/8 of the limit, so that the next blocks fit without another scan. (total + free) // 2 leaves
        # other programs half of the space that there would be without the cache.
        most = min(self._limit * 7 // 8, (total + free) // 2)
        crowded = total > self._limit * 15 // 16 or free < self._limit // _SHARE
        # As long as there is room, unused blocks may still be used.
        if self._unused is not None and not crowded:
            most = total
        for mtime_ns, size, path in sorted(found):
            # Sorted by age, so all that follow are younger.
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
                        if entry.name.endswith((".block", ".tmp")):  # only our own files
                            with contextlib.suppress(OSError):
                                yield entry.path, entry.stat(follow_symlinks=False)

    def forked(self) -> None:
        """Reset the state in a child. A thread that the child lacks may have held the lock, or have been writing."""
        self._lock, self._writing, self._total = threading.Lock(), 0, self._limit
