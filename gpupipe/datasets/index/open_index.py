"""Indexes of sources: read from the cache, or built and stored there."""

from __future__ import annotations

import hashlib
import logging
import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageFile

from ... import cache_folder as cache
from ...codecs.limits import Limits
from ...codecs.openers import origins
from ...codecs.probe import OK, TEMPORARY, Probe
from ...errors import DatasetError
from ...printable import printable
from ...sources.base import Listing, Source, Texts
from .column_file import Columns, ColumnsError, write_columns
from .probe_pool import PictureProber, Prober, probe_all
from .probe_remote import probe_remote
from .progress import Progress
from .table import Index, is_racy, until_settled

Idx = TypeVar("Idx", bound=Index)

_log = logging.getLogger("gpupipe")

FORMAT = 6
"""Part of every index file's name, so that files of other versions are never opened."""


@dataclass(frozen=True)
class IndexKind(Generic[Idx]):
    """Kind of an index: images or videos."""

    index: type[Idx]
    probed: type[Probed]
    """Columns that probing fills."""
    prober: Prober[Any]
    limits: tuple[Any, ...]
    """JSON values that determine which files are bad, and what is stored about the others."""


def _pictures(limits: Limits) -> IndexKind[Index]:
    _, max_pixels, max_bytes = limits  # images are indexed as stored
    key = FORMAT, Image.MAX_IMAGE_PIXELS, max_pixels, max_bytes, bool(ImageFile.LOAD_TRUNCATED_IMAGES)
    # A plugin decides what is an image as much as a limit does.
    plugins = origins()
    return IndexKind(Index, Probed, PictureProber(limits), (*key, plugins) if plugins else key)


def index_path(source: Source, limits: Limits = Limits()) -> str:
    """Return the index file of a source. It may not exist."""
    return _path(source, _pictures(limits))


def _path(source: Source, kind: IndexKind[Any]) -> str:
    columns = ({"columns": source.columns},) if source.columns else ()
    return cache.index_path(*kind.limits, *source.key, *columns)


def open_index(source: Source, limits: Limits = Limits(), *, rebuild: bool = False) -> Index:
    """Return the index of a source of pictures.

    Args:
        limits: which images are bad. ``exif`` has no effect, because images are indexed as stored.
        rebuild: probe every file again, regardless of the cache.

    Raises:
        DatasetError: the source has no files, or an index cannot be written anywhere.
    """
    return open_kind(source, _pictures(limits), rebuild=rebuild)


def open_kind(source: Source, kind: IndexKind[Idx], *, rebuild: bool = False) -> Idx:
    """Return the index of a source: from the cache if nothing has changed, otherwise a new one.

    ``rebuild``: probe every file again, regardless of the cache.

    Raises:
        DatasetError: the source has no files, or an index cannot be written anywhere.
    """
    began, asked = time.monotonic(), time.time_ns()
    path = _path(source, kind)
    index = None if rebuild else _load(path, kind, logging.DEBUG)  # said below, where it is built again
    why = "it is not in the cache"
    if index is not None:
        reason = index.stale(source)
        if reason is None:
            return _timed(index, began)
        why = reason
    with cache.locked(path, f"the index of {printable(source.prefix)}"):
        newer = None if rebuild else _load(path, kind)
        faster = newer is not None and (index is None or newer.columns.digest != index.columns.digest)
        # Another process was faster: trust the index that it just built like our own. If its scan began after our
        # request, it is as recent as our own scan.
        if (
            newer is not None
            and faster
            and (newer.columns.meta["started_ns"] >= asked or newer.stale(source, racy=True) is None)
        ):
            return _timed(newer, began)
        _log.info("building the index of %s: %s", printable(source.prefix), "asked to" if rebuild else why)
        columns, meta, reused = _build(source, newer, kind)
        del index, newer
        index = kind.index(_save(path, columns, meta))
    index.built, index.reused = True, reused
    return _timed(index, began)


def _timed(index: Idx, began: float) -> Idx:
    index.seconds = time.monotonic() - began
    return index


def _load(path: str, kind: IndexKind[Idx], level: int = logging.WARNING) -> Idx | None:
    """Return the stored index, or ``None`` if it is missing or unreadable. Log an unreadable one at ``level``."""
    try:
        return kind.index(Columns.open(path))
    except FileNotFoundError:
        return None
    except (ColumnsError, OSError) as e:
        _log.log(level, "the index is built again: %s", e)
        return None


