"""Encoded images in HDF5 files: a dataset of arrays of bytes of different lengths.

Arrays of different lengths are stored unchanged in *global heaps*, so an image is a range of bytes, and h5py is only
needed to locate them. A reference gives the heap and the position in it (*HDF5 File Format Specification*, III.E and
IV.B.1). h5py does not expose them.
"""

from __future__ import annotations

import struct
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import IO, Any, Unpack

import numpy as np

from ..sources.extras import need
from ..sources.shards import Row, Shards
from ..transforms.compose import Transforms
from .base import PathsLike, Sharded, ShardOptions, Usual

_REFERENCE = struct.Struct("<IQI")
"""Bytes of the array, address of its heap, its number there."""
_HEAP = struct.Struct("<4sB3xQ")
_OBJECT = struct.Struct("<HHIQ")
_SHRINKS = 2000
"""Maximum number of bytes of labels that one byte in a file can become."""
_HEAPS = 16
"""Number of cached heaps: neighboring images share one."""
_COPY = "copy it into one file: file['copy'] = file[name][()]"


def h5py() -> Any:
    """Import h5py. Raises :class:`~gpupipe.errors.MissingDependency`."""
    return need("h5py", "hdf5", "HDF5 files are opened with h5py")


def opened(file: IO[bytes]) -> Any:
    """Open a file with h5py. Raises :class:`ValueError` if it is not a complete HDF5 file."""
    try:
        return h5py().File(file, "r")
    except OSError as e:
        raise ValueError(f"it is not a complete HDF5 file: {e}") from None


def find(root: Any, name: str) -> Any:
    """Return the dataset or group ``name`` of an open file; ``None`` if there is none.

    Raises :class:`ValueError` if its bytes lie in another file: a file could name any other file of the machine.
    """
    h5, at = h5py(), root
    for part in filter(None, name.split("/")):
        try:
            link = at.get(part, getlink=True) if isinstance(at, h5.Group) else None
        except TypeError:  # a user-defined kind of link
            link = "unknown"
        if link is None:
            return None
        if not isinstance(link, h5.HardLink):
            raise ValueError(f"{name!r} is a link to other data, which is not followed; {_COPY}")
        at = at[part]
    if isinstance(at, h5.Dataset) and at.external:
        raise ValueError(
            f"the bytes of {name!r} lie in another file, {at.external[0][0]!r} (external storage); {_COPY}"
        )
    if isinstance(at, h5.Dataset) and at.is_virtual:
        raise ValueError(f"{name!r} is a virtual dataset, made of others; {_COPY}")
    return at


def names_in(root: Any) -> str:
    """Return what a group has, for messages."""
    return ", ".join(repr(name) for name in root) or "nothing"


@dataclass(frozen=True, eq=False)
class Hdf5Files(Shards):
    """Rows of HDF5 files.

    Args:
        image: the dataset of images u8[?] each.
        label: the dataset int[N] or of N class names; ``None``: no labels.
    """

    image: str
    label: str | None

    owner = "HDF5"

    def names(self, file: IO[bytes]) -> Iterable[str]:
        with opened(file) as root:
            return [*root]

    def rows(self, file: IO[bytes], path: bytes) -> Iterator[Row]:
        with opened(file) as root:
            try:
                images = find(root, self.image)
                if images is None:
                    raise ValueError(f"it has no {self.image!r}; it has {names_in(root)}; name one by image=")
                _check_images(images, self.image)
                labels = None if self.label is None else find(root, self.label)
                if labels is None and not isinstance(self.label, Usual | None):
                    raise ValueError(
                        f"it has no label={self.label!r}; it has {names_in(root)}. Correct label=, or leave it out"
                    )
                numbers = None if labels is None else label_column(labels, len(images))
                yield from self._of_dataset(file, root, images, numbers)
            except (RuntimeError, KeyError, OSError) as e:  # errors of h5py for damaged files
                raise ValueError(f"it is damaged: {e}") from None

    def _of_dataset(self, file: IO[bytes], root: Any, images: Any, labels: list[Any] | None) -> Iterator[Row]:
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

    def _further(self, root: Any, count: int) -> Callable[[int], list[Any]]:
        """Return a function that gives the values of further datasets for the number of an image."""
        columns = []
        for name in self.columns:
            found = find(root, name)
            if not hasattr(found, "dtype") or not found.ndim or len(found) != count:
                what = "is not there" if found is None else f"is {found!r}"
                raise ValueError(
                    f"the column {name!r} {what}; it must be a dataset with a value for each of {count} images; there "
                    f"are {names_in(root)}"
                )
            if found.ndim > 1 or found.dtype.kind == "f":
                columns.append([*found[()]])
            else:
                columns.append(label_column(found, count))
        return lambda i: [column[i] for column in columns]


