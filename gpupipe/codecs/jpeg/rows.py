"""The sliceable file, and cutting rows out of it.

A sequential JPEG whose restart interval is one row of MCUs. Behind SOI, or behind a JFIF segment that follows it, is a
segment APP9 with numbers in big-endian order:

======= =====================================================================================
bytes
13      ``gpupipe rows`` and a zero
1       version of this layout, 1
1       blocks of 8 pixels that a row of MCUs is high
1       rows above and below that the pixels of a row depend on
1       0
4       where in the file the height is
4 each  where the entropy-coded bytes of each row begin, and where those of the last one end
======= =====================================================================================

So such a file needs no index beside it, and may lie in a folder, a tar file or anything else. A program that moves what
is in it makes the places wrong; they are believed only where markers stand at all of them, and what is not believed is
read as a whole.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import NamedTuple

from ..files import ReadAt
from . import IDENTIFIER
from .markers import APP0, APP9, EOI, SOF0, SOF1, SOS, Frame

__all__ = ["Cut", "Rows", "cut", "read_rows", "segment"]

_VERSION = 1
_FIXED = struct.Struct(f">{len(IDENTIFIER)}sBBBBI")
_FRAMES = (bytes([0xFF, SOF0]), bytes([0xFF, SOF1]))
_FIRST = 4096
"""Bytes that are read first; enough unless a camera's notes come before the pixels."""


class Cut(NamedTuple):
    """Some rows of an image as a file of their own."""

    data: bytes
    top: int
    """The first pixel row of the image that is in it."""
    height: int
    """Pixel rows that are in it."""
    size: tuple[int, int]
    """(height, width) of the whole image."""


def segment(frame: Frame, places: list[int], at: int) -> bytes:
    """The segment APP9 for a file without it, which is put in at byte ``at``; all places lie behind it."""
    size = _FIXED.size + 4 * len(places) + 2
    moved = [place + size + 2 for place in places]
    numbers = _FIXED.pack(IDENTIFIER, _VERSION, frame.v, margin(frame), 0, frame.height_at + size + 2)
    return struct.pack(">BBH", 0xFF, APP9, size) + numbers + struct.pack(f">{len(moved)}I", *moved)


def margin(frame: Frame) -> int:
    """Rows of MCUs above and below that the pixels of a row depend on.

    A decoder that smooths between chroma samples (libjpeg's *fancy upsampling*) looks one of them up and down.
    """
    return int(len(frame.components) > 1 and any(c.v < frame.v for c in frame.components))


@dataclass(frozen=True)
class Rows:
    """What the beginning of a sliceable file says."""

    head: bytes
    """All before the entropy-coded bytes, without the segment."""
    height_at: int
    """In ``head``."""
    height: int
    width: int
    row: int
    """Pixels of a row of MCUs."""
    margin: int
    places: tuple[int, ...]
    """Where in the file the entropy-coded bytes of each row begin, and where those of the last one end."""

    def range(self, top: int, bottom: int) -> tuple[int, int]:
        """The rows of MCUs [first, last) that the pixel rows [top, bottom) depend on."""
        last = -(-bottom // self.row) + self.margin
        return max(top // self.row - self.margin, 0), min(last, len(self.places) - 1)


def read_rows(read: ReadAt) -> Rows | None:
    """What is needed to cut a file; ``None`` if it is not sliceable, or not any more.

    Args:
        read: ``read(n, offset)`` gives bytes of the file, fewer at its end.
    """
    head = read(_FIRST, 0)
    at = 4 + int.from_bytes(head[4:6], "big") if head[2:4] == bytes([0xFF, APP0]) else 2
    if len(head) < at + 4:
        return None
    (marker, size), fixed = struct.unpack_from(">HH", head, at), at + 4
    end = at + 2 + size
    if marker != 0xFF00 | APP9 or size < _FIXED.size + 10 or not head.startswith(IDENTIFIER, fixed):
        return None
    if len(head) < end:
        head += read(end + _FIRST - len(head), len(head))
    if len(head) < end:
        return None
    _, version, v, margin, _, height_at = _FIXED.unpack_from(head, fixed)
    places = struct.unpack_from(f">{(end - fixed - _FIXED.size) // 4}I", head, fixed + _FIXED.size)
    start = places[0]
    if len(head) < start:
        head += read(start - len(head), len(head))
    # What was there when the file was made is still at its place: the frame, and the scan's header up to the bits.
    if version != _VERSION or not end < height_at < start - 10 or len(head) < start:
        return None
    height, width, components = struct.unpack_from(">HHB", head, height_at)
    scan = start - 8 - 2 * components
    if head[height_at - 5 : height_at - 3] not in _FRAMES or head[scan : scan + 2] != bytes([0xFF, SOS]):
        return None
    if not v or -(-height // (8 * v)) != len(places) - 1:
        return None
    return Rows(head[:at] + head[end:start], height_at - (end - at), height, width, 8 * v, margin, places)


def cut(read: ReadAt, top: int, bottom: int) -> Cut | None:
    """The pixel rows [top, bottom) of a sliceable file, and some around them, as a file of their own.

    Those pixels are as in the whole file, bit by bit, for every decoder that looks no further than one chroma sample.

    Args:
        read: ``read(n, offset)`` gives bytes of the file, fewer at its end.

    Returns ``None`` if the file is not sliceable, or was changed since it was made so.
    """
    found = read_rows(read)
    if found is None or not 0 <= top < bottom <= found.height:
        return None
    first, last = found.range(top, bottom)
    places, whole = found.places, last == len(found.places) - 1
    start, size = places[first], places[last] - places[first] + 2 * whole
    body = bytearray(read(size, start) if size > 0 else b"")
    if len(body) != size:
        return None
    # A marker stands behind each row: RST0 to RST7 in turn, and EOI behind the last one of the file.
    for row in range(first, last):
        mark = places[row + 1] - start - 2 * (row + 1 < len(places) - 1)
        if not 0 <= mark < size - 1 or body[mark] != 0xFF:
            return None
        if body[mark + 1] != (EOI if row == len(places) - 2 else 0xD0 + row % 8):
            return None
        body[mark + 1] = EOI if row == last - 1 else 0xD0 + (row - first) % 8
    height = min(last * found.row, found.height) - first * found.row
    head, at = found.head, found.height_at
    data = b"".join((head[:at], height.to_bytes(2, "big"), head[at + 2 :], body))
    return Cut(data, first * found.row, height, (found.height, found.width))
