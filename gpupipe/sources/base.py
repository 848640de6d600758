"""Sources of encoded samples. A source lists its samples once and reads them by place, a range of bytes in a container.

A folder is a source whose containers are its files, one row each. In a tar file the rows are its members. A format is
thus no more than a way to list rows. Order, read-ahead, resuming, ranks, bad samples and caches do not depend on it.
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
from .storage import LOCAL, Storage

I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]
U8 = npt.NDArray[np.uint8]


@dataclass(frozen=True, eq=False)
class Texts:
    """Many short texts in two arrays, which take less memory than a million Python objects.

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
        """Return the texts at ``indices``."""
        return [self[i] for i in indices.tolist()]


class TextList:
    """A :class:`Texts` that grows."""

    def __init__(self) -> None:
        self._blob = bytearray()
        self._offsets = array("q", [0])

    def append(self, text: bytes) -> None:
        self._blob += text
        self._offsets.append(len(self._blob))

    def texts(self) -> Texts:
        """Return all texts. Nothing can be appended afterwards."""
        return Texts(bytes(self._blob), np.frombuffer(self._offsets, np.int64))


@dataclass(frozen=True, eq=False)
class Values:
    """Values of a further column, one for each row."""

    kind: str
    """``"bool"``, ``"int"``, ``"float"`` or ``"str"``; for arrays their data type and shape, such as ``"<f4[4,2]"``."""
    data: npt.NDArray[Any] | Texts
    """u8[N] for ``"bool"``, i64[N] for ``"int"``, f64[N] for ``"float"``, UTF-8 texts for ``"str"``; for arrays
    their bytes, u8[N, L]."""


@dataclass(frozen=True, eq=False)
class Listing:
    """Contents of a source, listed without opening any sample: C containers with N rows."""

    prefix: bytes
    """Common prefix of the containers' paths: absolute, ends with a slash."""
    containers: Texts
    """Paths of the containers, below ``prefix``."""
    container_size: I64
    """i64[C], bytes."""
    mtime_ns: I64
    """i64[C], versions of the containers: the modification time for local files; see
    :class:`gpupipe.sources.storage.Found`."""
    status: U8
    """u8[N]: OK, or why a row cannot be read, if known already; see :data:`gpupipe.codecs.probe.KINDS`."""
    reasons: dict[int, str]
    """Reasons in words, by row."""
    started_ns: int
    """The clock before anything was listed."""
    labels: I64 | None = None
    """i64[N]"""
    container: I32 | None = None
    """i32[N]: the container of each row; ``None`` if every container is one row."""
    offset: I64 | None = None
    """i64[N], bytes. Given with ``container``."""
    length: I64 | None = None
    """i64[N], bytes. Given with ``container``."""
    inflated: I64 | None = None
    """i64[N], bytes of each row after inflating, -1 for one that is not deflated; ``None`` if none is."""
    names: Texts | None = None
    """Names of the rows within their containers. Given with ``container``."""
    columns: Mapping[str, Values] = field(default_factory=dict)
    """Further values of each row besides its label, by column name."""
    classes: tuple[str, ...] = ()
    empty_classes: tuple[str, ...] = ()
    absolute: bool = False
    """Whether some containers lie outside ``prefix`` and have absolute paths."""
    folders: tuple[bytes, ...] = ()
    """All folders that were read, below ``prefix``."""
    folder_mtime_ns: I64 = field(default_factory=lambda: np.empty(0, np.int64))
    ctime_ns: I64 | None = None
    """i64[C]: inode change times of local files, if known. No program can set them, so they also reveal content
    replaced by ``cp -p``, ``rsync -t`` or ``touch -r``."""

    def __len__(self) -> int:
        return len(self.status)

    def place(self, row: int) -> Place:
        """Return the place of the bytes of a row."""
        if self.container is None:
            return Place(os.path.join(self.prefix, self.containers[row]))
        assert self.offset is not None and self.length is not None
        k = int(self.container[row])
        path, version = os.path.join(self.prefix, self.containers[k]), int(self.mtime_ns[k])
        inflated = -1 if self.inflated is None else int(self.inflated[row])
        return Place(path, int(self.offset[row]), int(self.length[row]), version, inflated)


class Source(ABC):
    """A collection of encoded samples. Picklable; opens nothing before it must, and then once per process."""

    whole_files: ClassVar[bool]
    """Whether every row is a whole local file, which an engine may open by itself."""
    storage: Storage = LOCAL
    """Storage that reads the containers."""
    columns: tuple[str, ...] = ()
    """Names of the columns besides the label."""

    @property
    @abstractmethod
    def key(self) -> tuple[Any, ...]:
        """JSON values that identify the samples. A cached index is found by them."""

    @property
    @abstractmethod
    def prefix(self) -> bytes:
        """Common prefix of the containers' paths: absolute, ends with a slash."""

    @abstractmethod
    def listing(self, progress: Callable[[int], None]) -> Listing:
        """List all samples. Calls ``progress`` with the number of rows so far.

        Raises :class:`~gpupipe.errors.DatasetError` if there is nothing to list.
        """

    def fields(self) -> list[str]:
        """Return what the first row has beside image and label, as ``columns`` takes it; for messages."""
        return []

    def read(self, places: Sequence[Place]) -> list[bytes | Undecodable]:
        """Read the bytes of samples, in the order of ``places``, or the reason why one cannot be read. Thread-safe."""
        return self.storage.read(places)
