"""Encoded images in HDF5 files: arrays of bytes of different lengths in one dataset, or a dataset of bytes per image.

Both are stored unchanged in the file, so an image is a range of bytes, and h5py is only needed to locate them. Arrays
of different lengths are in *global heaps*; an array of references gives the heap and the position in it (*HDF5 File
Format Specification*, III.E and IV.B.1). h5py does not expose them.
"""

from __future__ import annotations

import struct
import uuid
import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import IO, Any

import numpy as np

from ..sources.hdf5_outside import OutsideError, find, h5py, walk
from ..sources.shards import Row, Shards
from .base import PathsLike, Sharded, ShardOptions, Unpack, Usual

_REFERENCE = struct.Struct("<IQI")
"""Bytes of the array, address of its heap, its number there."""
_HEAP = struct.Struct("<4sB3xQ")
_OBJECT = struct.Struct("<HHIQ")
_LARGEST_CHUNK = 1 << 24
"""Maximum number of references in one chunk."""
_MANY, _FEWER = 1 << 20, 64
"""A dataset may have ``_MANY`` references, or ``_FEWER`` bytes of them for each byte that they take in the file."""
_SHRINKS = 2000
"""Maximum number of bytes of labels that one byte in a file can become."""
_HEAPS = 16
"""Number of cached heaps: neighboring images share one."""


def opened(file: IO[bytes] | str) -> Any:
    """Open a file, given open or by path, with h5py. Raises :class:`ValueError` if it is not a complete HDF5 file."""
    try:
        return h5py().File(file, "r")
    except OSError as e:
        raise ValueError(f"it is not a complete HDF5 file: {e}") from None


@dataclass(frozen=True, eq=False)
class Hdf5Files(Shards):
    """Rows of HDF5 files.

    Args:
        image: the dataset of images u8[?] each, or the group that contains a dataset u8[L] for each image.
        label: the dataset int[N] or of N class names. Without it there are no labels, or the folders in a group are the
            classes.
    """

    image: str
    label: str | None

    owner = "HDF5"

    def names(self, file: IO[bytes]) -> Iterable[str]:
        with opened(file) as root:
            return [*root]

    def counted(self, file: IO[bytes]) -> Mapping[str, int]:
        with opened(file) as root:
            return {name: 0 for name in self.unused(root) if hasattr(find(root, name), "dtype")}

    def rows(self, file: IO[bytes], path: bytes) -> Iterator[Row]:
        h5 = h5py()
        with opened(file) as root:
            try:
                images = find(root, self.image)
                if images is None:
                    raise ValueError(f"it has no {self.image!r}; it has {_names(root)}; name one by image=")
                labels = None if self.label is None else find(root, self.label)
                if labels is None and not isinstance(self.label, Usual | None):
                    raise ValueError(
                        f"it has no label={self.label!r}; it has {_names(root)}. Correct label=, or leave it out"
                    )
                if labels is not None:
                    count = len(images) if isinstance(images, h5.Dataset) else None
                    labels = label_column(labels, count)
                if isinstance(images, h5.Dataset):
                    yield from self._of_dataset(file, root, images, labels)
                else:
                    yield from self._of_group(root, images, labels)
            except OutsideError as e:
                raise ValueError(
                    f"{e}, but encoded images are read at their position in the named file: name that other file, or "
                    "copy the data into one (file['copy'] = file[name][()])"
                ) from None
            except (RuntimeError, KeyError, OSError, zlib.error) as e:  # errors of h5py for damaged files
                raise ValueError(f"it is damaged: {e}") from None

    def _of_dataset(self, file: IO[bytes], root: Any, images: Any, labels: list[Any] | None) -> Iterator[Row]:
        kind = h5py().check_vlen_dtype(images.dtype)
        if images.ndim > 1 and images.dtype == np.uint8:
            raise ValueError(f"{self.image!r} is uint8{list(images.shape)}, which are pixels; use HDF5Arrays")
        if h5py().check_string_dtype(images.dtype) is not None:
            raise ValueError(
                f"{self.image!r} has texts, which end at the first zero byte and so cannot hold images; write arrays "
                "of uint8"
            )
        if images.ndim != 1 or kind is None or np.dtype(kind).itemsize != 1:
            raise ValueError(
                f"{self.image!r} is {images.dtype}{list(images.shape)}; encoded images are arrays of uint8 of any "
                "length, dtype=h5py.vlen_dtype(numpy.uint8)"
            )
        heaps, values = _Heaps(file, root.userblock_size), self._further(root, len(images))
        for i, (length, address, number) in enumerate(_references(file, images)):
            label = None if labels is None else labels[i]
            # An empty array is in no heap.
            if not length:
                yield Row(b"%d" % i, 0, 0, label, values=values(i))
                continue
            at, size = heaps.find(address, number)
            if length > size:
                raise ValueError(f"it is damaged: array {i} of {self.image!r} is longer than its place")
            yield Row(b"%d" % i, at, length, label, values=values(i))

    def _of_group(self, root: Any, images: Any, labels: list[Any] | None) -> Iterator[Row]:
        found = [(name, item) for name, item in walk(images) if item.ndim == 1 and item.dtype == np.uint8]
        if labels is not None and len(labels) != len(found):
            raise ValueError(f"it has {len(found)} images and {len(labels)} labels")
        values = self._further(root, len(found))
        for i, (name, item) in enumerate(found):
            label = labels[i] if labels is not None else name.rpartition("/")[0].rpartition("/")[2] or None
            at = item.id.get_offset()
            if at is None and item.size:
                problem = "it is stored in chunks, not in one piece; write it without chunks and compression"
                yield Row(name.encode(), 0, 0, problem=problem)
            else:
                yield Row(name.encode(), at or 0, item.size, label, values=values(i))

    def _further(self, root: Any, count: int) -> Callable[[int], list[Any]]:
        """Return a function that gives the values of further datasets for the number of an image."""
        columns = []
        for name in self.columns:
            found = find(root, name)
            if not hasattr(found, "dtype") or not found.ndim or len(found) != count:
                what = "is not there" if found is None else f"is {found!r}"
                raise ValueError(
                    f"the column {name!r} {what}; it must be a dataset with a value for each of {count} images; there "
                    f"are {_names(root)}"
                )
            if found.ndim > 1 or found.dtype.kind == "f":
                columns.append([*found[()]])
            else:
                columns.append(label_column(found, count))
        return lambda i: [column[i] for column in columns]