def _save(path: str, columns: dict[str, npt.NDArray[Any]], meta: dict[str, Any]) -> Columns:
    """Write an index to ``path``, or to a file for this process only if that is not possible."""
    try:
        with cache.replacing(path) as file:
            write_columns(file, columns, meta)
            return Columns(file.fileno(), path)
    except OSError as e:
        _log.warning(
            "the index cannot be stored (%s) and is built again next time; set GPUPIPE_CACHE to a writable folder", e
        )
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
    source: Source, old: Index | None, kind: IndexKind[Any]
) -> tuple[dict[str, npt.NDArray[Any]], dict[str, Any], int]:
    """Return (columns, meta, number of rows kept from ``old``)."""
    listing = _listed(source)
    n = len(listing)
    probed = kind.probed(listing, old)
    todo = np.flatnonzero(~probed.kept & (listing.status == OK))
    _probe(source, listing, probed, todo, kind)
    # Transient errors may be over, and errors of a local copy must be confirmed by the original.
    bad = todo[probed.status[todo] != OK]
    forgotten = [source.storage.forget(listing.place(i)) for i in bad.tolist()]
    again = bad[(probed.status[bad] == TEMPORARY) | np.array(forgotten, np.bool_)]
    if len(again):
        _probe(source, listing, probed, again, kind)
    columns, meta = assemble(listing, probed)
    return columns, meta, n - len(todo) - int(np.count_nonzero(listing.status))


def _probe(source: Source, listing: Listing, probed: Probed, todo: npt.NDArray[np.int64], kind: IndexKind[Any]) -> None:
    """Probe rows of the listing."""
    with Progress("reading headers", len(todo)) as progress:
        probe: Callable[..., None] = probe_all
        if source.storage.remote:
            assert isinstance(kind.prober, PictureProber), "videos must be local files"
            probe = partial(probe_remote, source.storage)
        probe(
            len(todo),
            lambda k: listing.place(int(todo[k])),
            lambda k, result: probed.put(int(todo[k]), result),
            progress,
            kind.prober,
        )


def _listed(source: Source) -> Listing:
    """List the files, at a time when every later change will show."""
    # If times are too close to the scan to show a change, wait for the next tick and look again, once.
    for last in (False, True):
        with Progress("looking for files") as progress:
            listing = source.listing(progress)
        wait = until_settled(_times(listing), listing.started_ns)
        if last or not wait:
            break
        time.sleep(max(wait - (time.time_ns() - listing.started_ns) / 1e9, 0.0) + 0.001)
    return listing


def _times(listing: Listing) -> npt.NDArray[np.int64]:
    """Return i64[files and folders]."""
    return np.concatenate([listing.mtime_ns, listing.folder_mtime_ns])


class Probed:
    """Columns from the headers of files; rows that ``old`` knows are copied from it."""

    index: type[Index] = Index

    def __init__(self, listing: Listing, old: Index | None = None):
        n = len(listing)
        self.status = listing.status.copy()
        self.sizes = np.zeros((n, 2), np.int32)
        self.coding = np.zeros(n, np.uint8)
        self.orientation = np.ones(n, np.uint8)
        self.reasons = dict(listing.reasons)
        self.codings: dict[Any, int] = {self.index.coding_type(): 0}
        self.kept = np.zeros(n, np.bool_)
        """bool[N]: rows copied from ``old``."""
        if old is not None:
            self._keep(old, old.rows_of(listing))

    def _keep(self, old: Index, rows: npt.NDArray[np.int64]) -> None:
        self.kept = rows >= 0
        rows = rows[self.kept]
        self.status[self.kept] = old.status.all[rows]
        self.sizes[self.kept] = old.stored_sizes.all[rows]
        self.coding[self.kept] = old.coding.all[rows]
        self.orientation[self.kept] = old.orientation.read()[rows]
        self.codings = {name: code for code, name in enumerate(old.codings)}
        bad = np.flatnonzero(self.kept & (self.status != OK))
        if len(bad):
            # rows has entries for kept rows only; take those of the bad ones among them.
            was = rows[np.searchsorted(np.flatnonzero(self.kept), bad)]
            self.reasons.update((int(i), reason) for i, (_, _, reason) in zip(bad, old.bad(was), strict=True))

    def extra(self) -> dict[str, npt.NDArray[Any]]:
        """Return columns that only this kind of file has. All of them are part of the fingerprint."""
        return {}

    def put(self, i: int, result: Probe) -> None:
        self.status[i] = result.status
        self.reasons.pop(i, None)
        self.sizes[i] = result.height, result.width
        # Codes are bytes: further codings stay without a name, which never happens in practice.
        code = self.codings.get(result.coding)
        if code is None and len(self.codings) < 255:
            code = self.codings[result.coding] = len(self.codings)
        self.coding[i] = 255 if code is None else code
        self.orientation[i] = result.orientation
        if result.status != OK:
            self.reasons[i] = result.reason


