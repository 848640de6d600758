"""Reading files, and parts of files, as bytes, and classifying read errors.

Standard library only: a probing process loads it without the rest of the package.
"""

from __future__ import annotations

import errno
import io
import os
import stat
import zlib
from collections.abc import Callable
from functools import partial
from typing import IO, NamedTuple, TypeVar

from ..printable import printable
from .limits import MAX_BYTES
from .raw_file import RawFile
from .retry import is_transient, reason_of, temporary, with_retries

T = TypeVar("T")

NOT_A_FILE = "it is a folder, a device or a pipe, not a file"

ReadAt = Callable[[int, int], bytes]
"""``read(n, offset)`` returns bytes of a file, fewer at its end, like ``os.pread`` on an open file."""


class Undecodable(Exception):
    """Raised if a sample has no pixels. ``kind`` and ``reason`` are those of :class:`gpupipe.errors.BadSample`."""

    def __init__(self, kind: str, reason: str):
        super().__init__(kind, reason)
        self.kind = kind
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.kind}: {self.reason}"


class Place(NamedTuple):
    """Place of the bytes of one sample: a file, or a part of one.

    >>> Place(b"photos/cat.jpg")
    Place(path=b'photos/cat.jpg', offset=0, length=-1, version=0, inflated=-1, max_bytes=2147483648)
    """

    path: bytes
    offset: int = 0
    length: int = -1
    """Bytes; -1 for up to the end of the file."""
    version: int = 0
    """Version of the file, which changes with its content; see :class:`gpupipe.sources.storage.Found`."""
    inflated: int = -1
    """Bytes after inflating; -1 if the sample is not deflated."""
    max_bytes: int = MAX_BYTES
    """A sample with more bytes is not read, even if the file has changed."""

    @property
    def whole(self) -> bool:
        """Return whether it is a whole file."""
        return self.offset == 0 and self.length < 0

    @property
    def size(self) -> int:
        """Bytes of the sample; -1 for a file up to its end."""
        return self.length if self.inflated < 0 else self.inflated


def open_regular(path: str | bytes | os.PathLike[str], flags: int = os.O_RDONLY) -> int:
    """Open a regular file and return its descriptor; also for ``open(path, "rb", opener=open_regular)``.

    Every user file is opened here. Opening a FIFO would wait for a writer, and a device may be endless. Raises
    :class:`OSError`.
    """
    try:
        # O_NONBLOCK lets a FIFO open at once, so that the check below can refuse it. Regular files ignore it.
        fd = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as e:
        if e.errno == errno.ENXIO:  # a socket
            raise OSError(NOT_A_FILE) from None
        raise
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(NOT_A_FILE)
    except BaseException:
        os.close(fd)
        raise
    return fd


def refuse_large(size: int, max_bytes: int) -> None:
    """Raise :class:`Undecodable` of kind ``bomb`` if the size exceeds ``max_bytes``."""
    if size > max_bytes:
        raise Undecodable("bomb", f"{size} bytes are more than max_bytes={max_bytes}")


def attempts(path: str | bytes | os.PathLike[str], use: Callable[[IO[bytes]], T]) -> T:
    """Call ``use(file)`` with retries, as :func:`~gpupipe.codecs.retry.with_retries` does.

    Raises :class:`Undecodable` of kind ``missing``, ``temporary`` or ``unreadable``.
    """

    def once() -> T:
        with open(path, "rb", opener=open_regular) as file:
            return use(file)

    try:
        return with_retries(lambda: printable(path), once)
    except OSError as e:
        raise unread(e) from None


def unread(error: OSError) -> Undecodable:
    """Convert the error of reading a sample's file to kind ``missing``, ``temporary`` or ``unreadable``."""
    if error.errno in (errno.ENOENT, errno.ENOTDIR):
        return Undecodable("missing", error.strerror or str(error))
    if is_transient(error):
        return Undecodable("temporary", temporary(error))
    return Undecodable("unreadable", reason_of(error))


