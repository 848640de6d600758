"""Files in one folder per class, described by folders, names, sizes and times. No file is opened.

:class:`Tree` gives the classes, files and order of ``torchvision.datasets.ImageFolder``.
"""

from __future__ import annotations

import logging
import os
import time
from array import array
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from ..errors import DatasetError, no_such_path
from ..printable import printable
from .base import Listing, Source
from .files import FileRows

_log = logging.getLogger("gpupipe")


def _look(entry: os.DirEntry[str]) -> os.stat_result | OSError:
    try:
        return entry.stat()
    except OSError as e:
        return e


def find_classes(root: str, owner: str) -> tuple[str, ...]:
    """Return the sorted names of the folders in ``root``. Raises :class:`DatasetError` if there is none."""
    try:
        with os.scandir(root) as entries:
            classes = tuple(sorted(e.name for e in entries if e.is_dir()))
    except FileNotFoundError:
        raise DatasetError(f"{owner}: {no_such_path(root)}; give the folder that holds the classes") from None
    except NotADirectoryError:
        raise DatasetError(f"{owner}: {root!r} is a file; give the folder that holds the classes") from None
    except OSError as e:
        raise DatasetError(f"{owner}: {root!r} cannot be read: {e.strerror}") from None
    if not classes:
        what, example = ("video", "clip.mp4") if owner == "VideoFolder" else ("image", "photo.jpg")
        raise DatasetError(
            f"{owner}: {root!r} has no class folder; {what}s belong in one folder per class, such as "
            f"{os.path.join(root, 'cat', example)!r}. For {what}s without classes use {what.capitalize()}List"
        )
    return classes


@dataclass(frozen=True)
class Tree(Source):
    """All files below ``root`` that torchvision's ``make_dataset`` finds.

    Class folders are sorted. Within each class, the folders of ``os.walk(followlinks=True)`` are sorted by path, and
    the files of each folder by name.

    Args:
        root: absolute.
        extensions: endings in lower case, compared with the name in lower case.
        owner: the dataset that asks, for messages.
    """

    root: str
    extensions: tuple[str, ...]
    owner: str = "ImageFolder"

    whole_files: ClassVar[bool] = True

    @property
    def key(self) -> tuple[Any, ...]:
        return "folder", os.path.realpath(self.root), self.extensions

    @property
    def prefix(self) -> bytes:
        return os.fsencode(os.path.join(self.root, ""))

    def listing(self, progress: Callable[[int], None] = lambda n: None) -> Listing:
        """List the files. Raises :class:`DatasetError` if ``root`` is missing or has no class folder."""
        started = time.time_ns()
        prefix = os.path.join(self.root, "")
        # A folder's time is read before its content, so that a change in between shows at the next opening.
        folders, times = [b""], [_mtime(self.root)]
        classes = find_classes(self.root, self.owner)
        rows = FileRows()
        labels, empty = array("q"), []
        for label, name in enumerate(classes):
            before = len(rows)
            for folder, mtime, files in sorted(_walk(prefix, name, self.extensions)):
                encoded = os.fsencode(folder)
                folders.append(encoded)
                times.append(mtime)
                for file, found in sorted(files.items()):
                    rows.add(encoded + b"/" + os.fsencode(file), found)
                    labels.append(label)
            if len(rows) == before:
                empty.append(name)
            progress(len(rows))
        return rows.listing(
            os.fsencode(prefix),
            started,
            labels=np.frombuffer(labels, np.int64),
            classes=classes,
            empty_classes=tuple(empty),
            folders=tuple(folders),
            folder_mtime_ns=np.array(times, np.int64),
        )


def _mtime(path: str) -> int:
    try:
        return os.stat(path).st_mtime_ns
    except OSError:
        return -1


_Files = dict[str, os.stat_result | OSError]


def _walk(prefix: str, name: str, extensions: tuple[str, ...]) -> list[tuple[str, int, _Files]]:
    """Return (folder below ``prefix``, its mtime, its files) for a class, by the rules of
    ``os.walk(followlinks=True)``."""
    found: list[tuple[str, int, _Files]] = []
    todo = [name]
    while todo:
        folder = todo.pop()
        mtime = _mtime(prefix + folder)
        files: _Files = {}
        below: list[str] = []
        try:
            with os.scandir(prefix + folder) as entries:
                for entry in entries:
                    try:
                        is_folder = entry.is_dir()
                    except OSError:
                        is_folder = False
                    if is_folder:
                        below.append(folder + "/" + entry.name)
                    elif entry.name.lower().endswith(extensions):
                        files[entry.name] = _look(entry)
        except OSError as e:
            # torchvision skips such a folder silently.
            _log.warning("the folder %s cannot be read and is left out: %s", printable(prefix + folder), e.strerror)
            # os.walk, which torchvision uses, drops the files and subfolders of a folder that fails in the middle.
            files, below = {}, []
        todo += below
        found.append((folder, mtime, files))
    return found
