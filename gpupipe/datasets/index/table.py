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
from typing import Any

import numpy as np
import numpy.typing as npt
import PIL

from ...codecs.files import Place
from ...codecs.probe import KINDS, MISSING, NO_FRAMES, NO_VIDEO, OK, TRUNCATED, UNDECODABLE, UNREADABLE
from ...sources.base import Listing, PackedColumns, Source
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
    """An open index: N rows in C files. Every column is a read-only view of the index file.

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
        self.containers = len(get("path_offsets", "<i8", -1)) - 1
        """C: files that rows are in."""
        self.blob = get("path_blob", "|u1", -1)
        self.offsets: I64 = get("path_offsets", "<i8", self.containers + 1)
        self.container: npt.NDArray[np.int32] | None = None
        """i32[N]: which container a row is in; ``None``: every container is one row."""
        if "container" in columns.arrays:
            self.container = get("container", "<i4", n)
            self.offset: I64 = get("offset", "<i8", n)
            self.length: I64 = get("length", "<i8", n)
            self._names = self._strings("name", n)
            self._packed = None
            if "packed_codec" in columns.arrays:
                numbers = (get(f"packed_{name}", "<i8", n) for name in ("size", "skip", "take"))
                self._packed = PackedColumns(get("packed_codec", "|u1", n), *numbers)
        elif self.containers != n:
            raise ColumnsError(
                f"{columns.path}: {self.containers} files for {n} rows; delete the file, it is made again"
            )
        self.stored_sizes: npt.NDArray[np.int32] = get("sizes", "<i4", n, 2)
        self.upright_sizes: npt.NDArray[np.int32] = (
            get("upright", "<i4", n, 2) if "upright" in columns.arrays else self.stored_sizes
        )
        self.labels: I64 | None = get("labels", "<i8", n) if "labels" in columns.arrays else None
        self.status = get("status", "|u1", n)
        self.coding = get("coding", "|u1", n)
        self.orientation = get("orientation", "|u1", n)
        self.container_size: I64 = get("file_size", "<i8", self.containers)
        """i64[C], bytes."""
        self.mtime_ns: I64 = get("mtime_ns", "<i8", self.containers)
        """i64[C]"""
        self.folder_mtime_ns: I64 = get("folder_mtime_ns", "<i8", -1)
        self._folders = self._strings("folder", len(self.folder_mtime_ns))
        self._bad_rows: I64 = get("bad_rows", "<i8", -1)
        if len(self._bad_rows) and not (self._bad_rows.min() >= 0 and self._bad_rows.max() < n):
            raise ColumnsError(f"{columns.path}: bad_rows are outside; delete the file, it is made again")
        self._reasons = self._strings("reason", len(self._bad_rows))
        self._strings("path", self.containers)
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

    @property
    def sample_size(self) -> I64:
        """i64[N], bytes of each row."""
        if self.container is None:
            return self.container_size
        return self.length if self._packed is None else self._packed.take

    def path(self, i: int) -> bytes:
        """The file that row ``i`` is in, below the prefix (absolute if it lies outside)."""
        return self._path(i if self.container is None else self._container_of(i))

    def _path(self, container: int) -> bytes:
        return self._string((self.columns.offsets["path_blob"], self.offsets), container)

    def _container_of(self, i: int) -> int:
        assert self.container is not None
        found = int(self.container[i])
        if not 0 <= found < self.containers:
            raise ColumnsError(f"{self.columns.path}: row {i} is damaged; delete the file, it is made again")
        return found

    def name(self, i: int) -> bytes:
        """What row ``i`` is called within its file; empty if it is the file."""
        return b"" if self.container is None else self._string(self._names, i)

    def place(self, i: int, prefix: bytes) -> Place:
        """Where the bytes of row ``i`` are."""
        if self.container is None:
            return Place(os.path.join(prefix, self._path(i)))
        k = self._container_of(i)
        packed = None if self._packed is None else self._packed.at(i)
        path, version = os.path.join(prefix, self._path(k)), int(self.mtime_ns[k])
        return Place(path, int(self.offset[i]), int(self.length[i]), version, packed)

    def encoded(self, indices: I64, prefix: bytes) -> list[npt.NDArray[np.uint8]]:
        """Absolute paths as bytes, u8[L] each; of rows that are files."""
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

    def stale(self, source: Source) -> str | None:
        """What shows that the files are not those of this index any more; ``None`` where nothing does."""
        if self.racy:
            return "files had changed within 2 seconds of the scan"
        prefix = source.prefix
        for i, mtime in enumerate(self.folder_mtime_ns.tolist()):
            folder = prefix + self._string(self._folders, i)
            try:
                if os.stat(folder).st_mtime_ns != mtime:
                    return f"{os.fsdecode(folder)} has changed"
            except (OSError, ValueError) as e:  # ValueError: a NUL, in a file that is not ours
                return f"{os.fsdecode(folder)}: {e}"
        files = sampled_rows(self.containers)
        missing = self.status[files] if self.container is None else np.zeros(len(files), np.uint8)
        paths = [os.path.join(prefix, self._path(i)) for i in files.tolist()]
        columns = (self.container_size[files], self.mtime_ns[files], missing)
        known = zip(*(c.tolist() for c in columns), strict=True)
        for path, found, (size, mtime, status) in zip(paths, source.storage.look(paths), known, strict=True):
            if isinstance(found, OSError):
                if status in (MISSING, UNREADABLE):
                    continue
                return f"{os.fsdecode(path)}: {found}"
            if status == MISSING or found != (size, mtime):
                return f"{os.fsdecode(path)} has changed"
        return None if source.storage.remote else self._better_now(prefix)

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
        times = self.mtime_ns if self.container is None else self.mtime_ns[self.container]
        return good & ~is_racy(times, started)

    def rows_of(self, listing: Listing) -> I64:
        """i64[len(listing)]: the row here that describes the same unchanged sample, or -1."""
        files = self._files_of(listing)
        if self.container is None or listing.container is None:
            rows = files if self.container is None and listing.container is None else np.full(len(listing), -1)
        else:
            assert listing.offset is not None and listing.length is not None
            columns: list[npt.NDArray[Any]] = [self.container, self.offset, self.length]
            there: list[npt.NDArray[Any]] = [files[listing.container], listing.offset, listing.length]
            for packed, them in ((self._packed, columns), (listing.packed, there)):
                them.append(np.zeros(len(them[0]), np.int64) if packed is None else packed.skip)
            have = {at: i for i, at in enumerate(zip(*(c.tolist() for c in columns), strict=True))}
            rows = np.array([have.get(at, -1) for at in zip(*(c.tolist() for c in there), strict=True)], np.int64)
        if not self.count:
            return np.full(len(listing), -1)
        same = (rows >= 0) & self.reusable()[rows] & (listing.status == OK)
        return np.where(same, rows, -1)

    def _files_of(self, listing: Listing) -> I64:
        """i64[C]: the container here that is the same unchanged file as each of the listing's, or -1."""
        paths = listing.containers
        if np.array_equal(self.offsets, paths.offsets) and self.blob.data == memoryview(paths.blob):
            files = np.arange(self.containers)
        else:
            have = {self._path(i): i for i in range(self.containers)}
            files = np.array([have.get(paths[i], -1) for i in range(len(paths))], np.int64)
        if not self.containers:
            return files
        same = (files >= 0) & (self.container_size[files] == listing.container_size)
        return np.where(same & (self.mtime_ns[files] == listing.mtime_ns), files, -1)


def is_racy(mtime_ns: I64, started_ns: int) -> npt.NDArray[np.bool_]:
    """bool[N]: times so close to a scan that a later change may show the same time."""
    return (mtime_ns >= started_ns - RACY_NS) & (mtime_ns <= started_ns + _FAR_FUTURE_NS)


def sampled_rows(count: int) -> I64:
    """The files that are looked at when an index of ``count`` files is opened: all, or an even sample."""
    if count <= STAT_ALL:
        return np.arange(count)
    return np.linspace(0, count - 1, SAMPLED).astype(np.int64)
