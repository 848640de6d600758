"""Decoding of images with Pillow, from a path, from bytes or from an array. The functions depend on nothing else."""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
from PIL import Image

from .files import Place, Undecodable, read_place, refuse_large
from .limits import Limits
from .pillow import guarded, header, open_image, orientation_of, quiet, upright

T = TypeVar("T")
Pixels = npt.NDArray[np.uint8]
Media = str | bytes | Pixels
"""Input of a decoder: the path of a file, its bytes, or pixels u8[H, W, C] (C = 1 or 3)."""


def decode(media: Media, limits: Limits = Limits()) -> Pixels:
    """Decode one image to pixels u8[H, W, 3], RGB.

    Args:
        media: path of a file, encoded bytes, or pixels u8[H, W, C] with C = 1 (repeated) or 3. Pixels have neither
            orientation nor limits.
        limits: whether to apply the orientation, and which images to reject before any memory is allocated for them.

    Raises:
        Undecodable: ``kind`` is ``missing``, ``empty``, ``unreadable``, ``truncated``, ``undecodable``, ``zero-sized``
            or ``bomb``.
    """
    image = open_rgb(media, limits)
    return image if isinstance(image, np.ndarray) else np.asarray(image)


def open_rgb(media: Media, limits: Limits = Limits()) -> Pixels | Image.Image:
    """Decode like :func:`decode`, but return encoded images as PIL images, so that a crop or resize needs no
    conversion."""
    if isinstance(media, np.ndarray):
        return as_rgb(media)

    return _opened(media, lambda image: _rgb(image, limits.exif), limits)


class Smaller(NamedTuple):
    """An image that was decoded at a smaller size."""

    image: Image.Image
    """RGB image, upright if requested. Each side is 1/2, 1/4 or 1/8 of the full one, rounded up."""
    size: tuple[int, int]
    """(height, width) of the whole image, upright if requested."""
    top: float
    """Vertical offset of the whole image in ``image``, in pixels of ``image``. Below 1.

    The pixels that libjpeg added by rounding up follow the last stored row and column, which come first if the image
    was turned.
    """
    left: float


def open_smaller(media: str | bytes, factor: int, limits: Limits = Limits()) -> Smaller:
    """Decode a JPEG at 1/``factor``, which is 2, 4 or 8: libjpeg computes fewer pixels from each 8x8 block.

    Pixel (y, x) of the result covers the pixels from ``factor * y`` and ``factor * x`` on.

    Raises :class:`Undecodable` as :func:`open_rgb` does, with kind ``changed`` if the image is not a JPEG.
    """

    def pixels(image: Image.Image) -> Smaller:
        width, height = image.size
        # draft() keeps both sides at least this large, so round it down.
        image.draft(None, (max(width // factor, 1), max(height // factor, 1)))
        # draft() does nothing to images other than JPEGs, so they keep their size.
        if image.size != (-(-width // factor), -(-height // factor)):
            raise Undecodable("changed", f"the index says that it is a JPEG, but it is {image.format}")
        turn = orientation_of(image) if limits.exif else 1
        if turn >= 5:
            height, width = width, height
        if image.mode == "RGB" and turn == 1:
            image.load()  # convert() would make a copy
        else:
            image = _rgb(image, limits.exif)
        return Smaller(image, (height, width), *smaller_origin((height, width), factor, turn))

    return _opened(media, pixels, limits)


def smaller_origin(size: tuple[int, int], factor: int, turn: int) -> tuple[float, float]:
    """Return ``top`` and ``left`` of :class:`Smaller` for an upright image of ``size`` that was turned by EXIF
    orientation ``turn``."""
    # libjpeg rounds up, which adds -side % factor pixels of the full size after the last row and column.
    top, left = (-side % factor / factor for side in size)
    # These orientations bring the last rows of the stored image to the top or left, and with them what was added.
    return top * (turn in (3, 4, 7, 8)), left * (turn in (2, 3, 6, 7))


def _rgb(image: Image.Image, exif: bool) -> Image.Image:
    return (upright(image) if exif else image).convert("RGB")


def _opened(media: str | bytes, decode: Callable[[Image.Image], T], limits: Limits) -> T:
    """Open an image, read its header, and call ``decode`` with it."""
    encoded = media if isinstance(media, bytes) else read_place(Place(os.fsencode(media), max_bytes=limits.max_bytes))
    refuse_large(len(encoded), limits.max_bytes)
    if not encoded:
        raise Undecodable("empty", "0 bytes")

    def opened() -> T:
        image = open_image(io.BytesIO(encoded), limits.max_pixels)
        try:
            return decode(image)
        except Undecodable:
            raise
        except Exception:
            # To classify the failure: a file whose end is missing is truncated, whatever Pillow reported.
            header(open_image(io.BytesIO(encoded)), lambda n, at: encoded[at : at + n], len(encoded))
            raise

    with quiet():
        return guarded(opened)


def as_rgb(pixels: npt.NDArray[Any]) -> Pixels:
    """Convert u8[H, W], u8[H, W, 1] or u8[H, W, 3] to u8[H, W, 3]. Raises :class:`Undecodable` for anything else."""
    if pixels.dtype != np.uint8 or pixels.ndim not in (2, 3) or 0 in pixels.shape:
        raise Undecodable("undecodable", f"pixels must be uint8[H, W, 1 or 3], not {pixels.dtype}{list(pixels.shape)}")
    if pixels.ndim == 2:
        pixels = pixels[:, :, None]
    if pixels.shape[2] not in (1, 3):
        raise Undecodable("undecodable", f"pixels must be uint8[H, W, 1 or 3], not uint8{list(pixels.shape)}")
    return np.repeat(pixels, 3, axis=2) if pixels.shape[2] == 1 else pixels
