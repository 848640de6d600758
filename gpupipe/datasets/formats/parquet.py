"""``Parquet``: images in a column of Parquet files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...codecs.limits import MAX_BYTES, Limits
from ...sources.columns import checked_columns
from ...sources.parquet import ParquetFiles
from ...sources.remote.options import Remote
from .base import PathsLike, Sharded, Usual, files_of

__all__ = ["Parquet"]


class Parquet(Sharded):
    """Images in a column of Parquet files: of bytes, or the struct ``{bytes, path}`` that Hugging Face writes.
    ``pyarrow``, which finds the columns while the index is made, comes with ``gpupipe-loader[parquet]``.

    Columns that are not compressed are read image by image, as new versions of ``datasets`` write them. Of a compressed
    one a whole page is unpacked for each image; if pages are larger than 4 MiB that is refused, with what to do.

    Args:
        paths: the files; a pattern, a folder, a URL, several of these with ``::`` between them, or a list.
        transform: a gpupipe ``Compose``, or transforms for one.
        image: the column of images.
        label: the column of class numbers or class names. A ``ClassLabel`` of Hugging Face's gives ``classes``. Where
            there is no such column there are no labels.
        columns: further columns: numbers, truth values and texts that come with each sample beside image and label. A
            sample that lacks one is a bad sample.
        return_dict: samples, and so batches, are dictionaries with ``"image"``, ``"label"`` and the columns by name,
            and not tuples of these.
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
        DatasetError: a file that is missing, of another format, or cut, or a column that cannot be used.
        MissingDependency: ``pyarrow`` is not installed.

    >>> Parquet("data/train-*.parquet")  # doctest: +SKIP
    Parquet(1,281,167 samples in 294 files below '/data/')
    """

    def __init__(
        self,
        paths: PathsLike,
        transform: Any = None,
        *,
        image: str = Usual("image"),
        label: str | None = Usual("label"),
        columns: Sequence[str] = (),
        return_dict: bool = False,
        exif: bool = False,
        max_pixels: int | None = None,
        max_bytes: int = MAX_BYTES,
        strict: bool = False,
        remote: Remote | None = None,
    ):
        files, storage = files_of(paths, (".parquet",), "Parquet", remote)
        further = checked_columns(columns, "Parquet", (image, label))
        source = ParquetFiles(files, image, label, storage=storage, columns=further)
        super().__init__(
            source,
            transform,
            Limits(exif, max_pixels, max_bytes, strict),
            return_dict=return_dict,
            image=image,
            label=label,
        )
