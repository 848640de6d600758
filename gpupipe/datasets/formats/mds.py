"""``MDS`` and ``LitData``: images in the shards of MosaicML Streaming and of LitData."""

from __future__ import annotations

import os
from typing import Any

from ...codecs.limits import MAX_BYTES, Limits
from ...sources.mds import DECODED, LitDataChunks, MdsShards, litdata_index, mds_index
from ...sources.names import is_url
from ...sources.remote.options import Remote
from ...sources.storage import LOCAL
from .base import PathsLike, Sharded, Usual, files_of, storage_of

__all__ = ["MDS", "LitData"]


class MDS(Sharded):
    """Images in shards of MosaicML Streaming (``.mds``). They must not be compressed.

    Args:
        paths: the folder that ``MDSWriter`` wrote, whose shards are those that its ``index.json`` lists; or shards, a
            pattern, a URL, several of these with ``::`` between them, or a list.
        transform: a gpupipe ``Compose``, or transforms for one.
        image: the field of images, of encoding ``jpeg``, ``png`` or ``bytes``.
        label: the field of class numbers or names. Where there is none there are no labels; a name
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
        DatasetError: a file that is missing, no shard, or cut, or a field that cannot be used.

    >>> MDS("imagenet/mds/train")  # doctest: +SKIP
    MDS(1,281,167 samples in 2,200 shards below '/data/imagenet/mds/train/')
    """

    _what = "shards"

    def __init__(
        self,
        paths: PathsLike,
        transform: Any = None,
        *,
        image: str = Usual("image"),
        label: str | None = Usual("label"),
        exif: bool = False,
        max_pixels: int | None = None,
        max_bytes: int = MAX_BYTES,
        strict: bool = False,
        remote: Remote | None = None,
    ):
        files, storage = files_of(paths, (".mds",), "MDS", remote, mds_index)
        super().__init__(
            MdsShards(files, image, label, storage=storage),
            transform,
            Limits(exif, max_pixels, max_bytes, strict),
            image=image,
            label=label,
        )


class LitData(Sharded):
    """Images in chunks of LitData (``.bin``). They must be neither compressed nor encrypted. Those whose samples are
    rows of Arrow, as new versions write them, take ``pyarrow`` while the index is made; it comes with
    ``gpupipe-loader[parquet]``.

    Args:
        root: the folder or URL that ``litdata.optimize`` wrote, with ``index.json``.
        transform: a gpupipe ``Compose``, or transforms for one.
        image: the field of images, of format ``jpeg``, ``image`` or ``bytes``. Fields of tuples are called ``"0"``,
            ``"1"``; those of dictionaries in each other ``"meta.id"``.
        label: the field of class numbers or names. Where there is none there are no labels; a name
            that you give must be there.
        exif: turn images upright by their EXIF orientation. ``None``: as new versions of litdata do, which turn fields
            of format ``jpeg`` and ``image``, and hand out bytes as they are.
        max_pixels: larger images are bad samples of kind ``bomb``, and never decoded. ``None``: what Pillow allows,
            which is twice ``PIL.Image.MAX_IMAGE_PIXELS``.
        max_bytes: images that have more are bad samples of kind ``bomb``, and never read. The default of 2 GiB is more
            than so many pixels take without any compression.
        strict: JPEG files whose data libjpeg repairs with a warning, which Pillow delivers as if they were good, are
            bad samples of kind ``damaged``. All of each file is read and decoded once, when the index is built. See
            :mod:`gpupipe.codecs.damage` for what is found and what cannot be. Needs simplejpeg.
        remote: how URLs are read; see :class:`~gpupipe.datasets.Remote`.

    Raises:
        DatasetError: a folder without an index, a chunk that is missing or cut, or a field that cannot be used.

    >>> LitData("imagenet/litdata/train", image="0", label="1")  # doctest: +SKIP
    LitData(1,281,167 samples in 2,200 chunks below '/data/imagenet/litdata/train/')
    """

    _what = "chunks"

    def __init__(
        self,
        root: str | os.PathLike[str],
        transform: Any = None,
        *,
        image: str = Usual("image"),
        label: str | None = Usual("label"),
        exif: bool | None = None,
        max_pixels: int | None = None,
        max_bytes: int = MAX_BYTES,
        strict: bool = False,
        remote: Remote | None = None,
    ):
        folder = os.path.expanduser(os.fspath(root))
        storage = storage_of(remote, "LitData") if is_url(folder) else LOCAL
        files, fields = litdata_index(folder, storage)
        if exif is None:
            exif = any(field.name == image and field.encoding.partition(":")[0] in DECODED for field in fields)
        super().__init__(
            LitDataChunks(files, fields, image, label, storage=storage),
            transform,
            Limits(exif, max_pixels, max_bytes, strict),
            image=image,
            label=label,
        )
