"""Adding a tile index to a JPEG file that has a restart marker after every tile; :mod:`.tiles` describes the format."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from . import IDENTIFIER
from .tiles import APP0, APP1, APP9, EOI, HEADER, MAX_SEGMENT, SOF0, SOF1, SOS, VERSION

_SOI, _APP2 = 0xD8, 0xE2
_FRAMES = {0xC0, 0xC1, 0xC2, 0xC3, *range(0xC5, 0xC8), *range(0xC9, 0xCC), *range(0xCD, 0xD0)}
"""Markers SOF0 to SOF15, which tell the coding process of the image."""
_MIN_TILE_WIDTH = 48
"""Pixels. Every tile costs about five bytes."""
_MAX_TILES_PER_ROW = 16
_RESTART = re.compile(rb"\xff[\xd0-\xd7]")
_AFTER_SCAN = re.compile(rb"\xff[^\x00\xff\xd0-\xd7]")
"""End of the coded data of a scan: a marker that is neither a stuffed 0xFF nor a restart."""


class Unsliceable(Exception):
    """A file that cannot be made sliceable. ``kind`` is a short word, ``reason`` a sentence."""

    def __init__(self, kind: str, reason: str):
        super().__init__(kind, reason)
        self.kind = kind
        self.reason = reason


class _Segment(NamedTuple):
    """A marker and its content, ``data[start:end]``; after SOS, ``end`` is where the coded data begins."""

    marker: int
    start: int
    end: int


class Layout(NamedTuple):
    """Positions and values from the markers of a JPEG file."""

    marker: int
    """Marker of the frame, SOF0 to SOF15."""
    height: int
    width: int
    height_at: int
    """Offset of the two bytes of the height."""
    sampling: tuple[tuple[int, int], ...]
    """Horizontal and vertical sampling factor of each component."""
    index_at: int
    """Offset at which a tile index belongs: after SOI and a JFIF or EXIF segment, which have to come first."""
    scans: tuple[int, ...]
    """Offsets of the coded data of each scan."""
    restarts: tuple[int, ...]
    """Offsets of all restart markers."""
    end: int
    """Offset after EOI."""
    several_images: bool
    """Whether it is an MPO file, which stores the offsets of further images."""

    @property
    def mcu(self) -> tuple[int, int]:
        """Height and width of an MCU in blocks of 8 pixels. A single component has MCUs of one block (T.81, A.2.2)."""
        if len(self.sampling) == 1:
            return 1, 1
        return max(v for _, v in self.sampling), max(h for h, _ in self.sampling)

    @property
    def mcus(self) -> tuple[int, int]:
        """Rows and columns of MCUs."""
        v, h = self.mcu
        return -(-self.height // (8 * v)), -(-self.width // (8 * h))


def layout_of(data: bytes) -> Layout:
    """Read the markers of a file.

    Raises:
        Unsliceable: the file is damaged; kind ``broken``.
    """
    segments = list(_segments(data))
    frames = [s for s in segments if s.marker in _FRAMES]
    scans = [s for s in segments if s.marker == SOS]
    if len(frames) != 1 or not scans:
        raise Unsliceable("broken", f"it has {len(frames)} frame headers and {len(scans)} scans")
    # Behind marker and length: precision (1), height (2), width (2), number of components (1), 3 bytes for each.
    at = frames[0].start + 4
    fields = data[at + 6 : frames[0].end]
    if len(fields) < 3 or len(fields) != 3 * data[at + 5]:
        raise Unsliceable("broken", "its frame header has the wrong length")
    height, width = (int.from_bytes(data[i : i + 2], "big") for i in (at + 1, at + 3))
    sampling = tuple((byte >> 4, byte & 15) for byte in fields[1::3])
    if not (height and width and all(map(all, sampling))):
        raise Unsliceable("broken", "its frame header contains a zero")
    # The first segment is SOI. read_tiles() expects a JFIF or EXIF segment directly behind it.
    first, end = segments[1], segments[-1].end
    return Layout(
        frames[0].marker,
        height,
        width,
        at + 1,
        sampling,
        first.end if first.marker in (APP0, APP1) and first.start == 2 else 2,
        tuple(s.end for s in scans),
        tuple(m.start() for m in _RESTART.finditer(data, scans[0].end, end)),
        end,
        any(s.marker == _APP2 and data.startswith(b"MPF\0", s.start + 4) for s in segments),
    )


def _segments(data: bytes) -> Iterator[_Segment]:
    """All segments from SOI to EOI."""
    if not data.startswith(bytes([0xFF, _SOI])):
        raise Unsliceable("broken", "it does not begin with the marker SOI")
    yield _Segment(_SOI, 0, 2)
    at = 2
    while at + 1 < len(data):
        marker = data[at + 1]
        if data[at] == marker == 0xFF:  # a fill byte
            at += 1
            continue
        if data[at] != 0xFF or marker == 0:
            raise Unsliceable("broken", f"there is no marker at byte {at}")
        if marker == EOI:
            yield _Segment(EOI, at, at + 2)
            return
        end = at + 2 + int.from_bytes(data[at + 2 : at + 4], "big")
        if end < at + 4 or end > len(data):
            raise Unsliceable("broken", f"the segment at byte {at} does not end inside the file")
        yield _Segment(marker, at, end)
        if marker == SOS:
            # Coded data have no length of their own: they end at the next marker.
            behind = _AFTER_SCAN.search(data, end)
            end = behind.start() if behind else len(data)
        at = end
    raise Unsliceable("broken", "it ends before the marker EOI")


def tile_width(layout: Layout) -> int:
    """Width of a tile in MCUs: the smallest worthwhile divisor of a row, because a restart interval does not stop at
    the end of a row."""
    columns, block = layout.mcus[1], 8 * layout.mcu[1]
    wanted = max(_MIN_TILE_WIDTH, layout.width / _MAX_TILES_PER_ROW)
    return next(k for k in range(1, columns + 1) if not columns % k and (block * k >= wanted or k == columns))


def with_tile_index(data: bytes) -> bytes:
    """A file with a tile index, which replaces an earlier one.

    Args:
        data: a sequential JPEG in one scan with a restart interval of :func:`tile_width`.

    Raises:
        Unsliceable: it is damaged or coded in another way, or has more tiles than fit into the index.
    """
    data = _without_index(data)
    layout = layout_of(data)
    tile, (rows, columns) = tile_width(layout), layout.mcus
    count = rows * columns // tile
    if layout.marker not in (SOF0, SOF1) or len(layout.scans) != 1:
        raise Unsliceable("unusual", "it is not sequential, or has several scans")
    if len(layout.restarts) != count - 1:
        raise Unsliceable("unusual", f"it has {len(layout.restarts)} restart markers for {count} tiles")
    at = layout.index_at
    segment = _index(layout, tile)
    return data[:at] + segment + data[at:]


def _without_index(data: bytes) -> bytes:
    for segment in _segments(data):
        if segment.marker == APP9 and data.startswith(IDENTIFIER, segment.start + 4):
            return data[: segment.start] + data[segment.end :]
    return data


def _index(layout: Layout, tile: int) -> bytes:
    """Return the index segment, for a file into which it will be inserted."""
    # A tile includes the marker after it, which is EOI for the last one.
    starts = [layout.scans[0], *(at + 2 for at in layout.restarts), layout.end]
    lengths = np.array([b - a for a, b in pairwise(starts)])
    dtype = ">u4" if lengths.max() > 0xFFFF else ">u2"
    table = lengths.astype(dtype).tobytes()
    size = 2 + HEADER.size + len(table)
    if size > MAX_SEGMENT:
        raise Unsliceable("large", f"it has {len(lengths)} tiles, which is more than the index can hold")
    v, h = layout.mcu
    # A single component has MCUs of one block, whatever its factors are (T.81, A.2.2).
    fine = layout.sampling if len(layout.sampling) > 1 else ((1, 1),)
    # The component with the smallest factor is the coarsest.
    right, down = -(-h // min(x for x, _ in fine)), -(-v // min(y for _, y in fine))
    # The index comes before the frame and the scan, so inserting it moves both.
    moved = size + 2
    header = HEADER.pack(
        IDENTIFIER, VERSION, h, v, right, down, int(dtype[-1]), tile, layout.height_at + moved, starts[0] + moved
    )
    return bytes([0xFF, APP9]) + size.to_bytes(2, "big") + header + table
