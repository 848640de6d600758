"""From a source of files to an open index: read it from the cache, or build it and keep it there."""

from __future__ import annotations

import hashlib
import logging
import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageFile

from ...codecs.probe import OK, Probe
from ...errors import DatasetError
from ...sources.scan import Scan
from . import cache
from .column_file import Columns, ColumnsError, write_columns
from .probe_pool import PictureReader, Reader, probe_all
from .progress import Progress
from .table import Index, is_racy

__all__ = ["Kind", "Probed", "Source", "assemble", "index_path", "open_index", "open_kind"]

Idx = TypeVar("Idx", bound=Index)

_log = logging.getLogger("gpupipe")

FORMAT = 2
"""Part of every index file's name: what another version of this code wrote is never opened."""


class Source(Protocol):
    """Where the files of a dataset come from."""

    @property
    def key(self) -> tuple[Any, ...]:
        """JSON values that say which dataset this is."""
        ...

    @property
    def prefix(self) -> bytes:
        """What the paths are below: absolute, ends with a slash."""
        ...

    def scan(self, progress: Callable[[int], None]) -> Scan:
        """Look at the file system. Raises :class:`DatasetError` where there is nothing to look at."""
        ...


@dataclass(frozen=True)
class Kind(Generic[Idx]):
    """What is indexed: pictures, or something else that lies in files."""

    index: type[Idx]
    probed: type[Probed]
    """The columns that probing fills."""
    reader: Reader[Any]
    limits: tuple[Any, ...]
    """JSON values that decide which files are bad, and what is kept of the others."""


def _pictures(max_pixels: int | None) -> Kind[Index]:
    limits = FORMAT, Image.MAX_IMAGE_PIXELS, max_pixels, bool(ImageFile.LOAD_TRUNCATED_IMAGES)
    return Kind(Index, Probed, PictureReader(max_pixels), limits)


def index_path(source: Source, max_pixels: int | None = None) -> str:
    """The index file of a source, whether or not it exists."""
    return _path(source, _pictures(max_pixels))


def _path(source: Source, kind: Kind[Any]) -> str:
    return cache.index_path(*kind.limits, *source.key)


def open_index(source: Source, *, max_pixels: int | None = None, rebuild: bool = False) -> Index:
    """The index of a source of pictures.

    Args:
        max_pixels: larger images are bad; ``None`` where Pillow's own limit is all.
        rebuild: probe every file again, whatever the cache says.

    Raises:
        DatasetError: the source has no files, or there is nowhere to write an index.
    """
    return open_kind(source, _pictures(max_pixels), rebuild=rebuild)


def open_kind(source: Source, kind: Kind[Idx], *, rebuild: bool = False) -> Idx:
    """The index of a source: the one in the cache if nothing has changed, otherwise a new one.

    ``rebuild``: probe every file again, whatever the cache says.

    Raises:
        DatasetError: the source has no files, or there is nowhere to write an index.
    """
    began, asked = time.monotonic(), time.time_ns()
    path = _path(source, kind)
    index = None if rebuild else _load(path, kind)
    why = "it is not in the cache"
    if index is not None:
        reason = index.stale(source.prefix)
        if reason is None:
            return _timed(index, began)
        why = reason
    with cache.locked(path):
        newer = None if rebuild else _load(path, kind)
        faster = newer is not None and (index is None or newer.columns.digest != index.columns.digest)
        # Another process was faster. What it began to look at after we asked is as new as our own look would be.
        if (
            newer is not None
            and faster
            and (newer.columns.meta["started_ns"] >= asked or newer.stale(source.prefix) is None)
        ):
            return _timed(newer, began)
        _log.info("building the index of %s: %s", os.fsdecode(source.prefix), "asked to" if rebuild else why)
        columns, meta, reused = _build(source, newer, kind)
        del index, newer
        index = kind.index(_save(path, columns, meta))
    index.built, index.reused = True, reused
    return _timed(index, began)


def _timed(index: Idx, began: float) -> Idx:
    # Looking for changes touched pages all over the file, and the kernel maps their neighbours too.
    index.columns.release()
    index.seconds = time.monotonic() - began
    return index


def _load(path: str, kind: Kind[Idx]) -> Idx | None:
    try:
        return kind.index(Columns.open(path))
    except FileNotFoundError:
        return None
    except (ColumnsError, OSError) as e:
        _log.warning("the index is built again: %s", e)
        return None


def _save(path: str, columns: dict[str, npt.NDArray[Any]], meta: dict[str, Any]) -> Columns:
    try:
        with cache.replacing(path) as file:
            write_columns(file, columns, meta)
            return Columns(file.fileno(), path)
    except OSError as e:
        _log.warning("the index cannot be kept (%s) and is made again next time; GPUPIPE_CACHE can name a folder", e)
    try:
        with tempfile.TemporaryFile() as file:
            write_columns(file, columns, meta)
            return Columns(file.fileno(), None)
    except OSError as e:
        raise DatasetError(
            f"an index can be written neither to {path} nor to {tempfile.gettempdir()} ({e}): set GPUPIPE_CACHE to a "
            "folder with free space"
        ) from None


def _build(
    source: Source, old: Index | None, kind: Kind[Any]
) -> tuple[dict[str, npt.NDArray[Any]], dict[str, Any], int]:
    """(columns, meta, how many rows were kept from ``old``)"""
    with Progress("looking for files") as progress:
        scan = source.scan(progress)
    n = len(scan)
    probed = kind.probed(scan, old)
    todo = np.flatnonzero(~probed.kept & (scan.status == OK))
    with Progress("reading headers", len(todo)) as progress:
        probe_all(
            len(todo),
            lambda k: scan.path(int(todo[k])),
            lambda k, result: probed.put(int(todo[k]), result),
            progress,
            kind.reader,
        )
    columns, meta = assemble(scan, probed)
    return columns, meta, n - len(todo) - int(np.count_nonzero(scan.status))


