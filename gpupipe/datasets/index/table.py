"""The index of a dataset of image files: built once, stored in the cache, opened by every process.

An index is opened if nothing has changed, judging by cheap signs: the modification times of all folders (which change
when files are added, removed or renamed), and size and times of all files, or of a regular sample of :data:`SAMPLED` if
there are more than :data:`STAT_ALL`. A file overwritten in place in a large tree may therefore go unnoticed;
``dataset.reindex()`` checks everything. Otherwise the index is rebuilt, and only new and changed files are probed.

Times too close to the scan prove nothing: within one tick of its clock, a file system shows no difference between
before and after (git calls such an index "racily clean"). A scan that finds such times waits for the next tick and
looks again. If some remain, because files are being written or have times in the future, the index is not trusted the
next time, and these files are probed again.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import PIL

from ...codecs.coding import Coding
from ...codecs.files import Place, open_regular
from ...codecs.limits import MAX_BYTES
from ...codecs.probe import (
    KINDS,
    MISSING,
    NO_FRAMES,
    NO_VIDEO,
    OK,
    TEMPORARY,
    TRUNCATED,
    UNDECODABLE,
    UNREADABLE,
)
from ...printable import printable
from ...sources.base import Listing, Source
from ...sources.storage import Found
from ...targets import NumberColumn, Target, TextColumn
from .column_file import Arrays, Column, Columns, ColumnsError
from .strings import Strings

I64 = npt.NDArray[np.int64]

STAT_ALL = 20_000
SAMPLED = 4_096
_TICK_NS = 100_000_000
"""Upper limit of the clock tick of file systems, which is 1 to 10 milliseconds."""
_LONG_TICK_NS = 2_000_000_000
"""Upper limit of the clock tick of file systems that store whole seconds, or every second one like FAT."""
_PASSING = (MISSING, UNREADABLE, TEMPORARY)
"""States that say nothing about a file's bytes, and may be over when an index is opened again."""
_JUDGED = (UNDECODABLE, TRUNCATED, NO_VIDEO, NO_FRAMES)
"""States that another version of the decoder may judge differently."""
_KINDS = {"bool": "|u1", "int": "<i8", "float": "<f8"}
_ARRAYS = re.compile(r"([<|][biuf][1248])\[((?:[0-9]{1,6},?)*)\]")
"""Kind of a column of arrays; see :class:`gpupipe.sources.base.Values`."""
_FAR_FUTURE_NS = 86_400 * 1_000_000_000  # beyond any error of clocks: such times were set by hand


