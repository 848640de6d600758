"""Encoded images to pixels with Pillow: functions of a path, of bytes or of an array, and of nothing else."""

from __future__ import annotations

import errno
import io
import logging
import os
import time
import warnings
from collections.abc import Callable
from typing import IO, Any, TypeVar

import numpy as np
import numpy.typing as npt
from PIL import Image, ImageOps, UnidentifiedImageError

from ...datasets.base import Media

__all__ = ["Pixels", "Undecodable", "as_rgb", "decode", "open_rgb", "peek_size", "read"]

Pixels = npt.NDArray[np.uint8]
T = TypeVar("T")

log = logging.getLogger("gpupipe")

_TRANSIENT = {errno.EIO, errno.ESTALE, errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.EINTR, errno.ETIMEDOUT}
"""What network file systems and busy machines answer once and not again."""
_WAITS = (0.05, 0.2, 0.8)
"""Seconds before each further attempt."""
_ORIENTATION = 0x0112
"""The EXIF tag; its values 5 to 8 turn the image by a quarter."""


class Undecodable(Exception):
    """A sample has no pixels. ``kind`` and ``reason`` are those of :class:`gpupipe.errors.BadSample`."""

    def __init__(self, kind: str, reason: str):
        super().__init__(kind, reason)
        self.kind = kind
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.kind}: {self.reason}"


def decode(media: Media, *, exif: bool = False) -> Pixels:
    """The pixels of one image: u8[H, W, 3], RGB.

    Args:
        media: path of a file, encoded bytes, or pixels u8[H, W, C] with C = 1 (repeated) or 3.
        exif: turn the image upright by its EXIF orientation. Arrays have none.

    Raises:
        Undecodable: ``kind`` is ``missing``, ``empty``, ``unreadable``, ``truncated``, ``undecodable`` or ``bomb``.
    """
    image = open_rgb(media, exif=exif)
    return image if isinstance(image, np.ndarray) else np.asarray(image)


def open_rgb(media: Media, *, exif: bool = False) -> Pixels | Image.Image:
    """As :func:`decode`, but what was encoded stays a PIL image, so that a crop or a resize needs no conversion."""
    if isinstance(media, np.ndarray):
        return as_rgb(media)
    encoded = media if isinstance(media, bytes) else read(media)
    if not encoded:
        raise Undecodable("empty", "0 bytes")

    def pixels() -> Image.Image:
        image: Image.Image = Image.open(io.BytesIO(encoded))
        if exif:
            image = ImageOps.exif_transpose(image)
        return image.convert("RGB")

    return _guarded(pixels)


def peek_size(media: Media, exif: bool = False) -> tuple[int, int]:
    """(height, width) in pixels as :func:`decode` would give them, from the header alone.

    Raises :class:`Undecodable` as :func:`decode` does; a file that is cut off after its header passes.
    """
    if isinstance(media, np.ndarray):
        height, width = as_rgb(media).shape[:2]
        return height, width

    def size(source: IO[bytes]) -> tuple[int, int]:
        if not source.read(1):
            raise Undecodable("empty", "0 bytes")
        source.seek(0)
        with Image.open(source) as image:
            width, height = image.size
            turned = exif and image.getexif().get(_ORIENTATION) in (5, 6, 7, 8)
        return (width, height) if turned else (height, width)

    if isinstance(media, bytes):
        return _guarded(lambda: size(io.BytesIO(media)))
    return _attempts(media, lambda file: _guarded(lambda: size(file), reading=True))


def read(path: str | os.PathLike[str]) -> bytes:
    """All bytes of a file. Errors that pass by themselves are tried again three times, and logged.

    Raises :class:`Undecodable` of kind ``missing`` or ``unreadable``.
    """
    return _attempts(path, lambda file: file.read())


def as_rgb(pixels: npt.NDArray[Any]) -> Pixels:
    """u8[H, W, 3] of u8[H, W], u8[H, W, 1] or u8[H, W, 3]. Raises :class:`Undecodable` for anything else."""
    if pixels.dtype != np.uint8 or pixels.ndim not in (2, 3) or 0 in pixels.shape:
        raise Undecodable("undecodable", f"pixels must be uint8[H, W, 1 or 3], not {pixels.dtype}{list(pixels.shape)}")
    if pixels.ndim == 2:
        pixels = pixels[:, :, None]
    if pixels.shape[2] not in (1, 3):
        raise Undecodable("undecodable", f"pixels must be uint8[H, W, 1 or 3], not uint8{list(pixels.shape)}")
    return np.repeat(pixels, 3, axis=2) if pixels.shape[2] == 1 else pixels


def _attempts(path: str | os.PathLike[str], use: Callable[[IO[bytes]], T]) -> T:
    for wait in (*_WAITS, None):
        try:
            with open(path, "rb") as file:
                return use(file)
        except OSError as e:
            if wait is None or e.errno not in _TRANSIENT:
                kind = "missing" if e.errno in (errno.ENOENT, errno.ENOTDIR) else "unreadable"
                raise Undecodable(kind, e.strerror or str(e)) from None
            log.warning("%s: %s; reading it again in %g s", os.fspath(path), e.strerror, wait)
            time.sleep(wait)
    raise AssertionError


def _guarded(work: Callable[[], T], *, reading: bool = False) -> T:
    """Pillow's many errors as one, and none of its warnings: a training log is no place for remarks on EXIF.

    ``reading``: the operating system's errors pass through, so that :func:`_attempts` sees them.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return work()
    except (MemoryError, Undecodable):
        raise  # the first is the machine's trouble, not the sample's
    except Image.DecompressionBombError as e:
        raise Undecodable("bomb", str(e)) from None
    except UnidentifiedImageError:
        raise Undecodable("undecodable", "not an image in any format that Pillow reads") from None
    except Exception as e:  # OSError, SyntaxError, ValueError, struct.error, ...: each plugin has its own
        if reading and isinstance(e, OSError) and e.errno is not None:
            raise
        kind = "truncated" if isinstance(e, EOFError) or "truncated" in str(e).lower() else "undecodable"
        reason = str(e) if isinstance(e, OSError) else f"{type(e).__name__}: {e}"
        raise Undecodable(kind, reason) from None
