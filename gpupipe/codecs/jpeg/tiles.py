"""The sliceable JPEG format, and cutting a window out of such a file.

A sliceable file is a sequential JPEG whose restart intervals are *tiles*: equal parts of a row of MCUs, or whole rows
if a row cannot be divided. A segment APP9 holds the tile index. It comes after SOI, or after the JFIF or EXIF segment
that must follow SOI. Its numbers are big-endian:

======= ============================================================================
bytes   content
======= ============================================================================
14      ``gpupipe tiles`` and a zero
1       version of this layout, 1
1, 1    width and height of an MCU, in blocks of 8 pixels
1, 1    width and height that one sample of the coarsest component covers, in pixels
1       size of a tile length below: 2 or 4 bytes
2       width of a tile, in MCUs
4       offset of the image height in the file
4       offset of the first tile in the file
2 or 4  length in bytes of each tile with the marker after it, row by row
======= ============================================================================

The file needs no other index, so it may lie in a folder, a tar file or any other container. A program that rewrites
the file can make the offsets wrong. They are trusted only if every marker that is needed stands where the index says;
otherwise the whole file is read.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ..files import ReadAt
from . import IDENTIFIER

I64 = npt.NDArray[np.int64]

SOF0, SOF1, EOI, SOS = 0xC0, 0xC1, 0xD9, 0xDA
APP0, APP1, APP9 = 0xE0, 0xE1, 0xE9
VERSION = 1
HEADER = struct.Struct(f">{len(IDENTIFIER)}sBBBBBBHII")
_FRAMES = (bytes([0xFF, SOF0]), bytes([0xFF, SOF1]))
_FIRST_SEGMENTS = (bytes([0xFF, APP0]), bytes([0xFF, APP1]))
MAX_SEGMENT = 65535
"""Bytes of a segment, including its length but not its marker."""
_MARKS = (0xD0 + (np.arange(MAX_SEGMENT) & 7)).astype(np.uint8)
"""The codes of RST0 to RST7 in turn, for more tiles than an index can hold."""
_FIRST = 4096
"""Bytes of the first read. They suffice unless metadata comes before the pixels."""


class Cut(NamedTuple):
    """The tiles under a window as a JPEG file."""

    data: bytes
    top: int
    """First pixel row of the image that the file contains."""
    left: int
    """First pixel column of the image that the file contains."""
    height: int
    """Pixel rows of the file."""
    width: int
    """Pixel columns of the file."""
    size: tuple[int, int]
    """(height, width) of the whole image, in pixels."""


class Tiles(NamedTuple):
    """The head of a sliceable file. Pairs are (height, width)."""

    head: bytes
    """The bytes before the first tile, without the tile index."""
    height_at: int
    """Offset of the image height in ``head``; the width follows it."""
    size: tuple[int, int]
    """Size of the image, in pixels."""
    tile: tuple[int, int]
    """Size of a tile, in pixels."""
    coarse: tuple[int, int]
    """Pixels that one sample of the coarsest component covers."""
    starts: I64
    """i64[N + 1]: offset of each tile in the file, row by row, and the end of the marker after the last one."""

    @property
    def across(self) -> int:
        """Tiles per row."""
        return -(-self.size[1] // self.tile[1])

    def range(self, axis: int, first: int, last: int) -> tuple[int, int]:
        """The tiles [first, last) that the pixels [first, last) of an axis depend on.

        A decoder that interpolates chroma (libjpeg's *fancy upsampling*) also reads one sample on each side.
        """
        tile, coarse, size = self.tile[axis], self.coarse[axis], self.size[axis]
        if coarse > 1:
            # In pixels again: the samples under the first and the last pixel, and one more on either side.
            first, last = (first // coarse - 1) * coarse, ((last - 1) // coarse + 2) * coarse
        return max(first, 0) // tile, -(-min(last, size) // tile)


def read_tiles(read: ReadAt, size: int) -> Tiles | None:
    """Read the head of a file; ``None`` if the file is not sliceable or was changed.

    Args:
        read: ``read(n, offset)`` returns bytes of the file, fewer at its end.
        size: size of the file in bytes. Nothing beyond it is read, whatever the file says.
    """
    head = read(min(_FIRST, size), 0)
    at = 4 + int.from_bytes(head[4:6], "big") if head[2:4] in _FIRST_SEGMENTS else 2
    # Long metadata before the index, a long index, and metadata behind it each need a further read.
    if len(head) < at + HEADER.size:
        head += read(min(at + _FIRST, size) - len(head), len(head))
    if len(head) < at + 4:
        return None
    (marker, length), fixed = struct.unpack_from(">HH", head, at), at + 4
    end = at + 2 + length
    if marker != 0xFF00 | APP9 or length < HEADER.size + 4 or not head.startswith(IDENTIFIER, fixed):
        return None
    if len(head) < end:
        head += read(min(end + _FIRST, size) - len(head), len(head))
    if len(head) < end:
        return None
    _, version, h, v, right, down, width_of, mcus, height_at, start = HEADER.unpack_from(head, fixed)
    if len(head) < start <= size:
        head += read(start - len(head), len(head))
    # The frame and the scan header must still be where they were when the index was written.
    if version != VERSION or not end < height_at < start - 10 or len(head) < start:
        return None
    height, width, components = struct.unpack_from(">HHB", head, height_at)
    # A scan header has 8 bytes and 2 for each component, so at least 10.
    scan = start - 8 - 2 * components
    # Before the height come the marker (2 bytes), the length (2) and the precision (1).
    if head[height_at - 5 : height_at - 3] not in _FRAMES or head[scan : scan + 2] != bytes([0xFF, SOS]):
        return None
    if width_of not in (2, 4) or not (h and v and mcus and right and down) or (length - 2 - HEADER.size) % width_of:
        return None
    lengths = np.frombuffer(head[fixed + HEADER.size : end], f">u{width_of}")
    tile = (8 * v, 8 * h * mcus)
    if len(lengths) != -(-height // tile[0]) * -(-width // tile[1]):
        return None
    starts = np.empty(len(lengths) + 1, np.int64)
    starts[0], starts[1:] = start, lengths
    np.cumsum(starts, out=starts)
    if starts[-1] > size:
        return None
    plain = head[:at] + head[end:start]
    return Tiles(plain, height_at - (end - at), (height, width), tile, (down, right), starts)


def cut(read: ReadAt, size: int, box: Sequence[int]) -> Cut | None:
    """Cut the tiles under a window out of a sliceable file.

    The pixels of the window are equal to those of the whole file in every decoder that interpolates chroma from
    neighboring samples only.

    Args:
        read: ``read(n, offset)`` returns bytes of the file, fewer at its end.
        size: size of the file in bytes. Nothing beyond it is read, whatever the file says.
        box: top, left, bottom and right of the window, in pixels.

    Returns:
        ``None`` if the file is not sliceable or was changed after it was made.
    """
    found, (top, left, bottom, right) = read_tiles(read, size), box
    # A window that does not fit comes from an index of another image.
    if found is None or not (0 <= top < bottom <= found.size[0] and 0 <= left < right <= found.size[1]):
        return None
    (first, last), (west, east) = found.range(0, top, bottom), found.range(1, left, right)
    count, starts = found.across, found.starts
    start, end = int(starts[first * count + west]), int(starts[(last - 1) * count + east])
    body = bytearray(read(end - start, start))
    if len(body) != end - start:
        return None
    # After each tile comes a marker: RST0 to RST7 in turn, and EOI after the last tile of the file.
    row_by_row = slice(first * count + 1, last * count + 1)
    codes = starts[row_by_row].reshape(-1, count)[:, west:east] - (start + 1)  # where in the body each marker ends
    marks = _MARKS[first * count : last * count].reshape(-1, count)[:, west:east]
    if end == starts[-1]:
        # The slice is a view of the table that all cuts share.
        marks = marks.copy()
        marks[-1, -1] = EOI
    view = np.frombuffer(body, np.uint8)
    # If the first tile had no room for its marker, -1 would look at the end of the body.
    if codes[0, 0] < 1 or (view[codes] != marks).any() or (view[codes - 1] != 0xFF).any():
        return None
    # The cut is a file of its own: decoders count restarts from 0 and expect EOI at the end.
    view[codes] = _MARKS[: codes.size].reshape(codes.shape)
    view[-1] = EOI
    parts: list[bytearray | memoryview] = [body]
    # Between two rows of the window lie tiles beside it.
    if east - west < count:
        whole, begins = memoryview(body), starts[first * count + west : last * count : count] - start
        parts = [whole[a:b] for a, b in zip(begins.tolist(), (codes[:, -1] + 1).tolist(), strict=True)]
    down, across = found.tile
    # The image may end inside the last row and column of tiles.
    height = min(last * down, found.size[0]) - first * down
    width = min(east * across, found.size[1]) - west * across
    head, at = found.head, found.height_at
    data = b"".join((head[:at], struct.pack(">HH", height, width), head[at + 4 :], *parts))
    return Cut(data, first * down, west * across, height, width, found.size)
