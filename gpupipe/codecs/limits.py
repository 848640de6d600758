"""What a dataset does with encoded images: how they are turned, and which it refuses. Standard library only, because a
probing process loads it."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["MAX_BYTES", "Limits"]

MAX_BYTES = 2 << 30
"""Bytes of one encoded image: more than the 179 million pixels that Pillow opens take with 8 bytes each and without any
compression. Larger is only what has grown without end, or is full of holes."""


class Limits(NamedTuple):
    """The image options of a dataset.

    >>> Limits(max_pixels=10_000_000)._replace(strict=True)
    Limits(exif=False, max_pixels=10000000, max_bytes=2147483648, strict=True)
    """

    exif: bool = False
    """Turn images upright by their EXIF orientation. torchvision does not, so the default does not either."""
    max_pixels: int | None = None
    """Encoded images with more pixels are not decoded; ``None`` if Pillow's own limit is all."""
    max_bytes: int = MAX_BYTES
    """Encoded images with more bytes are not read."""
    strict: bool = False
    """Refuse JPEG files that libjpeg repairs, as bad samples of kind ``damaged``."""
