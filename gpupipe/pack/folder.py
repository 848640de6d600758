"""A folder as the source and as the destination of packing."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ..codecs.files import open_regular
from ..errors import DatasetError
from .base import Sample

__all__ = ["FolderWriter", "find", "read"]

_PARTS = ".gpupipe-parts"


def find(root: str, extensions: tuple[str, ...], progress: Callable[[int], None]) -> tuple[list[Sample], int]:
    """(all files below a folder with these endings, sorted by name; how many others there are). Links are followed.

    Raises :class:`DatasetError` if there is no such folder, or a folder below it cannot be read.
    """
    samples: list[Sample] = []
    others = 0
    for folder, files in _folders(root):
        for file in files:
            if not file.lower().endswith(extensions):
                others += 1
                continue
            path = os.path.join(folder, file)
            try:
                found = os.stat(path)
            except OSError as e:
                raise DatasetError(f"{path}: {e.strerror}; mend or remove it") from None
            if not stat.S_ISREG(found.st_mode):  # a FIFO would be waited for
                others += 1
                continue
            samples.append(Sample(os.path.relpath(path, root), found.st_size, found.st_mtime_ns))
        progress(len(samples))
    return sorted(samples, key=lambda s: s.name), others


def _folders(root: str) -> Iterator[tuple[str, list[str]]]:
    def stop(error: OSError) -> None:
        raise DatasetError(f"{error.filename}: {error.strerror}") from None

    seen: set[tuple[int, int]] = set()
    for folder, below, files in os.walk(root, onerror=stop, followlinks=True):
        found = os.stat(folder)
        if (found.st_dev, found.st_ino) in seen:  # a link to a folder above
            below.clear()
            continue
        seen.add((found.st_dev, found.st_ino))
        yield folder, files


def read(root: str, sample: Sample) -> bytes:
    """The bytes of a sample. Raises :class:`DatasetError`."""
    path = os.path.join(root, sample.name)
    try:
        with open(path, "rb", opener=open_regular) as file:
            return file.read()
    except OSError as e:
        raise DatasetError(f"{path}: {e.strerror}; mend or remove it, and run the same command again") from None


@dataclass(frozen=True)
class FolderWriter:
    """One file for each sample, of the same name and time, below ``root``."""

    root: str

    def write(self, sample: Sample, data: bytes) -> None:
        path = os.path.join(self.root, sample.name)
        part = os.path.join(self.root, _PARTS, str(os.getpid()))
        os.makedirs(os.path.dirname(part), exist_ok=True)
        with open(part, "wb") as file:
            file.write(data)
        os.utime(part, ns=(sample.mtime_ns, sample.mtime_ns))
        try:
            os.replace(part, path)
        except FileNotFoundError:
            os.makedirs(os.path.dirname(path), exist_ok=True)
            os.replace(part, path)

    def has(self, sample: Sample, size: int) -> bool:
        try:
            return os.stat(os.path.join(self.root, sample.name)).st_size == size
        except OSError:
            return False

    def close(self) -> None:
        """Remove what processes that were killed have begun."""
        shutil.rmtree(os.path.join(self.root, _PARTS), ignore_errors=True)