def _names(root: Any) -> str:
    return ", ".join(repr(name) for name in root) or "nothing"


def label_column(labels: Any, count: int | None) -> list[Any]:
    """Read a dataset int[N] or of N texts, as numbers or texts. Raises :class:`ValueError`."""
    if not hasattr(labels, "dtype") or labels.ndim != 1 or (count is not None and len(labels) != count):
        raise ValueError(f"its labels are {labels!r}; they must be one for each of the {count} images")
    if labels.nbytes > max(_SHRINKS * labels.id.get_storage_size(), 1 << 26):
        raise ValueError(f"it claims {labels.size} labels, and has {labels.id.get_storage_size()} bytes of them")
    if h5py().check_string_dtype(labels.dtype) is not None or labels.dtype.kind == "S":
        return [t.decode(errors="replace") if isinstance(t, bytes) else str(t) for t in labels[()].tolist()]
    if labels.dtype.kind not in "iu":
        raise ValueError(f"its labels are {labels.dtype}; they must be integers or class names")
    column: list[Any] = labels[()].tolist()
    return column


def _references(file: IO[bytes], images: Any) -> Iterator[tuple[int, int, int]]:
    """Yield (bytes, address of the heap, number there) of every array of a dataset."""
    low, count, plist = images.id, len(images), images.id.get_create_plist()
    if count > _MANY and count * _REFERENCE.size > _FEWER * low.get_storage_size():
        raise ValueError(f"{images.name!r} claims {count} images, and has {low.get_storage_size()} bytes about them")
    if images.chunks is None:
        at = low.get_offset()
        if at is None:
            raise ValueError(f"{images.name!r} has no storage of its own in the file; write it again")
        file.seek(at)
        raw = file.read(count * _REFERENCE.size)
        if len(raw) < count * _REFERENCE.size:
            raise ValueError(f"{images.name!r} ends after byte {at + len(raw)}: it is truncated")
        yield from _REFERENCE.iter_unpack(raw)
        return
    each = images.chunks[0]
    if each > _LARGEST_CHUNK:
        raise ValueError(f"{images.name!r} claims chunks of {each} references; write it again with smaller chunks")
    with _unfiltering(plist, each, images.name) as unfiltered:
        for first in range(0, count, each):
            raw = unfiltered(*low.read_direct_chunk((first,)))
            yield from _REFERENCE.iter_unpack(raw[: min(each, count - first) * _REFERENCE.size])


