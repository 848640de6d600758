"""What datasets of images in large files have in common."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..codecs.limits import Limits
from ..codecs.probe import MISSING, OK
from ..datasets.images import EncodedImages
from ..errors import DatasetError
from ..sources.files import Paths
from ..sources.names import Listed, expand
from ..sources.remote.files import RemoteFiles
from ..sources.remote.options import Remote
from ..sources.shards import Shards
from ..sources.storage import Storage

__all__ = ["PathsLike", "Sharded", "Usual", "files_of", "names_of", "storage_of"]

PathsLike = Any
"""A path or URL, or several: ``shards/{000..127}.tar``, ``shards/*.tar``, a folder, ``s3://bucket/shards/{000..127}.tar``,
several of these with ``::`` between them, or a list."""


class Usual(str):
    """The default of an argument that names something: samples may lack it. What a script names must be there."""

    __slots__ = ()


class Sharded(EncodedImages):
    """Images in large files. Made by its subclasses."""

    _what = "files"
    """What the files are called, for ``repr``."""

    def __init__(
        self,
        source: Shards,
        transform: Any,
        limits: Limits,
        *,
        return_dict: bool = False,
        image: str | Sequence[str] | None = None,
        label: str | None = None,
    ):
        super().__init__(source, transform, limits, return_dict=return_dict)
        self._check_names(source, image, label)

    def _check_names(self, source: Shards, image: str | Sequence[str] | None, label: str | None) -> None:
        """Raises :class:`DatasetError` if no sample has what the script named."""
        status = self._index.status.all
        if not isinstance(image, Usual | None) and (status == MISSING).all():
            (why,) = self.bad(np.zeros(1, np.int64))
            raise DatasetError(f"{source.owner}: no sample has an image={image!r}; {why.path}: {why.reason}")
        if not isinstance(label, Usual | None) and self.labels is None and (status == OK).any():
            names = ", ".join(map(repr, source.first_names()))
            has = f"; the first sample has {names}" if names else ""
            raise DatasetError(f"{source.owner}: no sample has a label={label!r}{has}. Correct label=, or leave it out")

    def __repr__(self) -> str:
        shards = self._index.containers
        return f"{type(self).__name__}({len(self):,} samples in {shards:,} {self._what} below {self._shown_prefix()!r})"


def files_of(
    given: PathsLike, suffixes: tuple[str, ...], owner: str, remote: Remote | None, listed: Listed | None = None
) -> tuple[Paths, Storage]:
    """The files that were meant, and what opens them. Raises :class:`DatasetError`."""
    return expand(given, suffixes, owner, storage_of(remote, owner), listed)


def storage_of(remote: Remote | None, owner: str) -> RemoteFiles:
    """What reads URLs. Raises :class:`DatasetError`."""
    options = Remote() if remote is None else remote
    if not isinstance(options, Remote):
        raise DatasetError(f"{owner}: remote must be gpupipe.datasets.Remote(...), not {remote!r}")
    return RemoteFiles(options)


def names_of(text: str | Sequence[str], owner: str, argument: str) -> tuple[str, ...]:
    """Several names in a list, or in one text, separated by ``;``. Raises :class:`DatasetError`."""
    parts = text.split(";") if isinstance(text, str) else text if isinstance(text, (list, tuple)) else ()
    names = tuple(part.strip() for part in parts if isinstance(part, str) and part.strip())
    if not names or (not isinstance(text, str) and len(names) < len(parts)):
        raise DatasetError(f"{owner}: {argument} must be a name, or several with ; between them, not {text!r}")
    return names
