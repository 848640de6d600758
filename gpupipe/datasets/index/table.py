"""The index of a dataset of image files: built once, kept in the cache, memory-mapped by every process.

An index is opened when nothing changed, by what can be seen cheaply: the modification times of all folders (files
that were added, removed or renamed), and size and modification time of all files, or of an even sample of
:data:`SAMPLED` where there are more than :data:`STAT_ALL`. So a file overwritten in place in a large tree may go
unseen; ``dataset.reindex()`` looks at everything. Otherwise it is built again, and only new and changed files are
probed.

Times closer to the scan than :data:`RACY_NS` prove nothing: a file system that counts in seconds shows no difference
between before and after (git calls such an index "racily clean"). An index made so is not believed the next time;
files that old are probed again.
"""

from __future__ import annotations

import contextlib
import os
from itertools import pairwise

import numpy as np
import numpy.typing as npt
import PIL

from ...codecs.probe import KINDS, MISSING, NO_FRAMES, NO_VIDEO, OK, TRUNCATED, UNDECODABLE, UNREADABLE
from ...sources.scan import Scan
from .column_file import Columns, ColumnsError

__all__ = ["Index", "is_racy", "sampled_rows"]

I64 = npt.NDArray[np.int64]

STAT_ALL = 20_000
SAMPLED = 4_096
RACY_NS = 2_000_000_000
_LONGEST = 1 << 16
"""No path and no reason has more bytes."""
_JUDGED = (UNDECODABLE, TRUNCATED, NO_VIDEO, NO_FRAMES)
"""What another version of the decoder may see in another way."""
_FAR_FUTURE_NS = 86_400 * 1_000_000_000  # later than any clock is wrong: such times were set by hand


