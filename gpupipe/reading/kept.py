"""Cache of decoded images for later epochs, shared by all processes of a machine: in memory or on disk.

Each image is stored whole, as decoded, in a separate file (:mod:`gpupipe.sources.remote.block_cache`) in ``/dev/shm``
or gpupipe's cache folder. Its name includes everything that its pixels depend on, so another file, another version of a
file, or another way of decoding never matches.
"""

from __future__ import annotations

import atexit
import fcntl
import math
import os
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import numpy.typing as npt
import PIL
from PIL import features
from rich.filesize import decimal

from .. import system
from ..cache_folder import cache_folder, distrust_folder, make_folder
from ..codecs.decode import smaller_origin
from ..codecs.limits import Limits
from ..datasets.dataset import Dataset
from ..errors import ConfigError
from ..sources.remote.block_cache import BlockCache, bytes_kept
from ..sources.remote.memory_cache import MemoryCache
from ..sources.storage import look_closely
from ..types import check_integer
from .decoder import Decoder, Part, Wanted

U8 = npt.NDArray[np.uint8]

CacheKind = Literal["ram", "disk"]
Name = tuple[bytes, int]
"""(everything that an image's pixels depend on except the version of its file, that version)"""

_SHM = "/dev/shm"
_UNUSED = 24 * 3600.0
"""Seconds after which unused images may be evicted."""


def check_cache(cache: Any, cache_bytes: Any) -> int | None:
    """Return ``cache_bytes``. Raises :class:`ConfigError` if ``cache`` or ``cache_bytes`` is wrong by itself."""
    if cache is not None and cache not in get_args(CacheKind):
        raise ConfigError(f'cache must be "ram", "disk" or None, not {cache!r}')
    if cache is None and cache_bytes is not None:
        raise ConfigError(
            f'cache_bytes={cache_bytes!r} without cache: add cache="ram" or cache="disk", '
            "which says where decoded images are kept, or leave cache_bytes out"
        )
    if cache == "disk" and cache_bytes is None:
        raise ConfigError('cache="disk" needs cache_bytes, the number of bytes of decoded images that it may hold')
    return None if cache_bytes is None else check_integer(cache_bytes, "cache_bytes", 1)


