"""``WebDataset``: images in tar files, as the webdataset package writes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...codecs.limits import MAX_BYTES, Limits
from ...errors import DatasetError
from ...sources.columns import checked_columns
from ...sources.remote.options import Remote
from ...sources.tar import TarShards, tar_index
from .base import PathsLike, Sharded, Usual, files_of, names_of

__all__ = ["WebDataset"]


class WebDataset(Sharded):
    """Images in tar files. Members that follow each other and have one name up to its first dot are one sample:
    ``0001.jpg`` and ``0001.cls``, which holds the class number.

    The tar files are indexed once, so samples are shuffled over all of them, sizes are known, an epoch is resumed
    exactly, and every sample is named ``shards/000.tar:0001.jpg``.

    Args:
        paths: the tar files: ``"shards/{000..127}.tar"``, ``"shards/*.tar"``, a folder, a URL, several of these with
            ``::`` between them, or a list; or the ``index.json`` that lists them for wids. Of webdataset's ``pipe:``
            commands those that copy one object are read as its URL, and others are refused: none is run.
        transform: a gpupipe ``Compose``, or transforms for one.
        image: extensions that an image may have, as webdataset writes them or as a list; a sample's first
            one in this order is it.
        label: the extension of the class number in decimal digits (``"cls"``, ``"txt"``), or a field of a JSON member
            with a number or the name of a class (``"json:label"``, ``"json:meta.class"``). Where no sample has one,
            or with ``None``, there are no labels; a name that you give must be there.
        columns: further members (``"txt"``) or fields of a JSON member (``"json:weight"``): numbers, truth values and
            texts that come with each sample beside image and label; ``"__key__"`` is its name without extension. A
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
        DatasetError: a file that is missing, compressed, no tar file, or cut.

    >>> WebDataset("shards/{000..127}.tar")  # doctest: +SKIP
    WebDataset(1,281,167 samples in 128 tar files below '/data/shards/')
    """

    _what = "tar files"

    def __init__(
        self,
        paths: PathsLike,
        transform: Any = None,
        *,
        image: str | Sequence[str] = Usual("jpg;jpeg;png;webp;ppm;pgm;bmp;tif;tiff"),
        label: str | None = Usual("cls"),
        columns: Sequence[str] = (),
        return_dict: bool = False,
        exif: bool = False,
        max_pixels: int | None = None,
        max_bytes: int = MAX_BYTES,
        strict: bool = False,
        remote: Remote | None = None,
    ):
        shards, storage = files_of(paths, (".tar",), "WebDataset", remote, tar_index)
        spaced = image.replace(" ", ";") if isinstance(image, str) else image
        extensions = tuple(name.lower() for name in names_of(spaced, "WebDataset", "image"))
        further = checked_columns(columns, "WebDataset")
        if not isinstance(label, str | None):
            raise DatasetError(f"WebDataset: label must be one extension, such as 'cls', not {label!r}")
        member = label if label is None or ":" in label else label.lower()
        source = TarShards(shards, extensions, member, storage=storage, columns=further)
        super().__init__(
            source,
            transform,
            Limits(exif, max_pixels, max_bytes, strict),
            return_dict=return_dict,
            image=image,
            label=label,
        )