class Index:
    """An open index. ``N`` rows; every column is a read-only view of the file.

    Raises :class:`ColumnsError` where the file lacks something.
    """

    decoder = "Pillow"
    """What judged the files; its version is kept under this name in lower case."""

    def __init__(self, columns: Columns):
        self.columns = columns
        meta = columns.meta
        n = meta.get("count")
        if type(n) is not int or n < 0:
            raise ColumnsError(f"{columns.path}: count is {n!r}; delete the file, it is made again")
        self.count = n
        self.classes = self._texts("classes")
        self.empty_classes = self._texts("empty_classes")
        self.codings = self._texts("codings")
        fixed = {"started_ns": int, "racy": bool, "absolute": bool, "fingerprint": str, self.decoder.lower(): str}
        for name, kind in fixed.items():
            if type(meta.get(name)) is not kind:
                raise ColumnsError(f"{columns.path}: {name} is {meta.get(name)!r}; delete the file, it is made again")
        get = columns.column
        self.blob = get("path_blob", "|u1", -1)
        self.offsets: I64 = get("path_offsets", "<i8", n + 1)
        self.stored_sizes: npt.NDArray[np.int32] = get("sizes", "<i4", n, 2)
        self.upright_sizes: npt.NDArray[np.int32] = (
            get("upright", "<i4", n, 2) if "upright" in columns.arrays else self.stored_sizes
        )
        self.labels: I64 | None = get("labels", "<i8", n) if "labels" in columns.arrays else None
        self.status = get("status", "|u1", n)
        self.coding = get("coding", "|u1", n)
        self.orientation = get("orientation", "|u1", n)
        self.file_size: I64 = get("file_size", "<i8", n)
        self.mtime_ns: I64 = get("mtime_ns", "<i8", n)
        self.folder_mtime_ns: I64 = get("folder_mtime_ns", "<i8", -1)
        self._folders = self._strings("folder", len(self.folder_mtime_ns))
        self._bad_rows: I64 = get("bad_rows", "<i8", -1)
        if len(self._bad_rows) and not (self._bad_rows.min() >= 0 and self._bad_rows.max() < n):
            raise ColumnsError(f"{columns.path}: bad_rows are outside; delete the file, it is made again")
        self._reasons = self._strings("reason", len(self._bad_rows))
        self._strings("path", n)
        self.built = False
        self.reused = 0
        self.seconds = 0.0

    def _texts(self, name: str) -> list[str]:
        value = self.columns.meta.get(name)
        if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
            raise ColumnsError(f"{self.columns.path}: {name} is no list of names; delete the file, it is made again")
        return value

    def _strings(self, name: str, count: int) -> tuple[int, I64]:
        """(where the text begins in the file, i64[count + 1] offsets into it)"""
        offsets = self.columns.column(f"{name}_offsets", "<i8", count + 1)
        blob = self.columns.column(f"{name}_blob", "|u1", -1)
        if offsets[0] != 0 or offsets[-1] != len(blob):
            raise ColumnsError(f"{self.columns.path}: {name}_offsets do not fit; delete the file, it is made again")
        return self.columns.offsets[f"{name}_blob"], offsets

    def _string(self, strings: tuple[int, I64], i: int) -> bytes:
        at, offsets = strings
        self._checked(offsets[i : i + 1], offsets[i + 1 : i + 2])
        return self.columns.map[at + int(offsets[i]) : at + int(offsets[i + 1])]

    def _checked(self, starts: I64, ends: I64) -> None:
        """The header's digest says nothing of the columns, and a file can be spoiled by its disk."""
        lengths = ends - starts
        if len(starts) and (starts.min() < 0 or lengths.min() < 0 or lengths.max() >= _LONGEST):
            raise ColumnsError(f"{self.columns.path}: offsets are damaged; delete the file, it is made again")

    def __len__(self) -> int:
        return self.count

    def __reduce__(self) -> tuple[type[Index], tuple[Columns]]:
        return Index, (self.columns,)  # the file, not its rows

    @classmethod
    def decoder_version(cls) -> str:
        return PIL.__version__

    def _other_decoder(self) -> bool:
        return bool(self.columns.meta[self.decoder.lower()] != self.decoder_version())

    @property
    def racy(self) -> bool:
        return bool(self.columns.meta["racy"])

    def path(self, i: int) -> bytes:
        """Path of row ``i`` below the prefix (absolute where it lies outside)."""
        return self._string((self.columns.offsets["path_blob"], self.offsets), i)

    def encoded(self, indices: I64, prefix: bytes) -> list[npt.NDArray[np.uint8]]:
        """Absolute paths as bytes, u8[L] each."""
        at, content, frombuffer, u8 = self.columns.offsets["path_blob"], self.columns.map, np.frombuffer, np.uint8
        starts, ends = self.offsets[indices], self.offsets[indices + 1]
        self._checked(starts, ends)
        starts, ends = (starts + at).tolist(), (ends + at).tolist()
        if self.columns.meta["absolute"]:
            join = os.path.join
            return [frombuffer(join(prefix, content[a:b]), u8) for a, b in zip(starts, ends, strict=True)]
        return [frombuffer(prefix + content[a:b], u8) for a, b in zip(starts, ends, strict=True)]

    def bad(self, indices: I64) -> list[tuple[int, str, str]]:
        """(row, kind, reason) of those of ``indices`` whose file cannot be used, in their order."""
        status = self.status[indices]
        if not status.any():
            return []
        return [(int(i), *self._why(int(i))) for i in indices[status != OK]]

    def all_bad(self) -> list[tuple[int, str, str]]:
        """(row, kind, reason) of every file that cannot be used."""
        return self.bad(np.flatnonzero(self.status))

    def _why(self, i: int) -> tuple[str, str]:
        kind = KINDS[self.status[i]] if self.status[i] < len(KINDS) else "unreadable"
        k = int(np.searchsorted(self._bad_rows, i))
        known = k < len(self._bad_rows) and self._bad_rows[k] == i
        return kind, self._string(self._reasons, k).decode(errors="replace") if known else kind

    # ---------------------------------------------------------------- has anything changed?

    def stale(self, prefix: bytes) -> str | None:
        """What shows that the files are not those of this index any more; ``None`` where nothing does."""
        if self.racy:
            return "files had changed within 2 seconds of the scan"
        for i, mtime in enumerate(self.folder_mtime_ns.tolist()):
            folder = prefix + self._string(self._folders, i)
            try:
                if os.stat(folder).st_mtime_ns != mtime:
                    return f"{os.fsdecode(folder)} has changed"
            except (OSError, ValueError) as e:  # ValueError: a NUL, in a file that is not ours
                return f"{os.fsdecode(folder)}: {e}"
        rows = sampled_rows(self.count)
        columns = (rows, self.file_size[rows], self.mtime_ns[rows], self.status[rows])
        for i, size, mtime, status in zip(*(c.tolist() for c in columns), strict=True):
            path = os.path.join(prefix, self.path(i))
            try:
                found = os.stat(path)
            except (OSError, ValueError) as e:
                if status in (MISSING, UNREADABLE):
                    continue
                return f"{os.fsdecode(path)}: {e}"
            if status == MISSING or (found.st_size, found.st_mtime_ns) != (size, mtime):
                return f"{os.fsdecode(path)} has changed"
        return self._better_now(prefix)

    def _better_now(self, prefix: bytes) -> str | None:
        """Whether a file that could not be read can be read now: neither chmod nor a new decoder touches its time."""
        if not self._bad_rows.size:
            return None
        status = self.status[self._bad_rows]
        if self._other_decoder() and np.isin(status, _JUDGED).any():
            return f"{self.decoder} is now {self.decoder_version()}"
        for i in self._bad_rows[(status == UNREADABLE) | (status == MISSING)][:SAMPLED].tolist():
            path = os.path.join(prefix, self.path(i))
            with contextlib.suppress(OSError, ValueError):
                os.close(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK))
                if os.path.isfile(path):
                    return f"{os.fsdecode(path)} can be read now"
        return None

    def reusable(self) -> npt.NDArray[np.bool_]:
        """bool[N]: rows whose numbers can be kept if size and time of the file are the same."""
        started = int(self.columns.meta["started_ns"])
        status = self.status
        good: npt.NDArray[np.bool_] = (status != MISSING) & (status != UNREADABLE)
        if self._other_decoder():
            good &= ~np.isin(status, _JUDGED)
        return good & ~is_racy(self.mtime_ns, started)

    def rows_of(self, scan: Scan) -> I64:
        """i64[len(scan)]: the row here that describes the same unchanged file, or -1."""
        if np.array_equal(self.offsets, scan.offsets) and self.blob.data == memoryview(scan.blob):
            rows = np.arange(self.count)
        else:
            have = {self.path(i): i for i in range(self.count)}
            starts = scan.offsets.tolist()
            blob = scan.blob
            rows = np.array([have.get(blob[a:b], -1) for a, b in pairwise(starts)], np.int64)
        if not self.count:
            return rows
        same = (rows >= 0) & self.reusable()[rows] & (scan.status == OK)
        same &= (self.file_size[rows] == scan.file_size) & (self.mtime_ns[rows] == scan.mtime_ns)
        return np.where(same, rows, -1)


def is_racy(mtime_ns: I64, started_ns: int) -> npt.NDArray[np.bool_]:
    """bool[N]: times so close to a scan that a later change may show the same time."""
    return (mtime_ns >= started_ns - RACY_NS) & (mtime_ns <= started_ns + _FAR_FUTURE_NS)


def sampled_rows(count: int) -> I64:
    """The rows whose files are looked at when an index of ``count`` rows is opened: all, or an even sample."""
    if count <= STAT_ALL:
        return np.arange(count)
    return np.linspace(0, count - 1, SAMPLED).astype(np.int64)
