"""``Manifest``: images that a list names by their place."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from ...codecs.limits import MAX_BYTES, Limits
from ...sources.columns import checked_columns
from ...sources.manifest import read_manifest
from ...sources.remote.options import Remote
from ..images import EncodedImages
from .base import storage_of

__all__ = ["Manifest"]


class Manifest(EncodedImages):
    """Images that a CSV or JSONL file lists by their place: whole files, or parts of files of any format.

    Columns (of CSV in the first line): ``path``, a file or URL; ``offset`` and ``length`` in bytes, from the beginning
    and up to the end if they are left out; ``label``, a class number or name; ``name``, for messages. A file that is
    missing makes bad samples, and is no error.

    Args:
        file: the list.
        transform: a gpupipe ``Compose``, or transforms for one.
        root: the folder or URL that relative paths are below. Default: the folder of the list.
        allow_outside: with ``root``: whether paths may lead out of it.
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
        DatasetError: a list that cannot be read, or a line of it that is wrong.

    With lines such as ``{"path": "a.bin", "offset": 128, "length": 9000, "label": 3}``:

    >>> Manifest("samples.jsonl")  # doctest: +SKIP
    Manifest(50,000 samples in 12 files below '/data/')
    """

    def __init__(
        self,
        file: str | os.PathLike[str],
        transform: Any = None,
        *,
        root: str | os.PathLike[str] | None = None,
        allow_outside: bool = False,
        columns: Sequence[str] = (),
        return_dict: bool = False,
        exif: bool = False,
        max_pixels: int | None = None,
        max_bytes: int = MAX_BYTES,
        strict: bool = False,
        remote: Remote | None = None,
    ):
        base = None if root is None else os.fspath(root)
        further = checked_columns(columns, "Manifest", ("path", "offset", "length", "name"))
        source = read_manifest(os.fspath(file), base, allow_outside, storage_of(remote, "Manifest"), further)
        super().__init__(source, transform, Limits(exif, max_pixels, max_bytes, strict), return_dict=return_dict)

    def __repr__(self) -> str:
        files = self._index.containers
        return f"Manifest({len(self):,} samples in {files:,} files below {self._shown_prefix()!r})"
