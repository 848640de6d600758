"""Copies as PNG: what an engine cannot decode, or decodes to other pixels than Pillow, is given to it as a PNG of
Pillow's pixels.

Files are converted once, into the cache folder ``standins/``, under a name made of path, size and modification time;
encoded bytes are converted each time.
"""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from PIL import Image

from ..codecs.decode import Media, open_rgb
from ..codecs.files import Undecodable
from ..codecs.retry import reason_of, with_retries
from ..datasets.base import Dataset
from ..datasets.index import cache
from ..errors import BadSample, DatasetError

__all__ = ["PngCopies", "PngCopy"]

_VERSION = 1


def _png(image: Image.Image) -> bytes:
    out = io.BytesIO()
    image.info = {}  # neither a profile nor an orientation: the pixels are final
    image.save(out, "PNG", compress_level=1)
    return out.getvalue()


@dataclass(frozen=True)
class PngCopy:
    """Makes the copy of one sample. Picklable; for worker processes.

    Args:
        exif, max_pixels: the dataset's.
        decodes: whether the engine decodes a coding itself.
    """

    exif: bool
    max_pixels: int | None
    decodes: Callable[[str], bool]

    def __call__(self, media: Media, coding: str) -> Media:
        """``media`` itself if the engine decodes it exactly, otherwise its copy: a path for a path, bytes for bytes.

        Raises:
            Undecodable: Pillow cannot decode it.
            DatasetError: the cache folder cannot be written to.
        """
        if self.decodes(coding) or isinstance(media, np.ndarray):
            return media
        return self.of_path(media) if isinstance(media, str) else self.convert(media)

    def of_path(self, path: str) -> str:
        """The path of the copy, which is made if there is none."""
        try:
            found = with_retries(lambda: path, lambda: os.stat(path))
        except (FileNotFoundError, NotADirectoryError) as e:
            raise Undecodable("missing", e.strerror or str(e)) from None
        except OSError as e:
            raise Undecodable("unreadable", reason_of(e)) from None
        digest = hashlib.blake2b(os.fsencode(os.path.abspath(path)), digest_size=16)
        digest.update(f"\0{_VERSION} {int(self.exif)} {found.st_size} {found.st_mtime_ns}".encode())
        file = os.path.join(cache.cache_folder("standins"), digest.hexdigest() + ".png")
        try:
            if cache.distrust(os.stat(file)) is None:
                return file
        except OSError:
            pass
        encoded = self.convert(path)
        try:
            cache.make_folder(os.path.dirname(file))
            with cache.replacing(file, tidy=False) as out:
                out.write(encoded)
        except OSError as e:
            raise DatasetError(
                f"DALI cannot decode {path} itself, and a copy that it can decode cannot be kept in "
                f"{os.path.dirname(file)} ({e}): set GPUPIPE_CACHE to a folder with free space, or use engine='torch'"
            ) from None
        return file

    def convert(self, media: str | bytes) -> bytes:
        """The encoded copy. Raises :class:`Undecodable`."""
        image = open_rgb(media, exif=self.exif, max_pixels=self.max_pixels)
        assert isinstance(image, Image.Image)
        return _png(image)


class PngCopies:
    """The copies of a dataset with an index. Costs one column lookup per batch if any is needed, else nothing.

    Args:
        threads: how many convert at the same time.
    """

    def __init__(
        self,
        dataset: Dataset,
        codes: npt.NDArray[np.uint8],
        names: Sequence[str],
        threads: int,
        decodes: Callable[[str], bool],
    ):
        self._dataset = dataset
        self._codes = codes
        self._copy = PngCopy(dataset.exif, dataset.max_pixels, decodes)
        self._needed = np.ones(256, np.bool_)  # a code without a name is of a coding that nobody knows
        self._needed[: len(names)] = [not decodes(name) for name in names]
        self._pool: ThreadPoolExecutor | None = None
        self._threads = threads

    @classmethod
    def of(cls, dataset: Dataset, threads: int, decodes: Callable[[str], bool]) -> PngCopies | None:
        """``None`` if no sample needs one."""
        known = dataset.codings
        assert known is not None
        codes, names = known
        made = cls(dataset, codes, names, threads, decodes)
        return made if made._needed[: len(names)].any() or len(names) >= 255 else None

    def exchange(self, indices: npt.NDArray[np.int64], paths: list[npt.NDArray[np.uint8]]) -> list[BadSample]:
        """Put the paths of copies in the place of ``paths`` that need one. Gives those that Pillow cannot decode."""
        rows = np.flatnonzero(self._needed[self._codes[indices]]).tolist()
        if not rows:
            return []
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix="gpupipe-copies")
        bad: list[BadSample] = []
        made = self._pool.map(self._one, [paths[row].tobytes() for row in rows])
        for row, result in zip(rows, made, strict=True):
            if isinstance(result, Undecodable):
                index = int(indices[row])
                bad.append(BadSample(index, self._dataset.describe(index), result.kind, result.reason))
            else:
                paths[row] = np.frombuffer(os.fsencode(result), np.uint8)
        return bad

    def of_bytes(self, index: int, data: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8] | Undecodable:
        """What the engine is given in the place of the bytes u8[L] of a sample."""
        if not self._needed[self._codes[index]]:
            return data
        try:
            return np.frombuffer(self._copy.convert(data.tobytes()), np.uint8)
        except Undecodable as e:
            return e

    def _one(self, path: bytes) -> str | Undecodable:
        try:
            return self._copy.of_path(os.fsdecode(path))
        except Undecodable as e:
            return e

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
            self._pool = None