@dataclass(frozen=True)
class DecodedCache:
    """Cache of decoded images. Picklable; creates no folder before the first image is stored.

    Args:
        kind: ``"ram"`` stores images in memory until the last process that uses them ends, ``"disk"`` permanently.
        cache_bytes: limit for all images that processes of this machine store there. Images beyond it are decoded each
            time.
    """

    kind: CacheKind
    cache_bytes: int

    @classmethod
    def of(cls, kind: CacheKind, cache_bytes: int | None, dataset: Dataset | None) -> DecodedCache:
        """Return the cache for images of ``dataset``; ``None`` means files that a script opens. Raises
        :class:`ConfigError`.

        ``cache_bytes=None`` means half of the free memory, for the images of all loaders, which share the folder.
        """
        chosen = cls(kind, 0 if cache_bytes is None else cache_bytes)
        chosen.check_kind(dataset)
        if cache_bytes is None:
            chosen = cls(kind, _chosen_budget(chosen.folder))
        chosen.check(dataset)
        return chosen

    def check_kind(self, dataset: Dataset | None) -> None:
        """Raise :class:`ConfigError` if ``dataset`` cannot be cached, or not in this way."""
        if dataset is None:
            pass
        elif dataset.kind != "files" or dataset.sizes is None:
            raise ConfigError(
                f"cache={self.kind!r} needs images in files, which have an index, but {dataset!r} "
                f"has {dataset.kind}; leave it out"
            )
        if self.kind == "ram":
            _check_own(self.folder)

    def check(self, dataset: Dataset | None) -> None:
        """Raise :class:`ConfigError` if the cache is too small or too large for images of ``dataset``."""
        largest, total = (0, 0) if dataset is None else decoded_bytes(dataset)
        if dataset is not None and self.cache_bytes < largest:
            raise ConfigError(
                f"cache_bytes={self.cache_bytes} cannot hold the largest image, which has {largest} bytes when it is "
                f"decoded; all {len(dataset):,} take {decimal(total)}"
            )
        if self.kind == "ram":
            most = min((n for n in (system.shm_size(), system.memory_limit()) if n is not None), default=0)
            if not os.path.isdir(_SHM) or self.cache_bytes > most:
                raise ConfigError(
                    f"cache_bytes={self.cache_bytes} in memory: {_SHM} and this process may have {decimal(most)} at "
                    'most; take less, or cache="disk"'
                )

    @property
    def folder(self) -> str:
        return (
            os.path.join(_SHM, f"gpupipe-{os.geteuid()}", "decoded") if self.kind == "ram" else cache_folder("decoded")
        )

    @cached_property
    def _images(self) -> BlockCache:
        return _shared(self.folder, self.cache_bytes)

    def __reduce__(self) -> tuple[Any, ...]:
        return DecodedCache, (self.kind, self.cache_bytes)

    def hold(self) -> None:
        """Register this process as a user of images in memory, until it ends. Images on disk need no users."""
        if self.kind == "ram":
            _check_own(self.folder)
            _hold(self.folder, self._images)

    def remark(self) -> str:
        """Describe the content of the cache, after checking every file."""
        total, count = self._images.held()
        where = "memory" if self.kind == "ram" else f"files under {self.folder}"
        return (
            f"cache: {count:,} decoded images, {decimal(total)} of {decimal(self.cache_bytes)} in {where}, shared by "
            "all processes of this machine"
        )

    def read(self, name: Name, start: int, count: int) -> U8 | None:
        """Return bytes of a stored image, or ``None`` if it is not stored."""
        return self._images.read(*name, 0, start, count)

    def keep(self, name: Name, pixels: U8) -> None:
        """Store an image u8[H, W, 3] if there is room."""
        self._images.put(*name, 0, np.ascontiguousarray(pixels).data.cast("B"))

    @staticmethod
    def name(dataset: Dataset, index: int, size: tuple[int, int], factor: int = 1) -> Name | None:
        """Return the name of an image decoded at 1/``factor``, or ``None`` if its file may have changed since it was
        indexed."""
        place, known = dataset.place(index), dataset.found(index)
        changed_at = 0
        if not dataset.source.storage.remote:
            found = look_closely(place.path)
            if isinstance(found, int) or not found.same_as(known):
                return None
            changed_at = found.changed
        numbers = (place.offset, place.length, *known[:2], changed_at, *size, factor)
        inflated = b"" if place.inflated < 0 else b"inflated %d" % place.inflated
        return _name(_decoding(dataset.limits) + b" " + inflated, numbers, place.path), known.version


class OpenFile(NamedTuple):
    """A file that a script has opened."""

    path: bytes
    size: int
    inode: int
    changed: int
    """When it was changed, in ns. Every write changes this."""

    def name(self, size: tuple[int, int], factor: int = 1) -> Name:
        """Return the name of its image, which has (height, width), decoded by DALI or Pillow at 1/``factor``."""
        return _name(b"opened " + _decoding(Limits()), (*self[1:], *size, factor), self.path), self.changed


def _name(decoding: bytes, numbers: tuple[int, ...], path: bytes) -> bytes:
    # The path comes last, so no two names can be equal whatever characters it has.
    return b"%b %b %b" % (decoding, b" ".join(b"%d" % number for number in numbers), path)


