"""The sliceable file, and cutting a window out of it.

A sequential JPEG whose restart intervals are *tiles*: equal parts of a row of MCUs, or whole rows if their number of
MCUs is prime. Behind SOI, or behind a JFIF or EXIF segment that has to follow it, is a segment APP9 with numbers in
big-endian order:

======= =====================================================================================
bytes
14      ``gpupipe tiles`` and a zero
1       version of this layout, 1
1, 1    blocks of 8 pixels that an MCU is wide, and high
1, 1    pixels that one sample of the coarsest component is wide, and high
1       bytes of a length below, 2 or 4
2       MCUs of a tile
4       where in the file the height is
4       where in the file the first tile begins
2 or 4  for each tile, row by row: its bytes, with the marker behind it
======= =====================================================================================

So such a file needs no index beside it, and may lie in a folder, a tar file or anything else. A program that moves what
is in it makes the places wrong; they are believed only if markers stand at all of them that are used, and what is not
believed is read as a whole.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ..files import ReadAt
from . import IDENTIFIER
from .markers import APP0, APP1, APP9, EOI, SOF0, SOF1, SOS, Frame, Unsliceable

__all__ = ["Cut", "Tiles", "cut", "read_tiles", "segment", "tile_of"]

I64 = npt.NDArray[np.int64]

_VERSION = 1
_FIXED = struct.Struct(f">{len(IDENTIFIER)}sBBBBBBHII")
_FRAMES = (bytes([0xFF, SOF0]), bytes([0xFF, SOF1]))
_FIRST_SEGMENTS = (bytes([0xFF, APP0]), bytes([0xFF, APP1]))
_LARGEST = 65533
"""Bytes of a segment's content."""
_MARKS = (0xD0 + (np.arange(_LARGEST) & 7)).astype(np.uint8)
"""The codes of RST0 to RST7 in turn, more than there are tiles in a file."""
_FIRST = 4096
"""Bytes that are read first; enough unless a camera's notes come before the pixels."""
_NARROW, _ACROSS = 48, 16
"""Pixels that a tile has across, at least; and tiles of a row, at most. Each costs some five bytes."""


class Cut(NamedTuple):
    """A window of an image, and what lies around it, as a file of its own."""

    data: bytes
    top: int
    """The first pixel row of the image that is in it."""
    left: int
    """The first pixel column."""
    height: int
    """Pixels that are in it."""
    width: int
    size: tuple[int, int]
    """(height, width) of the whole image."""


def tile_of(frame: Frame) -> int:
    """MCUs of a tile: as few as are worth it, and a divisor of a row, because a restart interval may not end there."""
    columns, wanted = frame.mcus[1], max(_NARROW, frame.width / _ACROSS)
    return next(k for k in range(1, columns + 1) if not columns % k and (8 * frame.h * k >= wanted or k == columns))


