"""Storage of containers: local files here, remote objects in :mod:`.remote`. Both are read by ranges of bytes."""

from __future__ import annotations

import io
import os
import threading
import weakref
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Sequence
from typing import IO, Any, ClassVar, NamedTuple

import numpy as np
import numpy.typing as npt

from ..codecs.files import Place, Undecodable, attempts, ends_before, open_regular, read_at, refuse_large
from ..codecs.retry import SPARES

U8 = npt.NDArray[np.uint8]

_OPEN_FILES = 64
_MUCH = 1 << 16
"""Reads of more bytes are limited to the size of the file, so that they allocate no more than it has."""
_LOCAL_GAP = 16 << 10
"""Bytes between two samples that are read and discarded, since that takes no longer than another call."""
_MOST_PARTS = 512
"""Maximum number of parts of one read. Linux accepts 1024, and a gap is a part as well."""


class Found(NamedTuple):
    """Properties of a container that are known without reading it."""

    size: int
    """Bytes."""
    version: int
    """Version, which changes with the content.

    The modification time in nanoseconds for local files. For others a negative number computed from their ETag, or from
    the modification time if there is none; 0 if the store provides neither.
    """
    changed: int = 0
    """Inode change time of a local file in nanoseconds.

    A copy may have the modification time of another file, but programs cannot set this one. It also changes with
    permissions, names and links.
    """

    def same_as(self, other: Found) -> bool:
        """Return whether size and version are equal."""
        return self[:2] == other[:2]


class ReadSpan(NamedTuple):
    """Samples of one container that lie so close together that a single read covers them."""

    path: bytes
    start: int
    end: int
    """Bytes from the beginning of the container."""
    rows: list[int]
    """Indices of the places, by offset. The places may overlap."""


def read_spans(places: Sequence[Place], gap: int, most: int = 1 << 62) -> list[ReadSpan]:
    """Join places into as few reads as possible.

    Neighbors are joined if at most ``gap`` bytes lie between them and the read does not exceed ``most`` bytes.

    >>> [span[1:] for span in read_spans([Place(b"a", 50, 10), Place(b"a", 0, 30), Place(b"b", 70, 5)], gap=20)]
    [(0, 60, [1, 0]), (70, 75, [2])]
    """
    spans: list[ReadSpan] = []
    for i in sorted(range(len(places)), key=lambda i: places[i][:2]):
        path, start, length = places[i][:3]
        end = start + length
        if spans:
            last = spans[-1]
            if last.path == path and start - last.end <= gap and max(end, last.end) - last.start <= most:
                last.rows.append(i)
                spans[-1] = last._replace(end=max(end, last.end))
                continue
        spans.append(ReadSpan(path, start, end, [i]))
    return spans


class Container(io.BufferedReader):
    """A container with random access. It never allocates memory for more bytes than it has, whatever its
    content claims."""

    def __init__(self, raw: io.RawIOBase, buffer_size: int = io.DEFAULT_BUFFER_SIZE):
        super().__init__(raw, buffer_size)
        try:
            self._size = self.seek(0, os.SEEK_END)
            self.seek(0)
        except BaseException:
            self.close()
            raise

    def read(self, size: int | None = -1) -> bytes:
        if size is not None and size > _MUCH:
            size = min(size, max(self._size - self.tell(), 0))
        return super().read(size)


class Storage(ABC):
    """Storage that holds containers. Picklable and thread-safe; opens nothing before it must, and then once per
    process."""

    remote: ClassVar[bool]
    """Whether reading waits for a network rather than for a processor."""

    def expect(self, total: int) -> None:  # noqa: B027
        """Receive the total number of bytes of all containers, once it is known."""

    @abstractmethod
    def look(self, paths: Sequence[bytes]) -> list[Found | OSError]:
        """Return the properties of containers without reading them."""

    @abstractmethod
    def open(self, path: bytes) -> IO[bytes]:
        """Open a container for random access, as an indexer needs it.

        Raises :class:`OSError`, and :class:`ValueError` if it is not a file, with what it is instead.
        """

    @abstractmethod
    def read_into(self, places: Sequence[Place], views: Sequence[U8]) -> list[Undecodable | None]:
        """Fill ``views``, u8[place.size] each, with the bytes of samples. Places must have a length.

        Returns why a sample cannot be read, or ``None``, for each.
        """

    def forget(self, place: Place) -> bool:
        """Discard the local copy of a place, so that the next read asks its store. Returns whether there was a copy."""
        return False

    def read(self, places: Sequence[Place]) -> list[bytes | Undecodable]:
        """Return the bytes of samples, in the order of ``places``, or why one cannot be read or exceeds
        ``max_bytes``."""
        found: list[bytes | Undecodable] = [_too_large(place) or b"" for place in places]
        rows = [i for i, known in enumerate(found) if not known]
        some = [places[i] for i in rows]
        views = [np.empty(place.size, np.uint8) for place in some]
        for i, view, why in zip(rows, views, self.read_into(some, views), strict=True):
            found[i] = view.tobytes() if why is None else why
        return found


