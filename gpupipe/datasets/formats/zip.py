"""``Zip``: images in ZIP archives."""

from __future__ import annotations

from typing import Any

from ...codecs.limits import MAX_BYTES, Limits
from ...sources.remote.options import Remote
from ...sources.zip import ZipFiles
from ..folder import IMG_EXTENSIONS, checked_extensions
from .base import PathsLike, Sharded, files_of

__all__ = ["Zip"]


class Zip(Sharded):
    """Images in ZIP archives, in the order and with the classes that ``ImageFolder`` finds after unpacking one. Stored
    members are read as they lie; deflated ones are inflated each time, which costs about as much as half of decoding
    them.

    Args:
        paths: the archives; ``"part-{0..7}.zip"``, a pattern, a folder, a URL, several of these with ``::`` between
            them, or a list.
        transform: a gpupipe ``Compose``, or transforms for one.
        root: the folder in the archive that holds the class folders. ``None``: the one that all images have in common;
            if there are no folders in it there are no labels.
        extensions: endings of member names that are taken, in any case.
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
        DatasetError: a file that is missing, no ZIP archive, or cut.

    >>> Zip("train.zip")  # doctest: +SKIP
    Zip(1,281,167 samples in 1 archives below '/data/')
    """

    _what = "archives"

    def __init__(
        self,
        paths: PathsLike,
        transform: Any = None,
        *,
        root: str | None = None,
        extensions: str | tuple[str, ...] = IMG_EXTENSIONS,
        exif: bool = False,
        max_pixels: int | None = None,
        max_bytes: int = MAX_BYTES,
        strict: bool = False,
        remote: Remote | None = None,
    ):
        files, storage = files_of(paths, (".zip",), "Zip", remote)
        source = ZipFiles(files, checked_extensions(extensions, "Zip"), root, storage=storage)
        super().__init__(source, transform, Limits(exif, max_pixels, max_bytes, strict))
