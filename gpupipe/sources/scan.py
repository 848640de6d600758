"""Which files a dataset has, and what their folders say of them: names, sizes, times. No file is opened.

:func:`scan_tree` gives the classes, files and order of ``torchvision.datasets.ImageFolder``.
"""

from __future__ import annotations

import logging
import os
import stat
import time
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from ..codecs.probe import MISSING, UNREADABLE
from ..errors import DatasetError

__all__ = ["Scan", "scan_files", "scan_tree"]

_log = logging.getLogger("gpupipe")

I64 = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Scan:
    """What a look at the file system found. Row ``i`` is ``blob[offsets[i]:offsets[i + 1]]`` below ``prefix``."""

    prefix: bytes
    """Absolute, ends with a slash."""
    blob: bytes
    offsets: I64
    """i64[N + 1]"""
    labels: I64 | None
    """i64[N]"""
    file_size: I64
    """i64[N], bytes"""
    mtime_ns: I64
    """i64[N]"""
    status: npt.NDArray[np.uint8]
    """u8[N]: OK, or MISSING or UNREADABLE where the file system already says so."""
    reasons: dict[int, str]
    started_ns: int
    """The clock before the first look."""
    classes: tuple[str, ...] = ()
    empty_classes: tuple[str, ...] = ()
    absolute: bool = False
    """Whether some rows lie outside ``prefix`` and are absolute."""
    folders: tuple[bytes, ...] = ()
    """Every folder that was read, below ``prefix``."""
    folder_mtime_ns: I64 = field(default_factory=lambda: np.empty(0, np.int64))

    def __len__(self) -> int:
        return len(self.status)

    def path(self, i: int) -> bytes:
        """Absolute path of row ``i``."""
        return os.path.join(self.prefix, self.blob[self.offsets[i] : self.offsets[i + 1]])


class _Rows:
    """Columns that grow: arrays of machine integers, because a million Python objects each would not be light."""

    def __init__(self) -> None:
        self.blob = bytearray()
        self.offsets = array("q", [0])
        self.labels = array("q")
        self.file_size = array("q")
        self.mtime_ns = array("q")
        self.status = bytearray()
        self.reasons: dict[int, str] = {}

    def add(self, path: bytes, label: int, found: os.stat_result | OSError) -> None:
        self.blob += path
        self.offsets.append(len(self.blob))
        self.add_stat(found)
        self.labels.append(label)

    def add_stat(self, found: os.stat_result | OSError) -> None:
        size = mtime = status = 0
        if isinstance(found, OSError):
            missing = isinstance(found, (FileNotFoundError, NotADirectoryError))
            status = MISSING if missing else UNREADABLE
            self.reasons[len(self.status)] = found.strerror or str(found)
        else:
            size, mtime = found.st_size, found.st_mtime_ns
            if not stat.S_ISREG(found.st_mode):  # opening a FIFO would wait for ever
                status = UNREADABLE
                self.reasons[len(self.status)] = "it is a folder, a device or a pipe, not a file"
        self.file_size.append(size)
        self.mtime_ns.append(mtime)
        self.status.append(status)

    def columns(self) -> tuple[I64, I64, I64, npt.NDArray[np.uint8]]:
        """(labels, file_size, mtime_ns, status)"""
        a, b, c = (np.frombuffer(x, np.int64) for x in (self.labels, self.file_size, self.mtime_ns))
        return a, b, c, np.frombuffer(self.status, np.uint8)


def _look(entry: os.DirEntry[str]) -> os.stat_result | OSError:
    try:
        return entry.stat()
    except OSError as e:
        return e


def find_classes(root: str, owner: str) -> tuple[str, ...]:
    """The names of the folders in ``root``, sorted. Raises :class:`DatasetError` where there is none."""
    try:
        with os.scandir(root) as entries:
            classes = tuple(sorted(e.name for e in entries if e.is_dir()))
    except FileNotFoundError:
        raise DatasetError(f"{owner}: {root!r} does not exist; give the folder that holds the classes") from None
    except NotADirectoryError:
        raise DatasetError(f"{owner}: {root!r} is a file; give the folder that holds the classes") from None
    except OSError as e:
        raise DatasetError(f"{owner}: {root!r} cannot be read: {e.strerror}") from None
    if not classes:
        what, example = ("video", "clip.mp4") if owner == "VideoFolder" else ("image", "photo.jpg")
        raise DatasetError(
            f"{owner}: {root!r} has no class folder; {what}s belong into one folder per class, such as "
            f"{os.path.join(root, 'cat', example)!r}. For {what}s without classes use {what.capitalize()}List"
        )
    return classes


