"""Checks whether an image file is complete by reading a few bytes at its end instead of all pixels.

A file that passes may still be damaged inside. One that fails is only *suspect*: cameras append data after the end, and
some programs omit the end mark. Only decoding tells.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import IO, Any

from PIL import Image

from .files import ReadAt
from .jpeg_structure import walk

_NEAR = 64
_FAR = 65_536
_HEADERS = 16 << 20
"""Maximum number of bytes searched for the pixels of a JPEG."""
_SCANS = 256 << 20
"""Maximum number of bytes of a progressive JPEG that are checked. Longer ones are treated as odd."""
_BOXES = 256
_RAW_BITS = {"1": 1, "1;I": 1, "L": 8, "RGB": 24}
_MODES = {"1", "L", "LA", "P", "PA", "RGB", "RGBA", "CMYK", "YCbCr", "I;16"}
"""Modes that Pillow certainly converts to RGB. Others are tried."""


def tail(image: Image.Image, read: ReadAt, size: int) -> str:
    """Check the end of a file.

    Returns an empty text if it is as expected, ``"suspect"`` if not, ``"unchecked"`` if the format or its mode is
    unknown, and for a JPEG the oddity of its structure; see :data:`gpupipe.codecs.jpeg_structure.ODD`.
    """
    check = _CHECKS.get(image.format or "")
    if check is None or image.mode not in _MODES:
        return "unchecked"
    return check(image, read, size)


def cut_short(source: IO[bytes]) -> str | None:
    """Describe how much a file that Pillow does not recognize lacks, from the length that it declares; otherwise
    ``None``.

    Pillow reads a WebP, or the directory of a TIFF, as a whole or not at all.
    """
    source.seek(0)
    head = source.read(12)
    size = source.seek(0, 2)
    needed = 0
    if head[:4] == b"RIFF" and head[8:] == b"WEBP":
        # RIFF counts the bytes after its own eight.
        needed = 8 + int.from_bytes(head[4:8], "little")
    elif head[:4] in (b"II*\0", b"MM\0*"):
        # The directory of a TIFF begins with two bytes that count its entries.
        needed = 2 + int.from_bytes(head[4:8], "little" if head[:1] == b"I" else "big")
    return f"the file has {size} bytes, but needs {needed}" if needed > size else None


def _ends(read: ReadAt, size: int, mark: bytes, start: int = 0) -> bool:
    """Return whether ``mark`` ends the file, apart from zeros.

    If data were appended, the mark may be anywhere in the last part after ``start``.
    """
    near = read(_NEAR, size - _NEAR if size > _NEAR else 0)
    if near.endswith(mark) or near.rstrip(b"\0").endswith(mark):
        return True
    at = max(size - _FAR, start, 0)
    return mark in read(_FAR, at)


def _jpeg(image: Image.Image, read: ReadAt, size: int) -> str:
    # Pillow has just read up to the start of the pixels, except for MPO, where it went back.
    opened: Any = image
    file = opened.fp
    start = file.tell()

    def recent(n: int, at: int) -> bytes:
        if at + n > start:
            return read(n, at)
        file.seek(at)
        found: bytes = file.read(n)  # from its buffer
        return found

    return jpeg(recent, size, image.height, image.width, start or _FAR)


def jpeg(read: ReadAt, size: int, height: int, width: int, likely: int) -> str:
    """Check a JPEG file of a known size in pixels; see :func:`tail`.

    Args:
        likely: number of bytes that probably contain the head of the first scan.
    """
    head = read(likely, 0)
    scan, odd, progressive = walk(head, height, width)
    while not scan and len(head) < min(size, _HEADERS):  # much data before its pixels
        head += read(_FAR, len(head))
        scan, odd, progressive = walk(head, height, width)
    if progressive and not odd:
        odd = walk(read(min(size, _SCANS), 0), height, width, whole=True).odd
    # After the head of a scan, 0xFF is followed by 0 or a restart. So the end mark of a thumbnail comes before it.
    if scan and (read(2, size - 2) == b"\xff\xd9" or _ends(read, size, b"\xff\xd9", scan)):
        return odd
    return "suspect"


def _marked(mark: bytes) -> Callable[[Image.Image, ReadAt, int], str]:
    """Return a check whether ``mark`` ends the file."""
    return lambda image, read, size: "" if _ends(read, size, mark) else "suspect"


def _gif(image: Image.Image, read: ReadAt, size: int) -> str:
    near = read(_NEAR, size - _NEAR if size > _NEAR else 0)
    # Zeros close a block, so only one end mark directly at the end counts.
    return "" if near.endswith(b"\0;") else "suspect"


def _webp(image: Image.Image, read: ReadAt, size: int) -> str:
    return ""  # Pillow opens it as a whole or not at all


def _avif(image: Image.Image, read: ReadAt, size: int) -> str:
    return "" if end_of_boxes(read, size) == size else "suspect"


def end_of_boxes(read: ReadAt, size: int) -> int:
    """Return how many bytes a file of ISO boxes (AVIF, MP4, QuickTime) needs; 0 if that is unknown."""
    at = 0
    for _ in range(_BOXES):
        if at >= size:
            break
        head = read(16, at)
        if len(head) < 8:
            # Not even the header of the next box is there.
            return at + 8
        length = int.from_bytes(head[:4], "big")
        # The length is too large for 32 bits and follows in 64.
        if length == 1:
            length = int.from_bytes(head[8:16], "big")
        if length < 8:  # 0: up to the end of the file, wherever that was
            return 0
        at += length
    return at


def _raw(image: Image.Image, read: ReadAt, size: int) -> str:
    """Check uncompressed pixels, whose position and number give their end."""
    tiles: Any = getattr(image, "tile", ())
    if len(tiles) != 1 or tiles[0][0] != "raw":
        return "suspect"
    _, (left, top, right, bottom), offset, args = tiles[0]
    raw, stride = (args[0], args[1]) if isinstance(args, tuple) and len(args) > 1 else (args, 0)
    if not stride:
        if raw not in _RAW_BITS:
            return "suspect"
        # Rows are not padded, except to whole bytes.
        stride = (_RAW_BITS[raw] * (right - left) + 7) // 8
    return "" if offset + stride * (bottom - top) <= size else "suspect"


def _tiff(image: Image.Image, read: ReadAt, size: int) -> str:
    """Check that all strips or tiles of the first page lie in the file."""
    tags: Any = image.tag_v2  # type: ignore[attr-defined]
    # Offsets and lengths of strips, and of tiles.
    for offsets, counts in ((273, 279), (324, 325)):
        places, lengths = tags.get(offsets), tags.get(counts)
        if isinstance(places, tuple) and isinstance(lengths, tuple) and len(places) == len(lengths):
            return "" if all(a + n <= size for a, n in zip(places, lengths, strict=True)) else "suspect"
    return "suspect"


_CHECKS: dict[str, Callable[[Image.Image, ReadAt, int], str]] = {
    "AVIF": _avif,
    "BMP": _raw,
    "GIF": _gif,
    "JPEG": _jpeg,
    "JPEG2000": _marked(b"\xff\xd9"),
    "MPO": _jpeg,
    "PNG": _marked(b"IEND\xaeB`\x82"),
    "PPM": _raw,
    "TIFF": _tiff,
    "WEBP": _webp,
}