class Probed:
    """The columns that come from the files' headers; rows that ``old`` knows are filled from there."""

    index: type[Index] = Index

    def __init__(self, scan: Scan, old: Index | None = None):
        n = len(scan)
        self.status = scan.status.copy()
        self.sizes = np.zeros((n, 2), np.int32)
        self.coding = np.zeros(n, np.uint8)
        self.orientation = np.ones(n, np.uint8)
        self.reasons = dict(scan.reasons)
        self.codings: dict[str, int] = {"": 0}
        self.kept = np.zeros(n, np.bool_)
        """bool[N]: rows that came from ``old``."""
        if old is not None:
            self._keep(old, old.rows_of(scan))

    def _keep(self, old: Index, rows: npt.NDArray[np.int64]) -> None:
        self.kept = rows >= 0
        rows = rows[self.kept]
        self.status[self.kept] = old.status[rows]
        self.sizes[self.kept] = old.stored_sizes[rows]
        self.coding[self.kept] = old.coding[rows]
        self.orientation[self.kept] = old.orientation[rows]
        self.codings = {name: code for code, name in enumerate(old.codings)}
        bad = np.flatnonzero(self.kept & (self.status != OK))
        if len(bad):
            was = rows[np.searchsorted(np.flatnonzero(self.kept), bad)]
            self.reasons.update((int(i), reason) for i, (_, _, reason) in zip(bad, old.bad(was), strict=True))

    def extra(self) -> dict[str, npt.NDArray[Any]]:
        """Columns that only this kind of file has. All of them are part of the fingerprint."""
        return {}

    def put(self, i: int, result: Probe) -> None:
        self.status[i] = result.status
        self.sizes[i] = result.height, result.width
        # What is no more than a byte goes without a name; nobody has that many.
        code = self.codings.get(result.coding)
        if code is None and len(self.codings) < 255:
            code = self.codings[result.coding] = len(self.codings)
        self.coding[i] = 255 if code is None else code
        self.orientation[i] = result.orientation
        if result.status != OK:
            self.reasons[i] = result.reason


def assemble(scan: Scan, probed: Probed) -> tuple[dict[str, npt.NDArray[Any]], dict[str, Any]]:
    """(columns, meta) of an index file."""
    bad = np.flatnonzero(probed.status)
    reasons = [probed.reasons.get(int(i), "").encode(errors="replace") for i in bad]
    columns: dict[str, npt.NDArray[Any]] = {
        "path_blob": np.frombuffer(scan.blob, np.uint8),
        "path_offsets": scan.offsets,
        "sizes": probed.sizes,
        "status": probed.status,
        "coding": probed.coding,
        "orientation": probed.orientation,
        "file_size": scan.file_size,
        "mtime_ns": scan.mtime_ns,
        "bad_rows": bad,
        "folder_mtime_ns": scan.folder_mtime_ns,
    }
    if scan.labels is not None:
        columns["labels"] = scan.labels
    sideways = probed.orientation >= 5
    if sideways.any():
        columns["upright"] = np.where(sideways[:, None], probed.sizes[:, ::-1], probed.sizes)
    extra = probed.extra()
    columns.update(extra)
    for name, texts in (("reason", reasons), ("folder", scan.folders)):
        columns[f"{name}_blob"] = np.frombuffer(b"".join(texts), np.uint8)
        columns[f"{name}_offsets"] = np.cumsum([0, *map(len, texts)], dtype=np.int64)
    times = np.concatenate([scan.mtime_ns, scan.folder_mtime_ns])
    meta = {
        "count": len(scan),
        "prefix": os.fsdecode(scan.prefix),
        "classes": list(scan.classes),
        "empty_classes": list(scan.empty_classes),
        "codings": list(probed.codings),
        "absolute": scan.absolute,
        "started_ns": scan.started_ns,
        "racy": bool(is_racy(times, scan.started_ns).any()),
        "fingerprint": _fingerprint(scan, probed, extra),
        probed.index.decoder.lower(): probed.index.decoder_version(),
    }
    return columns, meta


def _fingerprint(scan: Scan, probed: Probed, extra: dict[str, npt.NDArray[Any]]) -> str:
    """16 hexadecimal digits of names, labels and sizes. Neither the place nor the times of the files are part of it,
    so a copy on another machine has the same."""
    digest = hashlib.blake2b(b"gpupipe samples 1", digest_size=8)
    labels = scan.labels if scan.labels is not None else np.empty(0, np.int64)
    classes = "\0".join(scan.classes).encode(errors="surrogateescape")
    digest.update(f"{len(scan)} {len(labels)} {len(classes)} ".encode() + classes)
    for column, dtype in ((scan.offsets, "<i8"), (labels, "<i8"), (probed.sizes, "<i4"), (scan.file_size, "<i8")):
        digest.update(np.ascontiguousarray(column, dtype).data.cast("B") if column.size else b"")
    digest.update(scan.blob)
    for name in sorted(extra):
        column = extra[name]
        digest.update(f" {name} {column.dtype.str} {column.shape} ".encode())
        digest.update(np.ascontiguousarray(column).data.cast("B") if column.size else b"")
    return digest.hexdigest()
