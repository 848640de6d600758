"""Stand-ins: what DALI cannot decode, or decodes to other pixels than Pillow, is given to it as a PNG of Pillow's
pixels.

Files are converted once, into the cache folder ``standins/``, under a name made of path, size and modification time;
encoded bytes are converted each time. Neither this module nor the worker processes that use it import DALI.
"""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from PIL import Image

from ..codecs.decode import Media, open_rgb
from ..codecs.pillow import Undecodable
from ..codecs.retry import reason_of, with_retries
from ..datasets.base import Dataset
from ..datasets.index import cache
from ..errors import BadSample, DatasetError

__all__ = ["EXACT", "PngCopies", "Swap", "is_exact"]

_VERSION = 1
_PLAIN_PNG = ("1/zip/1", "L/zip/L", "L/zip/L;2", "L/zip/L;4", "LA/zip/LA", "P/zip/P", "P/zip/P;1", "P/zip/P;2")
_TIFF_CODECS = ("raw", "tiff_lzw", "tiff_adobe_deflate", "packbits")

EXACT: frozenset[str] = frozenset(
    [
        *("JPEG/RGB/jpeg/RGB", "JPEG/L/jpeg/L", "MPO/RGB/jpeg/RGB"),
        *(f"PNG/{coding}" for coding in (*_PLAIN_PNG, "P/zip/P;4", "RGB/zip/RGB", "RGBA/zip/RGBA")),
        *("WEBP/RGB//", "WEBP/RGBA//"),
        *("BMP/1/raw/1", "BMP/L/raw/L", "BMP/P/raw/P", "BMP/RGB/raw/BGR", "BMP/RGB/raw/BGRX"),
        *("PPM/1/raw/1;I", "PPM/L/raw/L", "PPM/RGB/raw/RGB"),
        *("JPEG2000/L/jpeg2k/jp2", "JPEG2000/RGB/jpeg2k/jp2", "JPEG2000/RGBA/jpeg2k/jp2"),
        *(f"TIFF/{mode}/{codec}/{mode}" for mode in ("L", "RGB", "RGBA") for codec in _TIFF_CODECS),
    ]
)
"""The codings that DALI decodes to the same pixels as Pillow, each of them measured (``tests/unit/test_odd_files.py``
does it again). All others get a stand-in. So do files with something special behind these names, see
:class:`gpupipe.codecs.pillow.Header`: a CMYK JPEG is one grey level off, Pillow turns a TIFF upright and DALI does
not, DALI finds no size in a lossless WebP with EXIF, and no image in a JPEG with junk between its segments or in a PNG
without an end."""


def is_exact(coding: str) -> bool:
    """Whether DALI needs no stand-in. The empty coding is that of files that are not decoded at all."""
    return coding in EXACT or not coding


def _png(image: Image.Image) -> bytes:
    out = io.BytesIO()
    image.info = {}  # neither a profile nor an orientation: the pixels are final
    image.save(out, "PNG", compress_level=1)
    return out.getvalue()


@dataclass(frozen=True)
class Swap:
    """Makes the stand-in of one sample. Picklable; for worker processes.

    Args:
        exif, max_pixels: the dataset's.
    """

    exif: bool
    max_pixels: int | None

    def __call__(self, media: Media, coding: str) -> Media:
        """``media`` itself where DALI decodes it exactly, otherwise its stand-in: a path for a path, bytes for bytes.

        Raises:
            Undecodable: Pillow cannot decode it.
            DatasetError: the cache folder cannot be written to.
        """
        if is_exact(coding) or isinstance(media, np.ndarray):
            return media
        return self.of_path(media) if isinstance(media, str) else self._convert(media)

    def of_path(self, path: str) -> str:
        """The path of the stand-in, which is made where there is none."""
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
        encoded = self._convert(path)
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

    def _convert(self, media: str | bytes) -> bytes:
        image = open_rgb(media, exif=self.exif, max_pixels=self.max_pixels)
        assert isinstance(image, Image.Image)
        return _png(image)


class PngCopies:
    """The stand-ins of a dataset with an index. Costs one column lookup per batch where there is any, else nothing.

    Args:
        threads: how many convert at the same time.
    """

    def __init__(self, dataset: Dataset, codes: npt.NDArray[np.uint8], names: Sequence[str], threads: int):
        self._dataset = dataset
        self._codes = codes
        self._swap = Swap(dataset.exif, dataset.max_pixels)
        self._needed = np.ones(256, np.bool_)  # a code without a name is of a coding that nobody knows
        self._needed[: len(names)] = [not is_exact(name) for name in names]
        self._pool: ThreadPoolExecutor | None = None
        self._threads = threads

    @classmethod
    def of(cls, dataset: Dataset, threads: int) -> PngCopies | None:
        """``None`` where no sample needs one, or nothing is known before it is read."""
        known = dataset.codings if dataset.media == "path" and not dataset.runs_user_code else None
        if known is None:
            return None
        made = cls(dataset, *known, threads)
        return made if made._needed[: len(known[1])].any() or len(known[1]) >= 255 else None

    def exchange(self, indices: npt.NDArray[np.int64], paths: list[npt.NDArray[np.uint8]]) -> list[BadSample]:
        """Put the paths of stand-ins in the place of ``paths`` that need one. Gives those that Pillow cannot decode."""
        rows = np.flatnonzero(self._needed[self._codes[indices]]).tolist()
        if not rows:
            return []
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix="gpupipe-standin")
        bad: list[BadSample] = []
        made = self._pool.map(self._one, [paths[row].tobytes() for row in rows])
        for row, result in zip(rows, made, strict=True):
            if isinstance(result, Undecodable):
                index = int(indices[row])
                bad.append(BadSample(index, self._dataset.describe(index), result.kind, result.reason))
            else:
                paths[row] = np.frombuffer(os.fsencode(result), np.uint8)
        return bad

    def _one(self, path: bytes) -> str | Undecodable:
        try:
            return self._swap.of_path(os.fsdecode(path))
        except Undecodable as e:
            return e

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
            self._pool = None
