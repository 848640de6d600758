"""Files that a list names, and the rows of any files: one file, one row."""

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

from ..codecs.probe import MISSING, UNREADABLE
from .base import Listing, Source, Texts

__all__ = ["FileRows", "Listed"]

I64 = npt.NDArray[np.int64]


class FileRows:
    """Columns that grow: arrays of machine integers, because a million Python objects each would not be light."""

    def __init__(self) -> None:
        self._blob = bytearray()
        self._offsets = array("q", [0])
        self._size = array("q")
        self._mtime_ns = array("q")
        self._status = bytearray()
        self._reasons: dict[int, str] = {}

    def __len__(self) -> int:
        return len(self._status)

    def add(self, path: bytes, found: os.stat_result | OSError) -> None:
        """One file, and what the system says of it."""
        self._blob += path
        self._offsets.append(len(self._blob))
        self.look(found)

    def look(self, found: os.stat_result | OSError) -> None:
        """What the system says of the next file of a list that is there already."""
        size = mtime = status = 0
        if isinstance(found, OSError):
            missing = isinstance(found, (FileNotFoundError, NotADirectoryError))
            status = MISSING if missing else UNREADABLE
            self._reasons[len(self)] = found.strerror or str(found)
        else:
            size, mtime = found.st_size, found.st_mtime_ns
            if not stat.S_ISREG(found.st_mode):  # opening a FIFO would wait for ever
                status = UNREADABLE
                self._reasons[len(self)] = "it is a folder, a device or a pipe, not a file"
        self._size.append(size)
        self._mtime_ns.append(mtime)
        self._status.append(status)

    def listing(self, prefix: bytes, started_ns: int, paths: Texts | None = None, **more: Any) -> Listing:
        """All of them. ``paths`` are those that were not added one by one; ``more`` goes to :class:`Listing`."""
        if paths is None:
            paths = Texts(bytes(self._blob), np.frombuffer(self._offsets, np.int64))
        size, mtime_ns = (np.frombuffer(x, np.int64) for x in (self._size, self._mtime_ns))
        status = np.frombuffer(self._status, np.uint8)
        return Listing(prefix, paths, size, mtime_ns, status, self._reasons, started_ns, **more)


@dataclass(frozen=True, eq=False)
class Listed(Source):
    """Files that a list names, in its order. One that is missing is a bad row, and not an error."""

    below: bytes
    """The prefix."""
    paths: Texts = field(repr=False)
    labels: I64 | None
    classes: tuple[str, ...]
    absolute: bool
    """Whether some paths lie outside the prefix and are absolute."""

    whole_files: ClassVar[bool] = True

    @property
    def prefix(self) -> bytes:
        return self.below

    @property
    def key(self) -> tuple[Any, ...]:
        digest = hashlib.blake2b(self.paths.blob, digest_size=16)
        digest.update(self.paths.offsets.tobytes())
        digest.update(b"" if self.labels is None else self.labels.tobytes())
        return "list", os.path.realpath(os.fsdecode(self.prefix)), digest.hexdigest(), self.classes

    def listing(self, progress: Callable[[int], None]) -> Listing:
        started, rows = time.time_ns(), FileRows()
        for i in range(len(self.paths)):
            try:
                rows.look(os.stat(os.path.join(self.prefix, self.paths[i])))
            except OSError as e:
                rows.look(e)
            if i % 4096 == 0:
                progress(i)
        return rows.listing(
            self.prefix, started, self.paths, labels=self.labels, classes=self.classes, absolute=self.absolute
        )

    def __getstate__(self) -> dict[str, Any]:
        # The list is in the index; a process that was sent this dataset does not build it again.
        return {**self.__dict__, "paths": Texts.of([]), "labels": None}
