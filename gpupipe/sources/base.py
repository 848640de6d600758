"""Where encoded samples are. A source lists them once, and reads them by place: a row is a range of bytes in a
container.

A folder is a source whose containers are its files, one row each; of a tar file the rows are its members. A format is
so no more than a way to list rows. Order, reading ahead, resuming, ranks, bad samples and caches know nothing of
formats.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from ..codecs.files import Place, Undecodable
from ..codecs.unpack import ARROW_CODECS, CODECS, Packed
from ..errors import DatasetError
from .storage import LOCAL, Storage

__all__ = ["Listing", "PackedColumns", "Pages", "Source", "TextList", "Texts", "Values"]

I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]
U8 = npt.NDArray[np.uint8]


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

    def many(self, indices: I64) -> list[bytes]:
        """The texts at ``indices``."""
        return [self[i] for i in indices.tolist()]


class TextList:
    """:class:`Texts` that grow."""

    def __init__(self) -> None:
        self._blob = bytearray()
        self._offsets = array("q", [0])

    def append(self, text: bytes) -> None:
        self._blob += text
        self._offsets.append(len(self._blob))

    def texts(self) -> Texts:
        """All of them; nothing can be appended any more."""
        return Texts(bytes(self._blob), np.frombuffer(self._offsets, np.int64))


@dataclass(frozen=True, eq=False)
class Values:
    """A further column: one value for each row."""

    kind: str
    """``"bool"``, ``"int"``, ``"float"`` or ``"str"``; or data type and shape of arrays, such as ``"<f4[4,2]"``."""
    data: npt.NDArray[Any] | Texts
    """u8[N] of ``"bool"``, i64[N] of ``"int"``, f64[N] of ``"float"``; texts in UTF-8 of ``"str"``; of arrays their
    bytes, u8[N, L]."""


@dataclass(frozen=True, eq=False)
class PackedColumns:
    """How rows are unpacked; see :class:`~gpupipe.codecs.unpack.Packed`."""

    codec: U8
    """u8[N]: 0 for rows that are stored as they are, else 1 and a position in :data:`gpupipe.codecs.unpack.CODECS`."""
    size: I64
    """i64[N], bytes after unpacking"""
    skip: I64
    """i64[N], bytes"""
    take: I64
    """i64[N], bytes"""

    @property
    def shared(self) -> npt.NDArray[np.bool_]:
        """bool[N]; see :attr:`gpupipe.codecs.unpack.Packed.shared`."""
        shared: npt.NDArray[np.bool_] = np.isin(self.codec, _PAGE_CODECS) & (2 * self.take <= self.size)
        return shared

    def at(self, row: int) -> Packed | None:
        """``None`` if the row is stored as it is."""
        code = int(self.codec[row])
        if not code:
            return None
        if code > len(_CODECS):
            raise DatasetError(f"row {row} is packed by a codec with number {code}; call reindex()")
        return Packed(_CODECS[code - 1], int(self.size[row]), int(self.skip[row]), int(self.take[row]))


_CODECS = tuple(CODECS)
_PAGE_CODECS = [1 + _CODECS.index(name) for name in ARROW_CODECS]


@dataclass(frozen=True, eq=False)
class Pages:
    """Samples that are compressed together: one is read by unpacking the page that it is in."""

    number: I64
    """i64[N]: page of each sample. A sample that is not compressed with others has one of its own."""
    samples: float
    """Mean number of samples in a page."""
    largest: int
    """Bytes of the largest page."""
    nbytes: int
    """Bytes of all pages."""


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
    """i64[C]: their versions, of local files the modification time; see :class:`gpupipe.sources.storage.Found`."""
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
    packed: PackedColumns | None = None
    """With ``container``; ``None`` if every row is stored as it is."""
    names: Texts | None = None
    """What the rows are called within their containers; with ``container``."""
    columns: Mapping[str, Values] = field(default_factory=dict)
    """What belongs to every row beside its label, by name."""
    classes: tuple[str, ...] = ()
    empty_classes: tuple[str, ...] = ()
    absolute: bool = False
    """Whether some containers lie outside ``prefix`` and are absolute."""
    folders: tuple[bytes, ...] = ()
    """Every folder that was read, below ``prefix``."""
    folder_mtime_ns: I64 = field(default_factory=lambda: np.empty(0, np.int64))
    ctime_ns: I64 | None = None
    """i64[C]: when the inodes of files of this machine changed last, if that is known; see
    :mod:`gpupipe.datasets.index.touched`."""
    part_sums: I64 | None = None
    """i64[C]: made of parts of large files."""

    def __len__(self) -> int:
        return len(self.status)

    def place(self, row: int) -> Place:
        """Where the bytes of a row are."""
        if self.container is None:
            return Place(os.path.join(self.prefix, self.containers[row]))
        assert self.offset is not None and self.length is not None
        k = int(self.container[row])
        path, version = os.path.join(self.prefix, self.containers[k]), int(self.mtime_ns[k])
        packed = None if self.packed is None else self.packed.at(row)
        return Place(path, int(self.offset[row]), int(self.length[row]), version, packed)


class Source(ABC):
    """Where encoded samples are. Picklable; opens nothing before it must, and then once per process."""

    whole_files: ClassVar[bool]
    """Whether every row is a whole local file, which an engine may open by itself."""
    storage: Storage = LOCAL
    """What containers are read with."""
    columns: tuple[str, ...] = ()
    """Names of what rows have beside their label."""

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
        return self.storage.read(places)