class Index:
    """An open index: N rows in C files. Columns are read on first use.

    Raises :class:`ColumnsError` if the file is incomplete.
    """

    decoder = "Pillow"
    """Library that judged the files. Its version is stored under this name in lower case."""
    coding_type: ClassVar[type[Any]] = Coding
    """Type of codings, with ``parse(text)`` and ``str()``."""

    def __init__(self, columns: Columns):
        self.columns = columns
        meta = columns.meta
        n = meta.get("count")
        if type(n) is not int or n < 0:
            raise self._spoiled(f"count is {n!r}")
        self.count = n
        self.classes = self._texts("classes")
        self.empty_classes = self._texts("empty_classes")
        self.codings = [self.coding_type.parse(text) for text in self._texts("codings")]
        fixed = {"started_ns": int, "racy": bool, "absolute": bool, "fingerprint": str, self.decoder.lower(): str}
        for name, kind in fixed.items():
            if type(meta.get(name)) is not kind:
                raise self._spoiled(f"{name} is {meta.get(name)!r}")
        get = columns.column
        self.containers = len(get("path_offsets", "<i8", -1)) - 1
        """C, the number of files that contain the rows."""
        self.paths = self._strings("path", self.containers)
        """Paths of the files below the prefix, absolute if they are outside."""
        self.container: Column | None = None
        """i32[N]: container of each row; ``None`` if every container is one row."""
        if "container" in columns:
            self.container = get("container", "<i4", n)
            self.offset, self.length = get("offset", "<i8", n), get("length", "<i8", n)
            self._names = self._strings("name", n)
            self.inflated = get("inflated", "<i8", n) if "inflated" in columns else None
            """i64[N], bytes of each row after inflating; -1 for one that is not deflated."""
        elif self.containers != n:
            raise self._spoiled(f"{self.containers} files for {n} rows")
        self.stored_sizes = get("sizes", "<i4", n, 2)
        self.upright_sizes = get("upright", "<i4", n, 2) if "upright" in columns else self.stored_sizes
        self.labels = get("labels", "<i8", n) if "labels" in columns else None
        self.values = dict(self._further(meta.get("columns", []), n))
        """Further columns by name."""
        self.status = get("status", "|u1", n)
        self.coding = get("coding", "|u1", n)
        self.orientation = get("orientation", "|u1", n)
        self.container_size = get("file_size", "<i8", self.containers)
        """i64[C], bytes."""
        self.mtime_ns = get("mtime_ns", "<i8", self.containers)
        """i64[C]"""
        self.ctime_ns = get("ctime_ns", "<i8", self.containers) if "ctime_ns" in columns else None
        """i64[C]: inode change times of local files."""
        self.folder_mtime_ns = get("folder_mtime_ns", "<i8", -1)
        self._folders = self._strings("folder", len(self.folder_mtime_ns))
        self._bad_rows: I64 = get("bad_rows", "<i8", -1).all
        if len(self._bad_rows) and not (self._bad_rows.min() >= 0 and self._bad_rows.max() < n):
            raise self._spoiled("bad_rows are outside")
        self._reasons = self._strings("reason", len(self._bad_rows))
        self.built = False
        self.reused = 0
        self.seconds = 0.0

    def _texts(self, name: str) -> list[str]:
        value = self.columns.meta.get(name)
        if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
            raise self._spoiled(f"{name} is no list of names")
        return value

    def _further(self, entries: Any, count: int) -> Iterator[tuple[str, Target]]:
        if not isinstance(entries, list):
            raise self._spoiled("its columns have no names")
        for k, entry in enumerate(entries):
            if not (isinstance(entry, list) and len(entry) == 2 and isinstance(entry[0], str)):
                raise self._spoiled(f"column {k} is {entry!r}")
            name, kind = entry
            if kind == "str":
                yield name, TextColumn(self._strings(f"column{k}", count))
            elif kind in _KINDS:
                yield name, NumberColumn(self.columns.column(f"column{k}", _KINDS[kind], count), kind)
            elif isinstance(kind, str) and (found := _ARRAYS.fullmatch(kind)):
                dtype, shape = np.dtype(found[1]), tuple(map(int, filter(None, found[2].split(","))))
                size = dtype.itemsize * math.prod(shape)
                yield name, NumberColumn(Arrays(self.columns.column(f"column{k}", "|u1", count, size), dtype, shape))
            else:
                raise self._spoiled(f"column {name!r} is of kind {kind!r}")

    def _strings(self, name: str, count: int) -> Strings:
        get = self.columns.column
        return Strings(get(f"{name}_offsets", "<i8", count + 1), get(f"{name}_blob", "|u1", -1), self._spoiled)

    def _spoiled(self, what: str) -> ColumnsError:
        """Return the error for a file with correct checksums but invalid content, which another program must have
        written."""
        return ColumnsError(f"{self.columns.path}: {what}; delete the file, it is made again")

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

    def sample_sizes(self, rows: I64 | None = None) -> I64:
        """Return i64[N], bytes of all rows, or of some."""

        def of(column: Column) -> I64:
            return column.read() if rows is None else column.rows(rows)

        if self.container is None:
            return of(self.container_size)
        length = of(self.length)
        return length if self.inflated is None else np.where(of(self.inflated) < 0, length, of(self.inflated))

    def path(self, i: int) -> bytes:
        """Return the file that contains row ``i``, below the prefix (absolute if it is outside)."""
        if self.container is None:
            return self.paths[i]
        found = self.container.numbers[i]
        if not 0 <= found < self.containers:
            raise self._spoiled(f"row {i} is in file {found} of {self.containers}")
        return self.paths[found]

    def name(self, i: int) -> bytes:
        """Return the name of row ``i`` within its file; empty if it is the whole file."""
        return b"" if self.container is None else self._names[i]

    def place(self, i: int, prefix: bytes, max_bytes: int = MAX_BYTES) -> Place:
        """Return the location of row ``i``'s bytes."""
        path = os.path.join(prefix, self.path(i))
        if self.container is None:
            return Place(path, max_bytes=max_bytes)
        version = self.mtime_ns.numbers[self.container.numbers[i]]
        inflated = -1 if self.inflated is None else self.inflated.numbers[i]
        return Place(path, self.offset.numbers[i], self.length.numbers[i], version, inflated, max_bytes)

    def found(self, i: int) -> Found:
        """Return the state of row ``i``'s file when it was indexed."""
        container = i if self.container is None else self.container.numbers[i]
        return Found(self.container_size.numbers[container], self.mtime_ns.numbers[container])

    def encoded(self, indices: I64, prefix: bytes) -> list[npt.NDArray[np.uint8]]:
        """Return absolute paths as bytes, u8[L] each, for rows that are files."""
        frombuffer, u8, paths = np.frombuffer, np.uint8, self.paths.many(indices)
        if self.columns.meta["absolute"]:
            join = os.path.join
            return [frombuffer(join(prefix, path), u8) for path in paths]
        return [frombuffer(prefix + path, u8) for path in paths]

    def bad(self, indices: I64) -> list[tuple[int, str, str]]:
        """Return (row, kind, reason) of those ``indices`` whose file is unusable, in order."""
        status = self.status.all[indices]
        if not status.any():
            return []
        return [(int(i), *self._why(int(i))) for i in indices[status != OK]]

    def all_bad(self) -> list[tuple[int, str, str]]:
        """Return (row, kind, reason) of every unusable file."""
        return self.bad(np.flatnonzero(self.status.all))

    def _why(self, i: int) -> tuple[str, str]:
        status = int(self.status.all[i])
        kind = KINDS[status] if status < len(KINDS) else "unreadable"
        k = int(np.searchsorted(self._bad_rows, i))
        known = k < len(self._bad_rows) and self._bad_rows[k] == i
        return kind, self._reasons[k].decode(errors="replace") if known else kind

    # ---------------------------------------------------------------- has anything changed?

    def stale(self, source: Source, *, racy: bool = False) -> str | None:
        """Return why the index is out of date, or ``None`` if nothing indicates it.

        ``racy``: trust an index even if files had changed just before its scan.
        """
        if self.racy and not racy:
            return "files had changed just before the scan, or have times in the future"
        prefix, every = source.prefix, np.arange(len(self._folders))
        for path, mtime in zip(self._folders.many(every), self.folder_mtime_ns.read().tolist(), strict=True):
            folder = prefix + path
            try:
                if os.stat(folder).st_mtime_ns != mtime:
                    return f"{printable(folder)} has changed"
            except (OSError, ValueError) as e:  # ValueError: a NUL in a foreign file
                return f"{printable(folder)}: {e}"
        files = sampled_rows(self.containers)
        missing = self.status.rows(files) if self.container is None else np.zeros(len(files), np.uint8)
        paths = [os.path.join(prefix, name) for name in self.paths.many(files)]
        changes = np.zeros(len(files), np.int64) if self.ctime_ns is None else self.ctime_ns.rows(files)
        columns = (self.container_size.rows(files), self.mtime_ns.rows(files), changes, missing)
        known = zip(*(c.tolist() for c in columns), strict=True)
        for path, found, (size, mtime, ctime, status) in zip(paths, source.storage.look(paths), known, strict=True):
            if isinstance(found, OSError):
                if status in _PASSING:
                    continue
                return f"{printable(path)}: {found}"
            if status == MISSING or found[:2] != (size, mtime) or (ctime and found.changed != ctime):
                return f"{printable(path)} has changed"
        return self._judged_by_another() if source.storage.remote else self._better_now(prefix)

    def _better_now(self, prefix: bytes) -> str | None:
        """Return which unreadable file has become readable: neither chmod nor a new decoder changes its time."""
        if not self._bad_rows.size:
            return None
        other = self._judged_by_another()
        if other is not None:
            return other
        status = self.status.rows(self._bad_rows)
        for i in self._bad_rows[np.isin(status, _PASSING)][:SAMPLED].tolist():
            path = os.path.join(prefix, self.path(i))
            with contextlib.suppress(OSError, ValueError):
                os.close(open_regular(path))
                return f"{printable(path)} can be read now"
        return None

    def _judged_by_another(self) -> str | None:
        """Return why unusable files may be usable for the decoder that is installed now."""
        if self._other_decoder() and np.isin(self.status.rows(self._bad_rows), _JUDGED).any():
            return f"{self.decoder} is now {self.decoder_version()}"
        return None

    def reusable(self) -> npt.NDArray[np.bool_]:
        """Return bool[N]: rows to keep if size and time of the file are unchanged."""
        started = int(self.columns.meta["started_ns"])
        status = self.status.all
        good: npt.NDArray[np.bool_] = ~np.isin(status, _PASSING)
        if self._other_decoder():
            good &= ~np.isin(status, _JUDGED)
        times = self.mtime_ns.read()
        if self.container is not None:
            times = times[self.container.all]
        return good & ~is_racy(times, started)

    def rows_of(self, listing: Listing) -> I64:
        """Return i64[len(listing)]: the row here that describes the same unchanged sample, or -1."""
        files = self._files_of(listing)
        if self.container is None or listing.container is None:
            rows = files if self.container is None and listing.container is None else np.full(len(listing), -1)
        else:
            assert listing.offset is not None and listing.length is not None
            columns = [column.all for column in (self.container, self.offset, self.length)]
            there: list[npt.NDArray[Any]] = [files[listing.container], listing.offset, listing.length]
            have = {at: i for i, at in enumerate(zip(*(c.tolist() for c in columns), strict=True))}
            rows = np.array([have.get(at, -1) for at in zip(*(c.tolist() for c in there), strict=True)], np.int64)
        if not self.count:
            return np.full(len(listing), -1)
        # -1 takes some other row, which the first condition excludes.
        same = (rows >= 0) & self.reusable()[rows] & (listing.status == OK)
        return np.where(same, rows, -1)

    def _files_of(self, listing: Listing) -> I64:
        """Return i64[C]: the container here that is the same unchanged file, for each in the listing, or -1."""
        paths = listing.containers
        if self.paths == paths:
            files = np.arange(self.containers)
        else:
            have = {path: i for i, path in enumerate(self.paths.many(np.arange(self.containers)))}
            files = np.array([have.get(paths[i], -1) for i in range(len(paths))], np.int64)
        if not self.containers:
            return files
        same = (files >= 0) & (self.container_size.read()[files] == listing.container_size)
        same &= self.mtime_ns.read()[files] == listing.mtime_ns
        if self.ctime_ns is not None and listing.ctime_ns is not None:
            same &= self.ctime_ns.read()[files] == listing.ctime_ns
        return np.where(same, files, -1)


