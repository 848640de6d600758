"""Files, and parts of files, as bytes; and what is wrong with those that cannot be read. Standard library only: a
probing process loads it without the rest of the package."""

from __future__ import annotations

import errno
import io
import os
from collections.abc import Callable
from functools import partial
from typing import IO, Any, NamedTuple, TypeVar

from .retry import reason_of, with_retries
from .unpack import Packed, unpack

__all__ = [
    "Place",
    "ReadAt",
    "Undecodable",
    "attempts",
    "ends_before",
    "read_at",
    "read_place",
    "unpacked",
    "use_place",
]

T = TypeVar("T")

ReadAt = Callable[[int, int], bytes]
"""``read(n, offset)``: bytes of a file, fewer at its end; as ``os.pread`` of an open file."""


class Undecodable(Exception):
    """A sample has no pixels. ``kind`` and ``reason`` are those of :class:`gpupipe.errors.BadSample`."""

    def __init__(self, kind: str, reason: str):
        super().__init__(kind, reason)
        self.kind = kind
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.kind}: {self.reason}"


class Place(NamedTuple):
    """Where the bytes of one sample are: a file, or a part of one.

    >>> Place(b"photos/cat.jpg")
    Place(path=b'photos/cat.jpg', offset=0, length=-1, version=0, packed=None)
    """

    path: bytes
    offset: int = 0
    length: int = -1
    """Bytes; -1: up to the end of the file."""
    version: int = 0
    """Of the file: what changes if its content does, as far as that is known without reading it; see
    :class:`gpupipe.sources.storage.Found`."""
    packed: Packed | None = None
    """How the bytes there become those of the sample, if they are not."""

    @property
    def whole(self) -> bool:
        """Whether it is a whole file."""
        return self.offset == 0 and self.length < 0

    @property
    def size(self) -> int:
        """Bytes of the sample; -1 of a file up to its end."""
        return self.length if self.packed is None else self.packed.take


def attempts(path: str | bytes | os.PathLike[str], use: Callable[[IO[bytes]], T]) -> T:
    """``use(file)``, with the patience of :func:`~gpupipe.codecs.retry.with_retries`.

    Raises :class:`Undecodable` of kind ``missing`` or ``unreadable``.
    """

    def once() -> T:
        with open(path, "rb") as file:
            return use(file)

    try:
        return with_retries(lambda: os.fsdecode(path), once)
    except OSError as e:
        if e.errno in (errno.ENOENT, errno.ENOTDIR):
            raise Undecodable("missing", e.strerror or str(e)) from None
        raise Undecodable("unreadable", reason_of(e)) from None


def use_place(place: Place, use: Callable[[IO[bytes], ReadAt, int], T]) -> T:
    """``use(file, read, size)`` of what lies at a place: as a file, by :data:`ReadAt`, and its size in bytes.

    Raises :class:`Undecodable` of kind ``missing``, ``unreadable``, or ``truncated`` if the file ends before the part.
    """

    def once(file: IO[bytes]) -> T:
        size = os.fstat(file.fileno()).st_size
        if place.whole:
            return use(file, partial(os.pread, file.fileno()), size)
        if place.offset + place.length > size:
            raise ends_before(place, size)
        if place.packed is not None:
            data = read_at(file.fileno(), place)
            return use(io.BytesIO(data), lambda n, at: data[at : at + n], len(data))
        part = _Part(file.fileno(), place)
        return use(io.BufferedReader(part), part.read_at, place.length)

    return attempts(place.path, once)


class _Part(io.RawIOBase):
    """A part of an open file as a file of its own."""

    def __init__(self, fd: int, place: Place):
        self._fd = fd
        self._place = place
        self._at = 0

    def read_at(self, n: int, offset: int) -> bytes:
        """As :data:`ReadAt`."""
        return os.pread(self._fd, max(min(n, self._place.length - offset), 0), self._place.offset + offset)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._at = offset + (0, self._at, self._place.length)[whence]
        return self._at

    def readinto(self, buffer: Any) -> int:
        found = self.read_at(len(buffer), self._at)
        buffer[: len(found)] = found
        self._at += len(found)
        return len(found)


def read_place(place: Place) -> bytes:
    """All bytes of one sample. Raises as :func:`use_place`."""
    return attempts(place.path, lambda file: read_at(file.fileno(), place))


def read_at(fd: int, place: Place) -> bytes:
    """The bytes of a place in a file that is open. Raises :class:`OSError`, and :class:`Undecodable` of kind
    ``truncated`` or ``undecodable``."""
    length = place.length if place.length >= 0 else max(os.fstat(fd).st_size - place.offset, 0)
    parts, at = [], 0
    while at < length:
        part = os.pread(fd, min(length - at, 1 << 30), place.offset + at)
        if not part:
            break
        parts.append(part)
        at += len(part)
    if at < place.length:
        raise ends_before(place, os.fstat(fd).st_size)
    data = parts[0] if len(parts) == 1 else b"".join(parts)
    return data if place.packed is None else unpacked(data, place.packed)


def unpacked(stored: bytes, packed: Packed) -> bytes:
    """As :func:`gpupipe.codecs.unpack.unpack`. Raises :class:`Undecodable`."""
    try:
        return unpack(stored, packed)
    except (ValueError, ImportError) as e:
        raise Undecodable("undecodable", str(e)) from None


def ends_before(place: Place, size: int) -> Undecodable:
    """What is wrong with a place in a file of ``size`` bytes that ends before it."""
    return Undecodable(
        "truncated", f"it should be bytes {place.offset} to {place.offset + place.length} of a file of {size} bytes"
    )
