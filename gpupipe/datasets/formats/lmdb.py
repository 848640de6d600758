"""``LMDB``: images in LMDB databases."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...codecs.limits import MAX_BYTES, Limits
from ...errors import DatasetError
from ...sources.columns import checked_columns
from ...sources.lmdb import LmdbFiles
from ...sources.remote.options import Remote
from .base import PathsLike, Sharded, Usual, files_of

__all__ = ["LMDB"]


class LMDB(Sharded):
    """Images in LMDB databases: encoded ones, ``Datum`` messages of Caffe's with encoded ones, or pickled tuples of the
    bytes of one and a class number, which nothing unpickles. The library is not needed: a value lies in the file in
    one piece, and is read as such. So the database must not be written to meanwhile.

    The class is that of the ``Datum`` or the tuple, or the folder in the key (``n01440764/1.jpg``), or what ``label``
    says.

    Args:
        paths: the databases, each the file ``data.mdb`` or the folder with it; a pattern, a URL, several of these with
            ``::`` between them, or a list.
        transform: a gpupipe ``Compose``, or transforms for one.
        image: what the keys of images look like; ``*`` is any text.
        label: what the keys of their class numbers, in decimal digits, look like; ``*`` is the same text.
        database: the name of a database within the file.
        columns: what the keys of further texts look like, such as ``"label-*"`` of words to be read; they come with
            each sample beside image and label, by that name. A sample that lacks one is a bad sample.
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
        DatasetError: a file that is missing, no LMDB database, or cut.

    >>> LMDB("train_lmdb", image="image-*", label="label-*")  # doctest: +SKIP
    LMDB(1,281,167 samples in 1 databases below '/data/train_lmdb/')
    """

    _what = "databases"

    def __init__(
        self,
        paths: PathsLike,
        transform: Any = None,
        *,
        image: str = Usual("*"),
        label: str | None = None,
        database: str | None = None,
        columns: Sequence[str] = (),
        return_dict: bool = False,
        exif: bool = False,
        max_pixels: int | None = None,
        max_bytes: int = MAX_BYTES,
        strict: bool = False,
        remote: Remote | None = None,
    ):
        files, storage = files_of(paths, ("data.mdb",), "LMDB", remote)
        further = checked_columns(columns, "LMDB", (label,))
        for name, pattern in (("image", image), ("label", label), *(("columns", column) for column in further)):
            if pattern is not None and pattern.count("*") != 1:
                raise DatasetError(f"LMDB: {name} must have one *, such as 'image-*', and is {pattern!r}")
        source = LmdbFiles(files, image, label, database, storage=storage, columns=further)
        super().__init__(
            source,
            transform,
            Limits(exif, max_pixels, max_bytes, strict),
            return_dict=return_dict,
            image=image,
            label=label,
        )
