"""Files named by a list, and the rows of any files: one file, one row."""

from __future__ import annotations

import hashlib
import os
import stat
import time
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from ..codecs.files import NOT_A_FILE
from ..codecs.probe import MISSING, UNREADABLE
from .base import Listing, Source, TextList, Texts

I64 = npt.NDArray[np.int64]


class FileRows:
    """Columns that grow. They are arrays of machine integers, which take less memory than a million Python objects."""

    def __init__(self) -> None:
        self._paths = TextList()
        self._size = array("q")
        self._mtime_ns = array("q")
        self._ctime_ns = array("q")
        self._status = bytearray()
        self._reasons: dict[int, str] = {}

    def __len__(self) -> int:
        return len(self._status)

    def add(self, path: bytes, found: os.stat_result | OSError) -> None:
        """Add a file and its ``os.stat`` result."""
        self._paths.append(path)
        self.look(found)

    def look(self, found: os.stat_result | OSError) -> None:
        """Add the ``os.stat`` result of the next file of an existing list."""
        size = mtime = ctime = status = 0
        if isinstance(found, OSError):
            missing = isinstance(found, (FileNotFoundError, NotADirectoryError))
            status = MISSING if missing else UNREADABLE
            self._reasons[len(self)] = found.strerror or str(found)
        else:
            size, mtime, ctime = found.st_size, found.st_mtime_ns, found.st_ctime_ns
            if not stat.S_ISREG(found.st_mode):
                status = UNREADABLE
                self._reasons[len(self)] = NOT_A_FILE
        self._size.append(size)
        self._mtime_ns.append(mtime)
        self._ctime_ns.append(ctime)
        self._status.append(status)

    def listing(self, prefix: bytes, started_ns: int, paths: Texts | None = None, **more: Any) -> Listing:
        """Return all rows. ``paths`` are given if they were not added one by one; ``more`` is passed to
        :class:`Listing`."""
        paths = self._paths.texts() if paths is None else paths
        size, mtime_ns, ctime_ns = (np.frombuffer(x, np.int64) for x in (self._size, self._mtime_ns, self._ctime_ns))
        status = np.frombuffer(self._status, np.uint8)
        return Listing(prefix, paths, size, mtime_ns, status, self._reasons, started_ns, ctime_ns=ctime_ns, **more)


@dataclass(frozen=True, eq=False)
class Paths:
    """Files named by a script, in its order."""

    below: bytes
    """A folder: absolute, ends with a slash."""
    rows: Texts = field(repr=False)
    """Paths below the folder, or absolute paths outside of it."""
    absolute: bool = False
    """Whether some paths are absolute."""

    @property
    def key(self) -> tuple[str, str]:
        """JSON values that identify the files."""
        digest = hashlib.blake2b(self.rows.blob, digest_size=16)
        digest.update(self.rows.offsets.tobytes())
        folder = os.fsdecode(self.below)
        # One index for a folder under all of its names.
        return folder if "://" in folder else os.path.realpath(folder), digest.hexdigest()

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, i: int) -> bytes:
        """Return an absolute path."""
        return os.path.join(self.below, self.rows[i])

    def __getstate__(self) -> dict[str, Any]:
        # The index has them; a process that receives a dataset does not build it again.
        return {**self.__dict__, "rows": Texts.of([])}


@dataclass(frozen=True, eq=False)
class Listed(Source):
    """Files named by a list, in its order. A missing one is a bad row, not an error."""

    paths: Paths
    labels: I64 | None = field(repr=False)
    classes: tuple[str, ...]

    whole_files: ClassVar[bool] = True

    @property
    def prefix(self) -> bytes:
        return self.paths.below

    @property
    def key(self) -> tuple[Any, ...]:
        labels = b"" if self.labels is None else self.labels.tobytes()
        return "list", *self.paths.key, hashlib.blake2b(labels, digest_size=16).hexdigest(), self.classes

    def listing(self, progress: Callable[[int], None]) -> Listing:
        started, rows = time.time_ns(), FileRows()
        for i in range(len(self.paths)):
            try:
                rows.look(os.stat(self.paths[i]))
            except OSError as e:
                rows.look(e)
            if i % 4096 == 0:
                progress(i)
        return rows.listing(
            self.prefix,
            started,
            self.paths.rows,
            labels=self.labels,
            classes=self.classes,
            absolute=self.paths.absolute,
        )

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "labels": None}  # the index has them as well
