"""Pixels in HDF5 files, in one piece: rows are ranges of bytes."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import numpy.typing as npt

from ..codecs.files import Place
from ..datasets.arrays import Arrays, PixelRows
from ..errors import DatasetError
from ..sources.storage import LOCAL
from ..transforms.compose import Transforms
from .base import Usual
from .hdf5 import find, label_column, names_in, opened

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


class HDF5Arrays(Arrays):
    """Pixels in an HDF5 file: a dataset in one piece, whose rows are read without ``h5py``. ``h5py``, which locates it,
    comes with ``gpupipe-loader[hdf5]``. For encoded images use :class:`HDF5`.

    Not supported: datasets in chunks, and therefore compressed ones; links, and data in other files.

    Args:
        path: The file.
        transform: A gpupipe ``Compose``, or the transforms for one.
        image: The dataset u8[N, H, W, C] with C = 1 or 3, or u8[N, H, W].
        label: The dataset int[N], or of N class names. ``None``: no labels. The default may be missing; a name that you
            pass must exist.

    Raises:
        DatasetError: The file is missing, of another format, or cut, or a dataset cannot be used.
        MissingDependency: ``h5py`` is not installed.

    >>> HDF5Arrays("cifar.h5", image="train_x", label="train_y")  # doctest: +SKIP
    HDF5Arrays('/data/cifar.h5': uint8[50000, 32, 32, 3])
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        transform: Transforms = None,
        *,
        image: str = Usual("images"),
        label: str | None = Usual("labels"),
    ):
        self._path = os.path.abspath(os.path.expanduser(os.fspath(path)))
        try:
            LOCAL.open(
                os.fsencode(self._path)
            ).close()  # raises for anything but a regular file, on which h5py may block
            with opened(self._path) as root:
                pixels, labels, self.classes = _columns(root, self._path, image, label)
        except (OSError, ValueError, RuntimeError, KeyError) as e:
            why = e.strerror or str(e) if isinstance(e, OSError) else str(e)
            raise DatasetError(f"HDF5Arrays: {self._path} cannot be used: {why}") from None
        super().__init__(pixels, labels, transform=transform)

    def describe(self, index: int) -> str:
        return f"{self._path}:{index}"

    def __repr__(self) -> str:
        return f"HDF5Arrays({self._path!r}: uint8[{', '.join(map(str, self.images.shape))}])"


def _columns(root: Any, path: str, image: str, label: str | None) -> tuple[ContiguousRows, list[int] | None, list[str]]:
    """Return (rows of pixels, labels int[N] or ``None``, class names)."""
    images = find(root, image)
    if not hasattr(images, "dtype"):
        raise ValueError(f"it has no dataset {image!r}; it has {names_in(root)}")
    if images.ndim < 3 or images.dtype != np.uint8:
        hint = "; encoded images are for HDF5" if images.ndim < 3 else ""
        raise ValueError(f"{image!r} is {images.dtype}{list(images.shape)}, not pixels uint8[N, H, W, 1 or 3]{hint}")
    offset = images.id.get_offset()
    if offset is None:
        how = "is stored in chunks, not in one piece" if images.chunks is not None else "has no bytes of its own"
        raise ValueError(f"{image!r} {how}; write it again: h5repack -l {image}:CONTI -f NONE OLD NEW")
    rows = ContiguousRows(path, images.shape, offset)
    labels = None if label is None else find(root, label)
    if label is not None and labels is None and not isinstance(label, Usual):
        raise ValueError(f"it has no {label!r}; it has {names_in(root)}; correct label=, or leave it out")
    if labels is None:
        return rows, None, []
    values = label_column(labels, len(images))
    if all(isinstance(value, str) for value in values):
        names = sorted(set(values))
        number = {name: k for k, name in enumerate(names)}
        return rows, [number[value] for value in values], names
    return rows, values, []