@dataclass(frozen=True)
class Kept:
    """Decoder that stores its results in a cache and reuses them.

    Files that differ from the index are neither stored nor reused.
    """

    inner: Decoder
    dataset: Dataset
    cache: DecodedCache

    def __call__(self, wanted: Wanted) -> Part:
        dataset, index, size, factor = self.dataset, wanted.index, wanted.size, wanted.factor
        name = self.cache.name(dataset, index, size, factor)
        if name is not None:
            turn = int(dataset.orientations[index]) if dataset.limits.exif and dataset.orientations is not None else 1
            origin = (0.0, 0.0) if factor == 1 else smaller_origin(size, factor, turn)
            top, _, bottom, _ = wanted.inside(*origin)
            # Rows lie one after another, so those of the window are one part of the file.
            first, last, width = math.floor(top), math.ceil(bottom), -(-size[1] // factor)
            rows = self.cache.read(name, first * width * 3, (last - first) * width * 3)
            if rows is not None:
                return Part(rows.reshape(-1, width, 3), origin[0] - first, origin[1])
        # The whole image, because other epochs take other windows of it.
        part = self.inner(replace(wanted, box=None))
        # Equal names before and after reading prove that the pixels belong to this version.
        if name is not None and name == self.cache.name(dataset, index, size, factor):
            self.cache.keep(name, np.asarray(part.picture))
        return part


def decoded_bytes(dataset: Dataset) -> tuple[int, int]:
    """Return (bytes of the largest decoded image, bytes of all), including checksums."""
    assert dataset.sizes is not None
    pixels = dataset.sizes.astype(np.int64).prod(axis=1) * 3
    return bytes_kept(int(pixels.max(initial=0))), sum(map(bytes_kept, pixels.tolist()))


def ram_budget() -> int:
    """Return the default limit in bytes for ``cache="ram"``: half of the free memory."""
    known = system.shm_free(), system.memory_available(), system.memory_limit()
    return min((n for n in known if n is not None), default=0) // 2


@cache
def _chosen_budget(folder: str) -> int:
    """Choose the limit once, so that a loader keeps its cache in every epoch. Images that are already stored count as
    free memory."""
    return ram_budget() + BlockCache(folder, 0).held()[0]


def _check_own(folder: str) -> None:
    """Raise :class:`ConfigError` if other users could write to images in memory."""
    for path in (os.path.dirname(folder), folder):
        why = distrust_folder(path)
        if why is not None:
            raise ConfigError(f'cache="ram" keeps images in {path}, but {why}; remove it, or use cache="disk"')


@cache
def _decoding(limits: Limits) -> bytes:
    """Return everything that pixels depend on besides the file."""
    versions = f"Pillow {PIL.__version__} libjpeg-turbo {features.version_feature('libjpeg_turbo')}"
    return f"{limits.exif} {limits.max_pixels} {limits.max_bytes} {versions}".encode()


# ---- one for each folder and process

_CACHES: dict[tuple[str, int], BlockCache] = {}
_HELD: dict[str, tuple[int, BlockCache]] = {}
"""Lock that marks this process as a user, by folder."""


def _shared(folder: str, limit: int) -> BlockCache:
    kind = MemoryCache if folder.startswith(f"{_SHM}/") else BlockCache
    return _CACHES.setdefault((folder, limit), kind(folder, limit, _UNUSED))


def _hold(folder: str, images: BlockCache) -> None:
    if folder in _HELD:
        return
    make_folder(folder)
    # Follow no link that someone may have put there.
    lock = os.open(os.path.join(folder, "users"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    fcntl.flock(lock, fcntl.LOCK_SH)
    _HELD[folder] = lock, images


@atexit.register
def _leave() -> None:
    """Remove images in memory if this is the last process that uses them. A killed process leaves them for the next
    one."""
    while _HELD:
        _, (lock, images) = _HELD.popitem()
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            pass  # in use by others
        else:
            images.clear()
        os.close(lock)


def _in_forked_child() -> None:
    """Drop the parent's locks. Another of its threads may have held Python's locks."""
    # The parent's descriptor holds the same lock, so closing this one does not release it.
    while _HELD:
        os.close(_HELD.popitem()[1][0])
    for images in _CACHES.values():
        images.forked()


os.register_at_fork(after_in_child=_in_forked_child)