def segment(frame: Frame, places: Sequence[int], at: int) -> bytes:
    """The segment APP9 for a file without it, which is put in at byte ``at``.

    Args:
        places: where the tiles begin in that file, all behind ``at``, and where the bits of the last one end.

    Raises :class:`Unsliceable` if there are so many tiles that their lengths do not fit.
    """
    lengths = np.diff(places)
    lengths[-1] += 2
    dtype = ">u4" if lengths.max() > 0xFFFF else ">u2"
    table = lengths.astype(dtype).tobytes()
    size = _FIXED.size + len(table) + 2
    if size > _LARGEST:
        raise Unsliceable("large", f"it has {len(lengths)} tiles, and a segment holds the lengths of fewer")
    parts = frame.components if len(frame.components) > 1 else ()
    coarse = (-(-frame.h // min((c.h for c in parts), default=1)), -(-frame.v // min((c.v for c in parts), default=1)))
    moved = (frame.height_at + size + 2, places[0] + size + 2)
    fixed = _FIXED.pack(IDENTIFIER, _VERSION, frame.h, frame.v, *coarse, int(dtype[-1]), tile_of(frame), *moved)
    return struct.pack(">BBH", 0xFF, APP9, size) + fixed + table


class Tiles(NamedTuple):
    """What the beginning of a sliceable file says. Pairs are (down, across)."""

    head: bytes
    """All before the first tile, without the segment."""
    height_at: int
    """In ``head``; the width follows it."""
    size: tuple[int, int]
    """Pixels of the image."""
    tile: tuple[int, int]
    """Pixels of a tile."""
    coarse: tuple[int, int]
    """Pixels of one sample of the coarsest component."""
    starts: I64
    """i64[N + 1]: where in the file each tile begins, row by row, and the end of the last one's marker."""

    @property
    def across(self) -> int:
        """Tiles of a row."""
        return -(-self.size[1] // self.tile[1])

    def range(self, axis: int, first: int, last: int) -> tuple[int, int]:
        """The tiles [first, last) that the pixels [first, last) depend on, down or across.

        A decoder that smooths between chroma samples (libjpeg's *fancy upsampling*) looks at the next one on each side.
        """
        tile, coarse, size = self.tile[axis], self.coarse[axis], self.size[axis]
        if coarse > 1:
            first, last = (first // coarse - 1) * coarse, ((last - 1) // coarse + 2) * coarse
        return max(first, 0) // tile, -(-min(last, size) // tile)


def read_tiles(read: ReadAt, size: int) -> Tiles | None:
    """What is needed to cut a file; ``None`` if it is not sliceable, or not any more.

    Args:
        read: ``read(n, offset)`` gives bytes of the file, fewer at its end.
        size: of the file, in bytes; nothing behind it is asked for, whatever the file says.
    """
    head = read(min(_FIRST, size), 0)
    at = 4 + int.from_bytes(head[4:6], "big") if head[2:4] in _FIRST_SEGMENTS else 2
    if len(head) < at + _FIXED.size:
        head += read(min(at + _FIRST, size) - len(head), len(head))
    if len(head) < at + 4:
        return None
    (marker, length), fixed = struct.unpack_from(">HH", head, at), at + 4
    end = at + 2 + length
    if marker != 0xFF00 | APP9 or length < _FIXED.size + 4 or not head.startswith(IDENTIFIER, fixed):
        return None
    if len(head) < end:
        head += read(min(end + _FIRST, size) - len(head), len(head))
    if len(head) < end:
        return None
    _, version, h, v, right, down, width_of, mcus, height_at, start = _FIXED.unpack_from(head, fixed)
    if len(head) < start <= size:
        head += read(start - len(head), len(head))
    # What was there when the file was made is still at its place: the frame, and the scan's header up to the bits.
    if version != _VERSION or not end < height_at < start - 10 or len(head) < start:
        return None
    height, width, components = struct.unpack_from(">HHB", head, height_at)
    scan = start - 8 - 2 * components
    if head[height_at - 5 : height_at - 3] not in _FRAMES or head[scan : scan + 2] != bytes([0xFF, SOS]):
        return None
    if width_of not in (2, 4) or not (h and v and mcus and right and down) or (length - 2 - _FIXED.size) % width_of:
        return None
    lengths = np.frombuffer(head[fixed + _FIXED.size : end], f">u{width_of}")
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
    """A window of a sliceable file, and some pixels around it, as a file of its own.

    Those pixels are as in the whole file, bit by bit, for every decoder that looks no further than one chroma sample.

    Args:
        read: ``read(n, offset)`` gives bytes of the file, fewer at its end.
        size: of the file, in bytes; nothing behind it is asked for, whatever the file says.
        box: top, left, bottom and right of the window, in pixels.

    Returns ``None`` if the file is not sliceable, or was changed since it was made so.
    """
    found, (top, left, bottom, right) = read_tiles(read, size), box
    if found is None or not (0 <= top < bottom <= found.size[0] and 0 <= left < right <= found.size[1]):
        return None
    (first, last), (west, east) = found.range(0, top, bottom), found.range(1, left, right)
    count, starts = found.across, found.starts
    start, end = int(starts[first * count + west]), int(starts[(last - 1) * count + east])
    body = bytearray(read(end - start, start))
    if len(body) != end - start:
        return None
    # A marker stands behind each tile: RST0 to RST7 in turn, and EOI behind the last one of the file.
    row_by_row = slice(first * count + 1, last * count + 1)
    codes = starts[row_by_row].reshape(-1, count)[:, west:east] - (start + 1)  # where in the body each marker ends
    marks = _MARKS[first * count : last * count].reshape(-1, count)[:, west:east]
    if end == starts[-1]:
        marks = marks.copy()
        marks[-1, -1] = EOI
    view = np.frombuffer(body, np.uint8)
    if codes[0, 0] < 1 or (view[codes] != marks).any() or (view[codes - 1] != 0xFF).any():
        return None
    view[codes] = _MARKS[: codes.size].reshape(codes.shape)
    view[-1] = EOI
    parts: list[bytearray | memoryview] = [body]
    if east - west < count:
        whole, begins = memoryview(body), starts[first * count + west : last * count : count] - start
        parts = [whole[a:b] for a, b in zip(begins.tolist(), (codes[:, -1] + 1).tolist(), strict=True)]
    down, across = found.tile
    height = min(last * down, found.size[0]) - first * down
    width = min(east * across, found.size[1]) - west * across
    head, at = found.head, found.height_at
    data = b"".join((head[:at], struct.pack(">HH", height, width), head[at + 4 :], *parts))
    return Cut(data, first * down, west * across, height, width, found.size)
