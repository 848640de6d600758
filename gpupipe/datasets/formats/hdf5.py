"""``HDF5`` and ``HDF5Arrays``: encoded images, and pixels, in HDF5 files."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from ...codecs.limits import MAX_BYTES, Limits
from ...errors import DatasetError
from ...sources.hdf5 import Hdf5Files, label_column, opened
from ...sources.hdf5_outside import OutsideError, find
from ...sources.hdf5_pixels import ContiguousRows, H5Rows
from ...sources.remote.options import Remote
from ...sources.storage import LOCAL
from ..arrays import Arrays
from .base import PathsLike, Sharded, Usual, files_of

__all__ = ["HDF5", "HDF5Arrays"]


class HDF5(Sharded):
    """Encoded images in HDF5 files: a dataset of arrays of uint8 of different lengths, or a group with a dataset u8[L]
    for each image, whose folders are the classes. ``h5py``, which finds them while the index is made, comes with
    ``gpupipe-loader[hdf5]``. For pixels use :class:`HDF5Arrays`.

    Args:
        paths: the files; a pattern, a folder, a URL, several of these with ``::`` between them, or a list.
        transform: a gpupipe ``Compose``, or transforms for one.
        image: the dataset or group of images.
        label: the dataset int[N], or of N class names. Where there is none there are no labels; a name
            that you give must be there.
        exif: turn images upright by their EXIF orientation.
        max_pixels: larger images are bad samples of kind ``bomb``, and never decoded. ``None``: what Pillow allows,
            which is twice ``PIL.Image.MAX_IMAGE_PIXELS``.
        max_bytes: images that have more are bad samples of kind ``bomb``, and never read. The default of 2 GiB is more
            than so many pixels take without any compression.
        strict: JPEG files whose data libjpeg repairs with a warning, which Pillow delivers as if they were good, are
            bad samples of kind ``damaged``. All of each file is read and decoded once, when the index is built. See
            :mod:`gpupipe.codecs.damage` for what is found and what cannot be. Needs simplejpeg.
        remote: how URLs are read; see :class:`~gpupipe.datasets.Remote`.

    Raises:
        DatasetError: a file that is missing, of another format, or cut, or a dataset that cannot be used.
        MissingDependency: ``h5py`` is not installed.

    >>> HDF5("train.h5", image="images", label="labels")  # doctest: +SKIP
    HDF5(1,281,167 samples in 1 files below '/data/')
    """

    def __init__(
        self,
        paths: PathsLike,
        transform: Any = None,
        *,
        image: str = Usual("images"),
        label: str | None = Usual("labels"),
        exif: bool = False,
        max_pixels: int | None = None,
        max_bytes: int = MAX_BYTES,
        strict: bool = False,
        remote: Remote | None = None,
    ):
        files, storage = files_of(paths, (".h5", ".hdf5", ".hdf"), "HDF5", remote)
        super().__init__(
            Hdf5Files(files, image, label, storage=storage),
            transform,
            Limits(exif, max_pixels, max_bytes, strict),
            image=image,
            label=label,
        )


class HDF5Arrays(Arrays):
    """Images that are pixels in an HDF5 file. A dataset in one piece is read row by row without ``h5py``; one in
    chunks, compressed or not, through it, slower, by one thread, and opened in every process anew. ``h5py`` comes with
    ``gpupipe-loader[hdf5]``. For encoded images use :class:`HDF5`.

    Args:
        path: the file.
        transform: a gpupipe ``Compose``, or transforms for one.
        image: the dataset u8[N, H, W, C] with C = 1 or 3, or u8[N, H, W].
        label: the dataset int[N], or of N class names. Where there is none there are no labels; a name
            that you give must be there.
        allow_outside: read external storage, virtual datasets and external links, whose bytes lie in other files. Only
            for files that you trust: one can name any file of this machine.

    Raises:
        DatasetError: a file that is missing, of another format, or cut, or a dataset that cannot be used.
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
            LOCAL.open(os.fsencode(self._path)).close()  # an error for what is no regular file, which h5py may wait for
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
    """(rows of pixels, labels int[N] or nothing, class names)"""
    images = find(root, image, allow_outside)
    if not hasattr(images, "dtype"):
        raise ValueError(f"it has no dataset {image!r}; it has {', '.join(map(repr, root)) or 'nothing'}")
    if images.ndim < 3 or images.dtype != np.uint8:
        hint = "; encoded images are for HDF5" if images.ndim < 3 else ""
        raise ValueError(f"{image!r} is {images.dtype}{list(images.shape)}, and no pixels uint8[N, H, W, 1 or 3]{hint}")
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
        return rows, [names.index(value) for value in values], names
    return rows, values, []