class LocalFiles(Storage):
    """Files of this machine, including mounted file systems.

    They stay open, because opening one takes longer than reading a sample. At most 64 are open; the least recently used
    one is closed. If the process may open no more, they are closed, and half as many are kept from then on. Reads give
    their position, so threads can share files, and a forked child can use those of its parent.
    """

    remote: ClassVar[bool] = False

    def __init__(self) -> None:
        self._files: OrderedDict[bytes, _Handle] = OrderedDict()
        self._lock = threading.Lock()
        self._most = _OPEN_FILES
        _ALL.add(self)

    def look(self, paths: Sequence[bytes]) -> list[Found | OSError]:
        return [_look(path) for path in paths]

    def open(self, path: bytes) -> IO[bytes]:
        return Container(io.FileIO(path, opener=open_regular))

    def read_into(self, places: Sequence[Place], views: Sequence[U8]) -> list[Undecodable | None]:
        problems: list[Undecodable | None] = [None] * len(places)
        for span in read_spans(places, _LOCAL_GAP):
            if len(span.rows) == 1 or not self._together(span, places, views):
                for i in span.rows:
                    try:
                        self._one(places[i], views[i])
                    except Undecodable as e:
                        problems[i] = e
        return problems

    def _together(self, span: ReadSpan, places: Sequence[Place], views: Sequence[U8]) -> bool:
        """Read adjacent samples in one call. Returns whether that succeeded; otherwise they are read one by one
        to find out why."""
        parts: list[Any] = []
        at = span.start
        for i in span.rows:
            place = places[i]
            # One call fills buffers one after another, so places must not overlap.
            if place.inflated >= 0 or place.offset < at:
                return False
            if place.offset > at:
                # The gap goes to a buffer that nobody looks at.
                parts.append(bytearray(place.offset - at))
            parts.append(views[i].data)
            at = place.offset + place.length
        try:
            handle = self._handle(span.path)
            start = span.start
            for k in range(0, len(parts), _MOST_PARTS):
                some = parts[k : k + _MOST_PARTS]
                length = sum(map(len, some))
                if os.preadv(handle.fd, some, start) != length:
                    return False
                start += length
        except (OSError, Undecodable):
            return False
        return True

    def _one(self, place: Place, view: U8) -> None:
        """Read one sample. Raises :class:`Undecodable`."""
        handle = self._handle(place.path)
        try:
            _fill(handle.fd, place, view)
        except OSError:  # a network file system lost it: retry with a new descriptor
            self.close(place.path)
            attempts(place.path, lambda file: _fill(file.fileno(), place, view))

    def _handle(self, path: bytes) -> _Handle:
        with self._lock:
            handle = self._files.get(path)
            if handle is not None:
                self._files.move_to_end(path)
                return handle
        # attempts() closes its own descriptor.
        handle = attempts(path, lambda file: _Handle(os.dup(file.fileno())))
        with self._lock:
            self._files[path] = handle
            while len(self._files) > self._most:
                self._files.popitem(last=False)  # it closes when the last thread that reads it releases it
        return handle

    def close(self, path: bytes) -> None:
        """Close a file, so that the next reader opens it again: another file may have taken its name."""
        with self._lock:
            self._files.pop(path, None)

    def spare(self) -> None:
        """Close the files, and keep fewer open from now on."""
        with self._lock:
            self._most = max(min(self._most, len(self._files)) // 2, 1)
            self._files.clear()

    def forked(self) -> None:
        """Reset the state in a child. A thread that the child lacks may have held the lock."""
        self._lock = threading.Lock()

    def __reduce__(self) -> str | tuple[Any, ...]:
        return _local, ()


_ALL: weakref.WeakSet[LocalFiles] = weakref.WeakSet()


def _forked() -> None:
    for files in _ALL:
        files.forked()


os.register_at_fork(after_in_child=_forked)

LOCAL = LocalFiles()
"""Storage shared by the whole process: datasets of the same files share open files."""


SPARES.append(LOCAL.spare)


def _local() -> LocalFiles:
    return LOCAL


class _Handle:
    def __init__(self, fd: int):
        self.fd = fd
        weakref.finalize(self, os.close, fd)


def _too_large(place: Place) -> Undecodable | None:
    try:
        refuse_large(place.size, place.max_bytes)
    except Undecodable as e:
        return e
    return None


def _look(path: bytes) -> Found | OSError:
    try:
        found = os.stat(path)
    except OSError as e:
        return e
    except ValueError as e:  # a NUL character, in a foreign index
        return OSError(None, str(e))
    return Found(found.st_size, found.st_mtime_ns, found.st_ctime_ns)


def look_closely(path: bytes) -> Found | int:
    """Return the properties of a local file, or the error number."""
    found = _look(path)
    return (found.errno or 0) if isinstance(found, OSError) else found


def _fill(fd: int, place: Place, view: U8) -> None:
    """Fill a view. Raises :class:`OSError` and :class:`Undecodable`."""
    if place.inflated >= 0:
        view[:] = np.frombuffer(read_at(fd, place), np.uint8)
        return
    at = 0
    while at < place.length:
        n = os.preadv(fd, [view[at : at + (1 << 30)].data], place.offset + at)
        if not n:
            raise ends_before(place, os.fstat(fd).st_size)
        at += n
