"""The structure of a JPEG file up to its first scan, walked segment by segment: is it what every decoder reads alike?

Standard library only, as all that a probing process loads. ITU-T T.81 is the format; section B.2 its syntax.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["ODD", "Structure", "walk"]

ODD = {
    "junk": "bytes between its segments",
    "markers": "markers that are not for the head of a file",
    "process": "another process than baseline or progressive, or not 8 bits",
    "frame": "an unusual or contradictory frame header",
    "tables": "missing or damaged tables",
    "scan": "a scan header that does not fit its frame",
    "exif": "several EXIF segments",
    "adobe": "several Adobe segments",
}
"""What may be odd in a JPEG file, by the word in its coding. The first that is met."""

_SHORT = frozenset({0x00, 0x01, *range(0xD0, 0xDA)})
"""Markers without a length behind them."""
_PLAIN = frozenset({*range(0xE0, 0xF0), 0xFE})
"""APPn and COM."""
_LUMA = frozenset({0x11, 0x12, 0x21, 0x22, 0x41})
"""Sampling factors of the first of three components, the others having 1x1: 4:4:4, 4:4:0, 4:2:2, 4:2:0, 4:1:1."""


class Structure(NamedTuple):
    """What a walk found."""

    scan: int
    """Where the first scan begins, in bytes; 0 if the walk did not come so far."""
    odd: str
    """A word of :data:`ODD`; empty if nothing is odd."""


def walk(head: bytes, height: int, width: int) -> Structure:
    """Walk the segments of a file.

    Args:
        head: the file, or its beginning.
        height, width: what the frame header must say, in pixels.
    """
    found = _Walk(height, width)
    at, end = 2, len(head)
    while at + 3 < end:
        marker = head[at + 1]
        if head[at] != 0xFF or marker == 0xFF:
            found.note("junk")  # or a fill byte, which T.81 allows and nobody writes
            at += 1
        elif marker in _SHORT:
            found.note("markers")
            at += 2
        else:
            length = head[at + 2] << 8 | head[at + 3]
            body = head[at + 4 : at + 2 + length]
            if length < 2 or len(body) < length - 2:
                break
            if marker == 0xDA:
                found.scan(body)
                return Structure(at, found.odd)
            if marker not in _PLAIN:
                found.segment(marker, body)
            elif marker == 0xE1 or marker == 0xEE:
                found.application(marker, body)
            at += 2 + length
    return Structure(0, found.odd)


class _Walk:
    """What is known so far."""

    def __init__(self, height: int, width: int):
        self.odd = ""
        self._size = height, width
        self._components: dict[int, int] = {}
        """Quantisation table of each component of the frame, by its id."""
        self._progressive = False
        self._quantisation: set[int] = set()
        self._huffman: set[int] = set()
        """Class and number in one byte, as DHT has them: 0x0n for DC, 0x1n for AC."""
        self._exif = self._adobe = 0

    def note(self, word: str) -> None:
        self.odd = self.odd or word

    def application(self, marker: int, body: bytes) -> None:
        self._exif += marker == 0xE1 and body.startswith(b"Exif")
        self._adobe += marker == 0xEE and body.startswith(b"Adobe")
        if self._exif > 1:
            self.note("exif")
        if self._adobe > 1:
            self.note("adobe")

    def segment(self, marker: int, body: bytes) -> None:
        if marker == 0xDB:
            self._define_quantisation(body)
        elif marker == 0xC4:
            self._define_huffman(body)
        elif marker in (0xC0, 0xC2):
            self._frame(body)
            self._progressive = marker == 0xC2
        elif marker == 0xDD:  # the restart interval
            if len(body) != 2:
                self.note("tables")
        else:
            self.note("process" if 0xC0 <= marker <= 0xDF else "markers")

    def _define_quantisation(self, body: bytes) -> None:
        at = 0
        while at < len(body):
            precision, number = body[at] >> 4, body[at] & 15
            at += 65 + 64 * precision
            if precision > 1 or number > 3 or at > len(body):
                self.note("tables")
                return
            self._quantisation.add(number)

    def _define_huffman(self, body: bytes) -> None:
        at = 0
        while at < len(body):
            table, symbols = body[at], sum(body[at + 1 : at + 17])
            at += 17 + symbols
            if table & 0xEC or symbols > 256 or at > len(body):
                self.note("tables")
                return
            self._huffman.add(table)

    def _frame(self, body: bytes) -> None:
        if self._components or len(body) < 6:
            self.note("frame")
            return
        size = body[1] << 8 | body[2], body[3] << 8 | body[4]
        if body[0] != 8:
            self.note("process")
        count, components = body[5], body[6:]
        sampling = components[1::3]
        self._components = dict(zip(components[::3], components[2::3], strict=False))
        usual = sampling == b"\x11" if count == 1 else count == 3 and sampling[:1] and sampling[0] in _LUMA
        rest = sampling[1:] in (b"", b"\x11\x11")
        if (
            size != self._size
            or len(components) != 3 * count
            or len(self._components) != count
            or not usual
            or not rest
        ):
            self.note("frame")

    def scan(self, body: bytes) -> None:
        """The header of the first scan."""
        count = body[0] if body else 0
        if not count or len(body) != 4 + 2 * count:
            self.note("scan")
            return
        names, tables = body[1:-3:2], body[2:-3:2]
        first, last, steps = body[-3:]
        spectrum = first == last == 0 and steps <= 13 if self._progressive else (first, last, steps) == (0, 63, 0)
        if len(set(names)) != count or not self._components.keys() >= set(names) or not spectrum:
            self.note("scan")
        used = {table >> 4 for table in tables}
        if not self._progressive:
            used |= {0x10 | table & 15 for table in tables}
        if not self._huffman >= used or not self._quantisation >= set(self._components.values()):
            self.note("tables")