def _settled_ns(mtime_ns: I64) -> I64:
    """Return i64[N]: the time from which a change shows another time."""
    # Times in whole seconds probably come from a file system that stores no more.
    return mtime_ns + np.where(mtime_ns % 1_000_000_000, _TICK_NS, _LONG_TICK_NS)


def is_racy(mtime_ns: I64, started_ns: int) -> npt.NDArray[np.bool_]:
    """Return bool[N]: times so close to a scan that a later change may show the same time."""
    return (_settled_ns(mtime_ns) >= started_ns) & (mtime_ns <= started_ns + _FAR_FUTURE_NS)


def until_settled(mtime_ns: I64, started_ns: int) -> float:
    """Return seconds from the start of a scan until no time is racy; 0 if none is, or if it takes too long."""
    racy = _settled_ns(mtime_ns[is_racy(mtime_ns, started_ns)])
    wait = int(racy.max()) - started_ns if len(racy) else 0
    return wait / 1e9 if wait <= _LONG_TICK_NS else 0.0


def sampled_rows(count: int) -> I64:
    """Return the files to check when an index of ``count`` files is opened: all, or a regular sample."""
    if count <= STAT_ALL:
        return np.arange(count)
    return np.linspace(0, count - 1, SAMPLED).astype(np.int64)