def _check_images(images: Any, name: str) -> None:
    """Raise :class:`ValueError` unless a dataset holds arrays of bytes of different lengths."""
    h5 = h5py()
    wanted = "encoded images are one dataset of arrays of uint8 of any length, dtype=h5py.vlen_dtype(numpy.uint8)"
    if not isinstance(images, h5.Dataset):
        raise ValueError(f"{name!r} is a group; {wanted}")
    if images.ndim > 1 and images.dtype == np.uint8:
        raise ValueError(f"{name!r} is uint8{list(images.shape)}, which are pixels; {_mapped(images, name)}")
    if h5.check_string_dtype(images.dtype) is not None:
        raise ValueError(f"{name!r} has texts, which end at the first zero byte and so cannot hold images; {wanted}")
    kind = h5.check_vlen_dtype(images.dtype)
    if images.ndim != 1 or kind is None or np.dtype(kind).itemsize != 1:
        raise ValueError(f"{name!r} is {images.dtype}{list(images.shape)}; {wanted}")


def _mapped(images: Any, name: str) -> str:
    """Return how pixels are read."""
    first = f"write it again in one piece, h5repack -l {name}:CONTI -f NONE OLD NEW, and then "
    return (
        f"{first if images.id.get_offset() is None else ''}use gpupipe.datasets.Arrays(numpy.memmap(PATH, mode='r', "
        f"offset=h5[{name!r}].id.get_offset(), shape=h5[{name!r}].shape), labels)"
    )


def label_column(labels: Any, count: int) -> list[Any]:
    """Read a dataset int[N] or of N texts, as numbers or texts. Raises :class:`ValueError`."""
    if not hasattr(labels, "dtype") or labels.ndim != 1 or len(labels) != count:
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
    low, count = images.id, len(images)
    if low.get_create_plist().get_nfilters():
        raise ValueError(
            f"{images.name!r} is packed by filters, such as compression, which pack references and not images; write "
            "it again without: h5repack -f NONE OLD NEW"
        )
    if count * _REFERENCE.size > low.get_storage_size():
        raise ValueError(f"{images.name!r} claims {count} images, and has {low.get_storage_size()} bytes about them")
    if images.chunks is None:
        at = low.get_offset()
        if at is None:
            raise ValueError(f"{images.name!r} has no storage of its own in the file; write it again")
        file.seek(at)
        parts = iter([(count, file.read(count * _REFERENCE.size))])
    else:
        (each,) = images.chunks
        parts = ((min(each, count - k), low.read_direct_chunk((k,))[1]) for k in range(0, count, each))
    for some, raw in parts:
        if len(raw) < some * _REFERENCE.size:
            raise ValueError(f"{images.name!r} has {len(raw)} bytes about {some} images: it is truncated or damaged")
        yield from _REFERENCE.iter_unpack(raw[: some * _REFERENCE.size])


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
    """Encoded images in HDF5 files: a dataset of arrays of uint8 of different lengths. ``h5py``, which locates them
    while the index is built, comes with ``gpupipe-loader[hdf5]``. For pixels use :class:`~gpupipe.datasets.Arrays`
    of a ``np.memmap``.

    Not supported: groups with a dataset for each image; texts, which end at a zero byte; compression and other filters,
    which pack the references to images and not the images; links, and data in other files.

    Args:
        image: The dataset of images.
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
        transform: Transforms = None,
        *,
        image: str = Usual("images"),
        label: str | None = Usual("labels"),
        **options: Unpack[ShardOptions],
    ):
        rows = partial(Hdf5Files, image=image, label=label)
        super().__init__(rows, self.files(paths, options), transform, options, image, label)
