"""Options of a dataset for encoded images: orientation, and which images to reject.

Standard library only, because a probing process loads it.
"""

from __future__ import annotations

from typing import NamedTuple

MAX_BYTES = 2 << 30
"""Maximum number of bytes of one encoded image.

It exceeds the 179 million pixels that Pillow opens at 8 bytes each without compression. Only files that grew without
end, or sparse files, are larger.
"""


class Limits(NamedTuple):
    """The image options of a dataset.

    >>> Limits(max_pixels=10_000_000)
    Limits(exif=False, max_pixels=10000000, max_bytes=2147483648)
    """

    exif: bool = False
    """Turn images upright by their EXIF orientation. torchvision does not, so the default does not either."""
    max_pixels: int | None = None
    """Encoded images with more pixels are not decoded; ``None`` for Pillow's own limit alone."""
    max_bytes: int = MAX_BYTES
    """Encoded images with more bytes are not read."""
