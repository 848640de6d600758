"""``WebDataset``: images in tar files, as the webdataset package writes them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from typing import Any

from ..codecs.files import MAX_BYTES
from ..sources.tar import TarShards
from .images import EncodedImages
from .list import below, texts_of

__all__ = ["WebDataset"]


class WebDataset(EncodedImages):
    """Images in tar files. Members that follow each other and have one name up to its first dot are one sample:
    ``0001.jpg`` and ``0001.cls``, which holds the class number.

    The tar files are indexed once, so samples are shuffled over all of them, sizes are known, an epoch is resumed
    exactly, and every sample is named ``shards/000.tar:0001.jpg``.

    Args:
        paths: the tar files, or one.
        transform: a gpupipe ``Compose``, or transforms for one.
        image: extensions that an image may have, as webdataset writes them; a sample's first one in this order is it.
        label: the extension of the class number, in decimal digits. Where no sample has one there are no labels.
        exif: turn images upright by their EXIF orientation.
        max_pixels: larger images are bad samples of kind ``bomb``, and never decoded. ``None``: what Pillow allows,
            which is twice ``PIL.Image.MAX_IMAGE_PIXELS``.
        max_bytes: images that have more are bad samples of kind ``bomb``, and never read. The default of 2 GiB is more
            than so many pixels take without any compression.

    Raises:
        DatasetError: a file that is missing, compressed, no tar file, or cut.
    """

    def __init__(
        self,
        paths: Sequence[str | os.PathLike[str]] | str | os.PathLike[str],
        transform: Any = None,
        *,
        image: str = "jpg;jpeg;png;webp;ppm;pgm;bmp;tif;tiff",
        label: str = "cls",
        exif: bool = False,
        max_pixels: int | None = None,
        max_bytes: int = MAX_BYTES,
    ):
        given: Iterable[Any] = [paths] if isinstance(paths, (str, bytes, os.PathLike)) else paths
        shards = below([os.path.expanduser(path) for path in texts_of(given, "WebDataset")], None, False, "WebDataset")
        extensions = tuple(e.lower() for e in image.replace(";", " ").split())
        super().__init__(TarShards(shards, extensions, label.lower()), transform, exif, max_pixels, max_bytes)

    def __repr__(self) -> str:
        return (
            f"WebDataset({len(self):,} samples in {self._index.containers:,} tar files below {self._shown_prefix()!r})"
        )
