"""``RecordIO``: images in MXNet's RecordIO files."""

from __future__ import annotations

from typing import Any

from ...codecs.limits import MAX_BYTES, Limits
from ...sources.recordio import RecordFiles
from ...sources.remote.options import Remote
from .base import PathsLike, Sharded, files_of

__all__ = ["RecordIO"]


class RecordIO(Sharded):
    """Images in RecordIO files (``.rec``), as MXNet's ``im2rec`` packs them. Where a file ``.idx`` lies beside, its
    records come in that order and are named by its keys, otherwise by their number. Of several labels the first one is
    taken, and records without an image are left out.

    Args:
        paths: the ``.rec`` files; ``"train-{0..7}.rec"``, a pattern, a folder, a URL, several of these with ``::``
            between them, or a list.
        transform: a gpupipe ``Compose``, or transforms for one.
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
        DatasetError: a file that is missing, no RecordIO file, or cut.

    >>> RecordIO("train.rec")  # doctest: +SKIP
    RecordIO(1,281,167 samples in 1 files below '/data/')
    """

    def __init__(
        self,
        paths: PathsLike,
        transform: Any = None,
        *,
        exif: bool = False,
        max_pixels: int | None = None,
        max_bytes: int = MAX_BYTES,
        strict: bool = False,
        remote: Remote | None = None,
    ):
        files, storage = files_of(paths, (".rec",), "RecordIO", remote)
        super().__init__(RecordFiles(files, storage=storage), transform, Limits(exif, max_pixels, max_bytes, strict))