def assemble(listing: Listing, probed: Probed) -> tuple[dict[str, npt.NDArray[Any]], dict[str, Any]]:
    """Return (columns, meta) of an index file."""
    bad = np.flatnonzero(probed.status)
    reasons = [probed.reasons.get(int(i), "").encode(errors="replace") for i in bad]
    columns: dict[str, npt.NDArray[Any]] = {
        **_texts("path", listing.containers),
        "sizes": probed.sizes,
        "status": probed.status,
        "coding": probed.coding,
        "orientation": probed.orientation,
        "file_size": listing.container_size,
        "mtime_ns": listing.mtime_ns,
        "bad_rows": bad,
        "folder_mtime_ns": listing.folder_mtime_ns,
        **_texts("reason", Texts.of(reasons)),
        **_texts("folder", Texts.of(listing.folders)),
    }
    for name in ("labels", "container", "offset", "length", "inflated", "ctime_ns"):
        column = getattr(listing, name)
        if column is not None:
            columns[name] = column
    if listing.names is not None:
        columns |= _texts("name", listing.names)
    columns |= _further(listing)
    sideways = probed.orientation >= 5
    # Without images that lie on their side, readers take the stored sizes.
    if sideways.any():
        columns["upright"] = np.where(sideways[:, None], probed.sizes[:, ::-1], probed.sizes)
    extra = probed.extra()
    columns.update(extra)
    meta = {
        "count": len(listing),
        "prefix": os.fsdecode(listing.prefix),
        "classes": list(listing.classes),
        "columns": [[name, values.kind] for name, values in listing.columns.items()],
        "empty_classes": list(listing.empty_classes),
        "codings": list(map(str, probed.codings)),
        "absolute": listing.absolute,
        "started_ns": listing.started_ns,
        "racy": bool(is_racy(_times(listing), listing.started_ns).any()),
        "fingerprint": _fingerprint(listing, probed, extra),
        probed.index.decoder.lower(): probed.index.decoder_version(),
    }
    return columns, meta


def _further(listing: Listing) -> dict[str, npt.NDArray[Any]]:
    """Return the listing's own columns by number, because their names may be anything."""
    columns: dict[str, npt.NDArray[Any]] = {}
    for k, values in enumerate(listing.columns.values()):
        data = values.data
        columns |= _texts(f"column{k}", data) if isinstance(data, Texts) else {f"column{k}": data}
    return columns


def _texts(name: str, texts: Texts) -> dict[str, npt.NDArray[Any]]:
    return {f"{name}_blob": np.frombuffer(texts.blob, np.uint8), f"{name}_offsets": texts.offsets}


def _fingerprint(listing: Listing, probed: Probed, extra: dict[str, npt.NDArray[Any]]) -> str:
    """Return 16 hexadecimal digits that identify names, labels and sizes.

    Location and times of the files are not included, so a copy on another machine has the same fingerprint.
    """
    digest = hashlib.blake2b(b"gpupipe samples 1", digest_size=8)
    labels = listing.labels if listing.labels is not None else np.empty(0, np.int64)
    classes = "\0".join(listing.classes).encode(errors="surrogateescape")
    # With the lengths in front, no two different lists make the same bytes.
    digest.update(f"{len(listing)} {len(labels)} {len(classes)} ".encode() + classes)
    paths = listing.containers
    for column, dtype in (
        (paths.offsets, "<i8"), (labels, "<i8"), (probed.sizes, "<i4"), (listing.container_size, "<i8"),
    ):  # fmt: skip
        digest.update(np.ascontiguousarray(column, dtype).data.cast("B") if column.size else b"")
    digest.update(paths.blob)
    if listing.container is not None:
        extra = {**extra, "container": listing.container, "offset": listing.offset, "length": listing.length}  # type: ignore[dict-item]
    if listing.inflated is not None:
        extra = {**extra, "inflated": listing.inflated}
    if listing.columns:
        digest.update(repr([(name, values.kind) for name, values in listing.columns.items()]).encode())
        extra = {**extra, **_further(listing)}
    for name in sorted(extra):
        column = extra[name]
        digest.update(f" {name} {column.dtype.str} {column.shape} ".encode())
        digest.update(np.ascontiguousarray(column).data.cast("B") if column.size else b"")
    return digest.hexdigest()