def use_place(place: Place, use: Callable[[IO[bytes], ReadAt, int], T]) -> T:
    """Call ``use(file, read, size)`` with the content of a place: as a file, as :data:`ReadAt`, and its size in bytes.

    Raises :class:`Undecodable` of kind ``missing``, ``unreadable``, ``bomb`` if it has more than ``place.max_bytes``
    bytes, or ``truncated`` if the file ends before the part.
    """

    def once(file: IO[bytes]) -> T:
        size = os.fstat(file.fileno()).st_size
        refuse_large(size if place.whole else place.size, place.max_bytes)
        if place.whole:
            return use(file, partial(os.pread, file.fileno()), size)
        if place.offset + place.length > size:
            raise ends_before(place, size)
        if place.inflated >= 0:
            return use_bytes(read_at(file.fileno(), place), use)
        part = _Part(file.fileno(), place)
        return use(io.BufferedReader(part), part.read_at, place.length)

    return attempts(place.path, once)


def use_bytes(data: bytes, use: Callable[[IO[bytes], ReadAt, int], T]) -> T:
    """Call ``use(file, read, size)`` with bytes in memory, like :func:`use_place`."""
    return use(io.BytesIO(data), lambda n, at: data[at : at + n], len(data))


class _Part(RawFile):
    """A part of an open file, as a file of its own."""

    def __init__(self, fd: int, place: Place):
        super().__init__(place.length)
        self._fd, self._offset = fd, place.offset

    def read_at(self, n: int, offset: int) -> bytes:
        """Read bytes as :data:`ReadAt` specifies."""
        # Never beyond the part: there begins another sample.
        return os.pread(self._fd, max(min(n, self.size - offset), 0), self._offset + offset)

    def at(self, position: int, count: int) -> bytes:
        return self.read_at(count, position)


def read_place(place: Place) -> bytes:
    """Read all bytes of one sample. Raises the errors of :func:`use_place`."""
    return attempts(place.path, lambda file: read_at(file.fileno(), place))


def read_at(fd: int, place: Place) -> bytes:
    """Read the bytes of a place in an open file.

    Raises :class:`OSError`, and :class:`Undecodable` of kind ``truncated``, ``undecodable`` or ``bomb``.
    """
    length = place.length if place.length >= 0 else max(os.fstat(fd).st_size - place.offset, 0)
    refuse_large(length if place.inflated < 0 else place.inflated, place.max_bytes)
    try:
        found = pread(fd, length, place.offset)
    except MemoryError:
        raise MemoryError(
            f"{printable(place.path)}: not enough memory for its {length} bytes; a dataset rejects files with more "
            "than max_bytes"
        ) from None
    # Never true of a whole file, whose length is -1.
    if len(found) < place.length:
        raise ends_before(place, os.fstat(fd).st_size)
    return found if place.inflated < 0 else inflate(found, place.inflated)


def pread(fd: int, length: int, offset: int) -> bytes:
    """Read like ``os.pread``, but repeat until ``length`` bytes or the end: one call may return less."""
    parts, at = [], 0
    while at < length and (part := os.pread(fd, min(length - at, 1 << 30), offset + at)):
        parts.append(part)
        at += len(part)
    # Usually one call returns everything, and joining would copy it.
    return parts[0] if len(parts) == 1 else b"".join(parts)


def inflate(stored: bytes | memoryview, size: int) -> bytes:
    """Inflate ``size`` bytes. Raises :class:`Undecodable`."""
    try:
        # One byte more than expected shows that the data are wrong, without inflating all that a bomb has.
        whole = zlib.decompressobj(-zlib.MAX_WBITS).decompress(stored, size + 1)
    except zlib.error as e:
        raise Undecodable("undecodable", f"its deflate data are damaged: {e}") from None
    if len(whole) != size:
        raise Undecodable("undecodable", f"its deflate data are damaged: {len(whole)} bytes, not {size}")
    return whole


def ends_before(place: Place, size: int) -> Undecodable:
    """Return the error for a place in a file of ``size`` bytes that ends before it."""
    return Undecodable(
        "truncated", f"it should be bytes {place.offset} to {place.offset + place.length} of a file of {size} bytes"
    )
