"""Base classes of the datasets of all formats."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from ..codecs.probe import MISSING, OK
from ..datasets.images import EncodedImages
from ..datasets.options import ImageOptions, ShardOptions, TableOptions, limits_of
from ..errors import DatasetError
from ..sources.base import Source
from ..sources.columns import checked_columns
from ..sources.files import Paths
from ..sources.names import expand
from ..sources.remote.files import RemoteFiles
from ..sources.remote.options import Remote
from ..sources.shards import Shards
from ..sources.storage import Storage
from ..transforms.compose import Transforms

__all__ = [
    "Format",
    "PathsLike",
    "ShardOptions",
    "Sharded",
    "TableOptions",
    "Usual",
    "names_of",
    "storage_of",
]

PathsLike = Any
"""A path or URL, or several.

Examples are ``shards/{000..127}.tar``, ``shards/*.tar``, a folder, ``s3://bucket/shards/{000..127}.tar``, several of
these separated by ``::``, or a list.
"""


class Usual(str):
    """Default of an argument that names something. Samples may lack a default name, but not a name that a
    script passes."""

    __slots__ = ()


class Format(EncodedImages):
    """A dataset of encoded images in files of one format. Each format module defines one subclass; see
    :mod:`.registry`."""

    suffixes: ClassVar[tuple[str, ...]] = ()
    """Suffixes of its file names, in lower case."""

    def __init__(self, source: Source, transform: Transforms, options: ImageOptions, *, exif: bool = False):
        given: Mapping[str, Any] = options
        limits = limits_of(options, exif=exif)
        super().__init__(source, transform, limits, return_dict=given.get("return_dict", False))

    @classmethod
    def is_at(cls, path: str, entries: Sequence[str]) -> bool:
        """Return whether a path or URL has this format, if something other than its suffix shows that.

        Args:
            entries: the sorted names in it, if it is a local folder.
        """
        return False

    @classmethod
    def from_path(cls, path: str, **arguments: Any) -> Format:
        """Return the dataset of a path or URL."""
        kind: Any = cls
        made: Format = kind(path, **arguments)
        return made


class Sharded(Format):
    """Base class of datasets of images in large files.

    Args:
        rows: makes the source from the files, ``storage=`` and ``columns=``.
        files: the files, and the storage that opens them.
        image, label: names that the script passed, or :class:`Usual` ones.
    """

    _what = "files"
    """Word for the files in ``repr``."""

    def __init__(
        self,
        rows: Callable[..., Shards],
        files: tuple[Paths, Storage],
        transform: Transforms,
        options: ImageOptions,
        image: str | Sequence[str] | None = None,
        label: str | None = None,
    ):
        paths, storage = files
        given: Mapping[str, Any] = options
        columns = checked_columns(given.get("columns", ()), type(self).__name__)
        source = rows(paths, storage=storage, columns=columns)
        super().__init__(source, transform, options)
        self._check_names(source, image, label)

    def files(self, given: PathsLike, options: ImageOptions) -> tuple[Paths, Storage]:
        """Return the files that the user named, and the storage that opens them. Raises :class:`DatasetError`."""
        owner, others = type(self).__name__, dict[str, Any](options)
        return expand(given, self.suffixes, owner, storage_of(others.get("remote"), owner))

    def _check_names(self, source: Shards, image: str | Sequence[str] | None, label: str | None) -> None:
        """Raise :class:`DatasetError` if no sample has what the script named."""
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


def storage_of(remote: Remote | None, owner: str) -> RemoteFiles:
    """Return the storage that reads URLs. Raises :class:`DatasetError`."""
    options = Remote() if remote is None else remote
    if not isinstance(options, Remote):
        raise DatasetError(f"{owner}: remote must be gpupipe.datasets.Remote(...), not {remote!r}")
    return RemoteFiles(options)


def names_of(text: str | Sequence[str], owner: str, argument: str) -> tuple[str, ...]:
    """Return several names from a list, or from one text separated by ``;``. Raises :class:`DatasetError`."""
    parts = text.split(";") if isinstance(text, str) else text if isinstance(text, (list, tuple)) else ()
    names = tuple(part.strip() for part in parts if isinstance(part, str) and part.strip())
    if not names or (not isinstance(text, str) and len(names) < len(parts)):
        raise DatasetError(f"{owner}: {argument} must be a name, or several with ; between them, not {text!r}")
    return names