def scan_tree(
    root: str,
    extensions: tuple[str, ...],
    progress: Callable[[int], None] = lambda n: None,
    owner: str = "ImageFolder",
) -> Scan:
    """Every file below ``root`` as torchvision's ``make_dataset`` finds it: class folders sorted, in each the folders
    of ``os.walk(followlinks=True)`` sorted by path, in each the names sorted.

    Args:
        root: absolute.
        extensions: endings in lower case, compared with the name in lower case.
        progress: called with the number of files so far.
        owner: the dataset that asks, for messages.

    Raises:
        DatasetError: ``root`` is missing or has no class folder.
    """
    started = time.time_ns()
    prefix = os.path.join(root, "")
    # A folder's time is read before its content: what changes in between shows at the next opening.
    folders, times = [b""], [_mtime(root)]
    classes = find_classes(root, owner)
    rows = _Rows()
    empty = []
    for label, name in enumerate(classes):
        before = len(rows.status)
        for folder, mtime, files in sorted(_walk(prefix, name, extensions)):
            encoded = os.fsencode(folder)
            folders.append(encoded)
            times.append(mtime)
            for file, found in sorted(files.items()):
                rows.add(encoded + b"/" + os.fsencode(file), label, found)
        if len(rows.status) == before:
            empty.append(name)
        progress(len(rows.status))
    labels, size, mtime_ns, status = rows.columns()
    return Scan(
        prefix=os.fsencode(prefix),
        blob=bytes(rows.blob),
        offsets=np.frombuffer(rows.offsets, np.int64),
        labels=labels,
        file_size=size,
        mtime_ns=mtime_ns,
        status=status,
        reasons=rows.reasons,
        started_ns=started,
        classes=classes,
        empty_classes=tuple(empty),
        folders=tuple(folders),
        folder_mtime_ns=np.array(times, np.int64),
    )


def _mtime(path: str) -> int:
    try:
        return os.stat(path).st_mtime_ns
    except OSError:
        return -1


_Files = dict[str, os.stat_result | OSError]


def _walk(prefix: str, name: str, extensions: tuple[str, ...]) -> list[tuple[str, int, _Files]]:
    """(folder below ``prefix``, its mtime, its files) of a class, by the rules of ``os.walk(followlinks=True)``."""
    found: list[tuple[str, int, _Files]] = []
    todo = [name]
    while todo:
        folder = todo.pop()
        mtime = _mtime(prefix + folder)
        files: _Files = {}
        try:
            with os.scandir(prefix + folder) as entries:
                for entry in entries:
                    try:
                        is_folder = entry.is_dir()
                    except OSError:
                        is_folder = False
                    if is_folder:
                        todo.append(folder + "/" + entry.name)
                    elif entry.name.lower().endswith(extensions):
                        files[entry.name] = _look(entry)
        except OSError as e:
            # torchvision leaves such a folder out without a word.
            _log.warning("the folder %s cannot be read and is left out: %s", prefix + folder, e.strerror)
            files = {}
        found.append((folder, mtime, files))
    return found


def scan_files(
    prefix: bytes, blob: bytes, offsets: I64, labels: I64 | None, classes: tuple[str, ...], absolute: bool
) -> Scan:
    """Look at each of the listed files; what is missing becomes a bad sample."""
    started = time.time_ns()
    rows = _Rows()
    starts = offsets.tolist()
    for a, b in pairwise(starts):
        try:
            rows.add_stat(os.stat(os.path.join(prefix, blob[a:b])))
        except OSError as e:
            rows.add_stat(e)
    _, size, mtime_ns, status = rows.columns()
    return Scan(
        prefix, blob, offsets, labels, size, mtime_ns, status, rows.reasons, started, classes, absolute=absolute
    )
