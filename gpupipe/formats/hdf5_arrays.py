"""Pixels in HDF5 files. Contiguous datasets are read by ranges of bytes, chunked ones through h5py."""

from __future__ import annotations

import os
import weakref
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from ..codecs.files import Place, Undecodable
from ..datasets.arrays import Arrays, PixelRows
from ..errors import DatasetError
from ..signal_handlers import defer_in_forks
from ..sources.hdf5_outside import OutsideError, find, h5py
from ..sources.storage import LOCAL
from .base import Usual
from .hdf5 import label_column, opened

U8 = npt.NDArray[np.uint8]


class ContiguousRows(PixelRows):
    """Rows that are stored one after another from ``offset`` on."""

    def __init__(self, path: str, shape: tuple[int, ...], offset: int):
        super().__init__(path, shape)
        self._offset = offset

    def __getitem__(self, i: int) -> U8:
        """Read a row. Raises :class:`~gpupipe.codecs.files.Undecodable`."""
        row = np.empty(self.shape[1:], np.uint8)
        place = Place(os.fsencode(self._path), self._offset + i * row.size, row.size)
        (problem,) = LOCAL.read_into([place], [row.reshape(-1)])
        if problem is not None:
            raise problem
        return row


class H5Rows(PixelRows):
    """Rows that h5py reads. Each process opens the file when it reads its first row.

    Args:
        name: the dataset in the file.
        allow_outside: whether its bytes may lie in other files.
    """

    def __init__(self, path: str, shape: tuple[int, ...], name: str, allow_outside: bool = False):
        super().__init__(path, shape)
        self._name = name
        self._allow_outside = allow_outside
        self._file: Any = None
        self._rows: Any = None
        _all.add(self)

    def __getitem__(self, i: int) -> U8:
        """Read a row. Raises :class:`~gpupipe.codecs.files.Undecodable`."""
        with _h5py_lock():
            try:
                if self._file is None:
                    self._file = h5py().File(self._path, "r")
                if self._rows is None:
                    self._rows = find(self._file, self._name, self._allow_outside)
                row: U8 = self._rows[i]
            except FileNotFoundError as e:
                raise Undecodable("missing", e.strerror or str(e)) from None
            except (OSError, RuntimeError, KeyError, ValueError, TypeError) as e:
                raise Undecodable("undecodable", f"h5py cannot read it: {e}") from None
            return row

    def close(self) -> None:
        """Close the file. The next read opens it again."""
        file, self._file, self._rows = self._file, None, None
        if file is not None:
            file.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return H5Rows, (self._path, self.shape, self._name, self._allow_outside)


_all: weakref.WeakSet[H5Rows] = weakref.WeakSet()


@cache
def _h5py_lock() -> Any:
    """Return h5py's own lock, and hold it during every fork from now on, so that the child finds the library in a valid
    state.

    A thread holds the lock while it is in the library. (h5py itself has done this since 3.14.) There is no second lock:
    a fork would acquire both in the opposite order of the readers.
    """
    h5py()
    from h5py._objects import phil

    os.register_at_fork(before=phil.acquire, after_in_parent=phil.release, after_in_child=phil.release)
    defer_in_forks()
    return phil


def _in_child() -> None:
    """Close the file in a child. Otherwise the two processes would share a file position."""
    for rows in _all:
        rows.close()


os.register_at_fork(after_in_child=_in_child)


class HDF5Arrays(Arrays):
    """Pixels in an HDF5 file. Rows of a contiguous dataset are read without ``h5py``. Those of a chunked dataset are
    read through it, which is slower, uses one thread, and opens the file in every process. ``h5py`` comes with
    ``gpupipe-loader[hdf5]``. For encoded images use :class:`HDF5`.

    Args:
        path: The file.
        transform: A gpupipe ``Compose``, or the transforms for one.
        image: The dataset u8[N, H, W, C] with C = 1 or 3, or u8[N, H, W].
        label: The dataset int[N], or of N class names. ``None``: no labels. The default may be missing; a name that you
            pass must exist.
        allow_outside: Read external storage, virtual datasets and external links, whose bytes lie in other files. Only
            use it for files that you trust: they can name any file of this machine.

    Raises:
        DatasetError: The file is missing, of another format, or cut, or a dataset cannot be used.
        MissingDependency: ``h5py`` is not installed.

    >>> HDF5Arrays("cifar.h5", image="train_x", label="train_y")  # doctest: +SKIP
    HDF5Arrays('/data/cifar.h5': uint8[50000, 32, 32, 3], in one piece)
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        transform: Any = None,
        *,
        image: str = Usual("images"),
        label: str | None = Usual("labels"),
        allow_outside: bool = False,
    ):
        self._path = os.path.abspath(os.path.expanduser(os.fspath(path)))
        try:
            LOCAL.open(
                os.fsencode(self._path)
            ).close()  # raises for anything but a regular file, on which h5py may block
            with opened(self._path) as root:
                pixels, labels, self.classes = _columns(root, self._path, image, label, allow_outside)
        except (OSError, ValueError, RuntimeError, KeyError) as e:
            why = e.strerror or str(e) if isinstance(e, OSError) else str(e)
            if isinstance(e, OutsideError):
                why += "; pass allow_outside=True if you trust this file"
            raise DatasetError(f"HDF5Arrays: {self._path} cannot be used: {why}") from None
        super().__init__(pixels, labels, transform=transform)

    def describe(self, index: int) -> str:
        return f"{self._path}:{index}"

    def __repr__(self) -> str:
        how = "in one piece" if isinstance(self.images, ContiguousRows) else "in chunks"
        return f"HDF5Arrays({self._path!r}: uint8[{', '.join(map(str, self.images.shape))}], {how})"


def _columns(root: Any, path: str, image: str, label: str | None, allow_outside: bool) -> tuple[Any, Any, list[str]]:
    """Return (rows of pixels, labels int[N] or ``None``, class names)."""
    images = find(root, image, allow_outside)
    if not hasattr(images, "dtype"):
        raise ValueError(f"it has no dataset {image!r}; it has {', '.join(map(repr, root)) or 'nothing'}")
    if images.ndim < 3 or images.dtype != np.uint8:
        hint = "; encoded images are for HDF5" if images.ndim < 3 else ""
        raise ValueError(f"{image!r} is {images.dtype}{list(images.shape)}, not pixels uint8[N, H, W, 1 or 3]{hint}")
    # Through an external link, the offset would be one in another file.
    in_one_piece = images.chunks is None and not images.external and images.file == root
    offset = images.id.get_offset() if in_one_piece else None
    rows: Any = (
        H5Rows(path, images.shape, image, allow_outside)
        if offset is None
        else ContiguousRows(path, images.shape, offset)
    )
    labels = None if label is None else find(root, label, allow_outside)
    if label is not None and labels is None and not isinstance(label, Usual):
        raise ValueError(f"it has no {label!r}; it has {', '.join(map(repr, root))}; correct label=, or leave it out")
    if labels is None:
        return rows, None, []
    values = label_column(labels, len(images))
    if all(isinstance(value, str) for value in values):
        names = sorted(set(values))
        number = {name: k for k, name in enumerate(names)}
        return rows, [number[value] for value in values], names
    return rows, values, []
