"""Where encoded samples are. A source lists them once, and reads them by place: a row is a range of bytes in a
container.

A folder is a source whose containers are its files, one row each; of a tar file the rows are its members. A format is
so no more than a way to list rows. Order, reading ahead, resuming, ranks, bad samples and caches know nothing of
formats.
"""

from __future__ import annotations

import os
import threading
import weakref
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from ..codecs.files import Place, Undecodable, attempts, read_at

__all__ = ["Listing", "Source", "Texts"]

I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]
U8 = npt.NDArray[np.uint8]

_OPEN_FILES = 64


@dataclass(frozen=True, eq=False)
class Texts:
    """Many short texts in two arrays: a million Python objects would not be light.

    >>> Texts.of([b"cat.jpg", b"dog.jpg"])[1]
    b'dog.jpg'
    """

    blob: bytes | bytearray
    offsets: I64
    """i64[N + 1]"""

    @classmethod
    def of(cls, texts: Iterable[bytes]) -> Texts:
        rows = list(texts)
        return cls(b"".join(rows), np.fromiter(accumulate(map(len, rows), initial=0), np.int64, len(rows) + 1))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, i: int) -> bytes:
        return bytes(self.blob[self.offsets[i] : self.offsets[i + 1]])


@dataclass(frozen=True, eq=False)
class Listing:
    """What a source has, without a look into any sample: C containers, and N rows in them."""

    prefix: bytes
    """What the containers are below: absolute, ends with a slash."""
    containers: Texts
    """Their paths, below ``prefix``."""
    container_size: I64
    """i64[C], bytes."""
    mtime_ns: I64
    """i64[C]"""
    status: U8
    """u8[N]: OK, or why a row cannot be read, if that is known already; see :data:`gpupipe.codecs.probe.KINDS`."""
    reasons: dict[int, str]
    """In words, by row."""
    started_ns: int
    """The clock before the first look."""
    labels: I64 | None = None
    """i64[N]"""
    container: I32 | None = None
    """i32[N]: which container a row is in; ``None``: every container is one row."""
    offset: I64 | None = None
    """i64[N], bytes; with ``container``."""
    length: I64 | None = None
    """i64[N], bytes; with ``container``."""
    names: Texts | None = None
    """What the rows are called within their containers; with ``container``."""
    classes: tuple[str, ...] = ()
    empty_classes: tuple[str, ...] = ()
    absolute: bool = False
    """Whether some containers lie outside ``prefix`` and are absolute."""
    folders: tuple[bytes, ...] = ()
    """Every folder that was read, below ``prefix``."""
    folder_mtime_ns: I64 = field(default_factory=lambda: np.empty(0, np.int64))

    def __len__(self) -> int:
        return len(self.status)

    def place(self, row: int) -> Place:
        """Where the bytes of a row are."""
        if self.container is None:
            return Place(os.path.join(self.prefix, self.containers[row]))
        assert self.offset is not None and self.length is not None
        path = os.path.join(self.prefix, self.containers[int(self.container[row])])
        return Place(path, int(self.offset[row]), int(self.length[row]))


class Source(ABC):
    """Where encoded samples are. Picklable; opens nothing before it must, and then once per process."""

    whole_files: ClassVar[bool]
    """Whether every row is a whole local file, which an engine may open by itself."""

    @property
    @abstractmethod
    def key(self) -> tuple[Any, ...]:
        """JSON values that say which samples these are: what a cached index is found by."""

    @property
    @abstractmethod
    def prefix(self) -> bytes:
        """What the paths of containers are below: absolute, ends with a slash."""

    @abstractmethod
    def listing(self, progress: Callable[[int], None]) -> Listing:
        """Look what there is; ``progress`` is told the number of rows so far.

        Raises :class:`~gpupipe.errors.DatasetError` if there is nothing to look at.
        """

    def read(self, places: Sequence[Place]) -> list[bytes | Undecodable]:
        """The bytes of samples, in the order of ``places``; of one that cannot be read why. Safe in any thread."""
        return [_read(place) for place in places]


def _read(place: Place) -> bytes | Undecodable:
    try:
        return attempts(place.path, lambda file: read_at(file.fileno(), place))
    except Undecodable as e:
        return e


class OpenFiles:
    """Files that stay open, for containers of many rows: opening one takes longer than reading a row. At most 64; the
    one that was not read for the longest time is closed.

    Reading is by position, so threads share them, and a forked child may go on with its parent's.
    """

    def __init__(self) -> None:
        self._files: OrderedDict[bytes, _Handle] = OrderedDict()
        self._lock = threading.Lock()

    def read(self, place: Place) -> bytes:
        """As :func:`gpupipe.codecs.files.read_place`."""
        with self._lock:
            handle = self._files.get(place.path)
            if handle is not None:
                self._files.move_to_end(place.path)
        if handle is None:
            handle = attempts(place.path, lambda file: _Handle(os.dup(file.fileno())))
            with self._lock:
                self._files[place.path] = handle
                while len(self._files) > _OPEN_FILES:
                    self._files.popitem(last=False)  # it closes when the last thread that reads it lets go
        try:
            return read_at(handle.fd, place)
        except OSError:  # a network file system lost it; with retries, by a fresh one
            with self._lock:
                self._files.pop(place.path, None)
            return attempts(place.path, lambda file: read_at(file.fileno(), place))

    def __reduce__(self) -> tuple[type[OpenFiles], tuple[()]]:
        return OpenFiles, ()


class _Handle:
    def __init__(self, fd: int):
        self.fd = fd
        weakref.finalize(self, os.close, fd)
