"""Remote containers: read by ranges, ahead of what an indexer asks for, and kept on disk block by block."""

from __future__ import annotations

import errno
import os
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import IO, Any, ClassVar

import numpy as np
import numpy.typing as npt

from ...codecs.files import Place, Undecodable, ends_before, inflate
from ...codecs.raw_file import RawFile
from ...codecs.retry import is_transient, temporary
from ..storage import Container, Found, Storage, read_spans
from .block_cache import BlockCache
from .choose import client_for
from .clients import ByteRange, Client
from .options import Remote

U8 = npt.NDArray[np.uint8]
Key = tuple[bytes, int, int]
"""URL, version, number of a block."""

_GAP = 64 << 10
"""Bytes between two samples that are loaded and discarded, since that is faster than another request."""
_LONGEST = 8 << 20
"""Maximum number of bytes of one request."""
_AT_ONCE = 32 << 20
"""Bytes of blocks that one batch waits for at the same time, which limits the memory used."""
_CHUNK = 1 << 20
_CHUNKS = 16
_AHEAD = 8
"""An indexer reads a container in chunks, of which at most this many are kept, and loaded at once."""


class RemoteFiles(Storage):
    """Remote storage; see :class:`~gpupipe.datasets.Remote`. Storages with equal options share connections in a
    process."""

    remote: ClassVar[bool] = True

    def __init__(self, options: Remote, total: int | None = None):
        self._options = options
        self._total = total

    def __reduce__(self) -> tuple[Any, ...]:
        return RemoteFiles, (self._options, self._total)

    def expect(self, total: int) -> None:
        """Receive the total number of bytes of all containers, once it is known."""
        self._total = total

    @property
    def by_blocks(self) -> bool:
        """Whether blocks are loaded and kept, or just the requested ranges."""
        o = self._options
        if o.fetch != "auto":
            return o.fetch == "blocks"
        # The cache trims itself to 7/8, so of anything larger, each epoch would load a part again.
        return o.cache_bytes >= 64 * o.block_bytes and (self._total is None or self._total <= o.cache_bytes * 7 // 8)

    def __repr__(self) -> str:
        return f"{'blocks kept on disk' if self.by_blocks else 'samples'}, {self._options.connections} connections"

    def look(self, paths: Sequence[bytes]) -> list[Found | OSError]:
        urls = [os.fsdecode(path) for path in paths]
        return self._client(urls[0]).look(urls) if urls else []

    def names(self, folder: str, start: str, deep: bool) -> list[str]:
        """Return the URLs of containers below a folder; see :meth:`.clients.Client.names`."""
        return self._client(folder).names(folder, start, deep)

    def open(self, path: bytes) -> IO[bytes]:
        (found,) = self.look([path])
        if isinstance(found, OSError):
            raise found
        return Container(_Container(self, path, found), 1 << 16)

    def read_into(self, places: Sequence[Place], views: Sequence[U8]) -> list[Undecodable | None]:
        problems: list[Undecodable | None] = [None] * len(places)
        stored = [
            view if place.inflated < 0 else np.empty(place.length, np.uint8)
            for place, view in zip(places, views, strict=True)
        ]
        order = sorted(range(len(places)), key=lambda i: places[i][:2])
        if self.by_blocks:
            for some in self._shares(order, places):
                self._blocks(some, places, stored, problems)
        else:
            self._samples(order, places, stored, problems)
        for i, place in enumerate(places):
            if place.inflated < 0 or problems[i] is not None:
                continue
            try:
                views[i][:] = np.frombuffer(inflate(stored[i].data, place.inflated), np.uint8)
            except Undecodable as e:
                problems[i] = e
        return problems

    def forget(self, place: Place) -> bool:
        if not self.by_blocks:
            return False
        cache = _connections(self._options).cache
        return sum(cache.forget(place.path, place.version, k) for k in range(*self._span(place))) > 0

    def _client(self, url: str) -> Client:
        return _connections(self._options).client(url.partition("://")[0])

    # ---- exact ranges

    def _samples(
        self, rows: Sequence[int], places: Sequence[Place], views: list[U8], problems: list[Undecodable | None]
    ) -> None:
        some = [places[i] for i in rows]
        spans = read_spans(some, _GAP, _LONGEST)
        ranges = [ByteRange(os.fsdecode(s.path), s.start, s.end, some[s.rows[0]].version) for s in spans]
        for span, got in zip(spans, self._client(ranges[0].url).fetch(ranges) if ranges else (), strict=True):
            for k in span.rows:
                i, place = rows[k], some[k]
                if isinstance(got, OSError):
                    problems[i] = _problem(got)
                    continue
                at = place.offset - span.start
                if len(got) < at + place.length:
                    problems[i] = ends_before(place, span.start + len(got))
                else:
                    views[i][:] = np.frombuffer(got, np.uint8, place.length, at)

    # ---- blocks

    def _shares(self, order: list[int], places: Sequence[Place]) -> Iterator[list[int]]:
        """Split ``order`` into parts whose blocks are loaded at the same time."""
        most = max(_AT_ONCE // self._options.block_bytes, 1)
        share: list[int] = []
        blocks = 0
        for i in order:
            first, last = self._span(places[i])
            if share and blocks + last - first >= most:
                yield share
                share, blocks = [], 0
            share.append(i)
            blocks += last - first
        if share:
            yield share

    def _span(self, place: Place) -> tuple[int, int]:
        """Return (first block, one past the last block) of a place."""
        size = self._options.block_bytes
        return place.offset // size, -(-(place.offset + place.length) // size)

    def _blocks(
        self, rows: list[int], places: Sequence[Place], views: list[U8], problems: list[Undecodable | None]
    ) -> None:
        size, cache = self._options.block_bytes, _connections(self._options).cache
        keys = {
            (places[i].path, places[i].version, k): None for i in rows for k in range(*self._span(places[i]))
        }  # a dict keeps the order
        have = self._load(list(keys))
        again = []
        for i in rows:
            path, start, length, version = places[i][:4]
            end, at = start + length, start
            while at < end:
                k = at // size
                stop = min(end, (k + 1) * size)
                part = views[i][at - start : stop - start]
                block = have.get((path, version, k))
                if isinstance(block, OSError):
                    problems[i] = _problem(block)
                    break
                if block is None:
                    kept = cache.read(path, version, k, at - k * size, len(part))
                    if kept is None:
                        again.append(i)  # removed since, or damaged
                        break
                    part[:] = kept
                elif len(block) < stop - k * size:
                    problems[i] = ends_before(places[i], k * size + len(block))
                    break
                else:
                    part[:] = np.frombuffer(block, np.uint8, len(part), at - k * size)
                at = stop
        # What the cache has lost or damaged meanwhile comes straight from the store.
        self._samples(again, places, views, problems)

    def _load(self, keys: list[Key]) -> dict[Key, memoryview | OSError]:
        """Load the blocks that are not on disk. Each is loaded once, even if several threads ask for it."""
        shared = _connections(self._options)
        mine: list[Key] = []
        theirs: dict[Key, Future[memoryview | OSError]] = {}
        with shared.lock:
            for key in keys:
                if key in shared.coming:
                    theirs[key] = shared.coming[key]
                elif not shared.cache.has(*key):
                    shared.coming[key] = Future()
                    mine.append(key)
        have: dict[Key, memoryview | OSError] = {}
        try:
            have = self._fetched(mine)
        finally:
            with shared.lock:
                waiting = {key: shared.coming.pop(key) for key in mine}
            for key, future in waiting.items():
                # Others wait for these blocks, whatever happened here.
                future.set_result(have.get(key, ConnectionError("the thread that loaded it failed")))
        # Wait only now: two threads that wait for blocks of each other have both loaded theirs.
        return have | {key: future.result() for key, future in theirs.items()}

    def _fetched(self, keys: list[Key]) -> dict[Key, memoryview | OSError]:
        """Load blocks from the store, adjacent ones together, and store them on disk."""
        size, cache = self._options.block_bytes, _connections(self._options).cache
        places = [Place(path, k * size, size, version) for path, version, k in keys]
        spans = read_spans(places, 0, max(_LONGEST, size))
        ranges = [ByteRange(os.fsdecode(span.path), span.start, span.end, keys[span.rows[0]][1]) for span in spans]
        have: dict[Key, memoryview | OSError] = {}
        for span, got in zip(spans, self._client(ranges[0].url).fetch(ranges) if ranges else (), strict=True):
            for i in span.rows:
                if isinstance(got, OSError):
                    have[keys[i]] = got
                    continue
                at = places[i].offset - span.start
                block = got[at : at + size]
                have[keys[i]] = block
                if block:
                    cache.put(*keys[i], block)
        return have


def _problem(error: OSError) -> Undecodable:
    if is_transient(error):
        return Undecodable("temporary", temporary(error))
    kind = "missing" if error.errno == errno.ENOENT else "unreadable"
    return Undecodable(kind, error.strerror or str(error))


class _Container(RawFile):
    """A container as a file. Chunks are loaded ahead during sequential reads."""

    def __init__(self, storage: RemoteFiles, path: bytes, found: Found):
        super().__init__(found.size)
        self._storage, self._path, self._version = storage, path, found.version
        self._chunks: OrderedDict[int, U8] = OrderedDict()
        self._next = 0
        self._ahead = 1

    def at(self, position: int, count: int) -> bytes:
        if position >= self.size:
            return b""
        start = position % _CHUNK
        return self._chunk(position // _CHUNK)[start : start + count].tobytes()

    def _chunk(self, k: int) -> U8:
        if k not in self._chunks:
            # Reading on doubles what is loaded ahead; any other place begins again with one chunk.
            self._ahead = min(2 * self._ahead, _AHEAD) if k == self._next else 1
            start, end = k * _CHUNK, min((k + self._ahead) * _CHUNK, self.size)
            data = np.empty(end - start, np.uint8)
            (problem,) = self._storage.read_into([Place(self._path, start, end - start, self._version)], [data])
            if problem is not None:
                raise OSError(errno.EIO, problem.reason)
            for i in range(0, len(data), _CHUNK):
                self._chunks[k + i // _CHUNK] = data[i : i + _CHUNK]
            self._next = k + self._ahead
            while len(self._chunks) > _CHUNKS:
                self._chunks.popitem(last=False)
        self._chunks.move_to_end(k)
        return self._chunks[k]


@dataclass
class _Connections:
    """Connections that all storages with equal options share in a process."""

    options: Remote
    cache: BlockCache
    coming: dict[Key, Future[memoryview | OSError]] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)
    _clients: dict[str, Client] = field(default_factory=dict)

    def client(self, scheme: str) -> Client:
        with self.lock:
            if scheme not in self._clients:
                self._clients[scheme] = client_for(scheme, self.options.connections, self.options.timeout)
            return self._clients[scheme]


_shared: dict[Remote, _Connections] = {}
_lock = threading.Lock()


def _connections(options: Remote) -> _Connections:
    from ...cache_folder import cache_folder

    with _lock:
        if options not in _shared:
            folder = cache_folder("remote") if options.cache_folder is None else os.fspath(options.cache_folder)
            _shared[options] = _Connections(options, BlockCache(os.path.abspath(folder), options.cache_bytes))
        return _shared[options]


_parents: list[Any] = []


def _forked() -> None:
    """Forget the parent's connections. They stay referenced, since ending them would wait for threads that do
    not exist here."""
    global _shared, _lock
    _parents.append(_shared)
    _shared, _lock = {}, threading.Lock()


os.register_at_fork(after_in_child=_forked)