@contextmanager
def _unfiltering(plist: Any, each: int, name: str) -> Iterator[Callable[[int, bytes], bytes]]:
    """Yield a function that undoes the filters of a chunk of references: ``unfiltered(mask, stored bytes)``.

    HDF5 does it: the chunk goes into a dataset in memory with the same filters, whose values are plain bytes.
    """
    h5 = h5py()
    filters = [plist.get_filter(i) for i in range(plist.get_nfilters())]
    lacking = [code for code, *_ in filters if not h5.h5z.filter_avail(code)]
    if lacking:
        raise ValueError(
            f"{name!r} has references that are packed by the filter {lacking[0]}, which h5py does not have; write it "
            "again with h5repack -f NONE"
        )
    space, kind = h5.h5s.create_simple((each,)), h5.h5t.py_create(np.dtype(f"V{_REFERENCE.size}"))
    whole = np.empty(each, f"V{_REFERENCE.size}")
    with h5.File(f"gpupipe-{uuid.uuid4()}", "w", driver="core", backing_store=False) as file:
        chunks: dict[int, Any] = {}
        # Bytes that cannot be compressed grow a little.
        most = 2 * whole.nbytes + 64

        def unfiltered(mask: int, stored: bytes) -> bytes:
            # Bit i of the mask: filter i was not applied to this chunk. Filters are undone from the last one on.
            deflated = filters and filters[-1][0] == h5.h5z.FILTER_DEFLATE and not mask >> len(filters) - 1 & 1
            # HDF5 inflates a chunk to its end, whatever that takes.
            if len(stored) > most or (deflated and len(zlib.decompressobj().decompress(stored, most)) == most):
                raise ValueError(f"{name!r} is damaged: a chunk has more than {whole.nbytes} bytes")
            # Filters belong to a dataset, so each mask has its own.
            if mask not in chunks:
                applied = h5.h5p.create(h5.h5p.DATASET_CREATE)
                applied.set_chunk((each,))
                for i, (code, flags, values, _) in enumerate(filters):
                    if not mask >> i & 1:
                        applied.set_filter(code, flags, values)
                chunks[mask] = h5.h5d.create(file.id, b"%d" % mask, kind, space, applied)
            chunks[mask].write_direct_chunk((0,), stored)
            chunks[mask].read(h5.h5s.ALL, h5.h5s.ALL, whole)
            return whole.tobytes()

        yield unfiltered


class _Heaps:
    """Locates the arrays of a file."""

    def __init__(self, file: IO[bytes], base: int):
        self._file, self._base = file, base
        self._known: OrderedDict[int, dict[int, tuple[int, int]]] = OrderedDict()

    def find(self, address: int, number: int) -> tuple[int, int]:
        """Return (position in the file, bytes). Raises :class:`ValueError` if the array does not exist."""
        heap = self._known.get(address)
        if heap is None:
            # Addresses count from the end of the user block.
            heap = self._known[address] = self._objects(address + self._base)
            if len(self._known) > _HEAPS:
                self._known.popitem(last=False)
        if number not in heap:
            raise ValueError(f"it is damaged: there is no array {number} in the heap at byte {address}")
        return heap[number]

    def _objects(self, start: int) -> dict[int, tuple[int, int]]:
        self._file.seek(start)
        head = self._file.read(_HEAP.size)
        if len(head) < _HEAP.size or head[:4] != b"GCOL":
            raise ValueError(f"it is truncated or damaged: there is no heap at byte {start}")
        _, _, size = _HEAP.unpack(head)
        found, at = dict[int, tuple[int, int]](), start + _HEAP.size
        while at + _OBJECT.size <= start + size:
            self._file.seek(at)
            head = self._file.read(_OBJECT.size)
            if len(head) < _OBJECT.size:
                raise ValueError(f"it is truncated or damaged: the heap at byte {start} does not end")
            number, _, _, length = _OBJECT.unpack(head)
            if not number:  # the rest is free
                break
            found[number] = at + _OBJECT.size, length
            # Arrays are padded to eight bytes.
            at += _OBJECT.size + (length + 7 & ~7)
        return found


class HDF5(Sharded):
    """Encoded images in HDF5 files: a dataset of arrays of uint8 of different lengths, or a group with a dataset u8[L]
    for each image, whose folders are the classes. ``h5py``, which locates them while the index is built, comes with
    ``gpupipe-loader[hdf5]``. For pixels use :class:`HDF5Arrays`.

    Not supported: texts, which end at a zero byte; data in other files.

    Args:
        image: The dataset or group of images.
        label: The dataset int[N], or of N class names. ``None``: no labels. The default may be missing; a name that you
            pass must exist.
        columns: Further datasets with one value for each image: numbers, texts, or arrays of numbers.

    Raises:
        DatasetError: A file is missing, of another format, or cut, or a dataset cannot be used.
        MissingDependency: ``h5py`` is not installed.

    >>> HDF5("train.h5", image="images", label="labels")  # doctest: +SKIP
    HDF5(1,281,167 samples in 1 files below '/data/')
    """

    suffixes = (".h5", ".hdf5", ".hdf")

    def __init__(
        self,
        paths: PathsLike,
        transform: Any = None,
        *,
        image: str = Usual("images"),
        label: str | None = Usual("labels"),
        **options: Unpack[ShardOptions],
    ):
        rows = partial(Hdf5Files, image=image, label=label)
        super().__init__(rows, self.files(paths, options), transform, options, image, label)
