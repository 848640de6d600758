"""Walk the segments of a JPEG file to find out whether all decoders will read it alike.

In a baseline file only the segments before the first scan are walked, which Pillow has read already. A progressive file
is walked to its end: libjpeg guesses the content of missing scans, and guesses differently if it decodes a window.

Standard library only, because a probing process loads it. ITU-T T.81 defines the format: section B.2 its syntax, G.1
the order of progressive scans.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

ODD = {
    "junk": "bytes between its segments",
    "markers": "markers that do not belong in the head of a file",
    "process": "another process than baseline or progressive, or not 8 bits",
    "frame": "an unusual or contradictory frame header",
    "tables": "missing or damaged tables",
    "scan": "a scan header that does not fit its frame or the scans before it",
    "unfinished": "a progression without its last scans",
    "exif": "several EXIF segments",
    "adobe": "several Adobe segments",
}
"""Oddities of a JPEG file, by the word that is stored in the coding for the first one."""

_SHORT = frozenset({0x00, 0x01, *range(0xD0, 0xDA)})
"""Markers without a length."""
_PLAIN = frozenset({*range(0xE0, 0xF0), 0xFE})
"""APPn and COM."""
_LUMA = frozenset({0x11, 0x12, 0x21, 0x22, 0x41})
"""Sampling factors of the first of three components if the others have 1x1: 4:4:4, 4:4:0, 4:2:2, 4:2:0, 4:1:1."""
_ALONE = frozenset(bytes([across << 4 | down]) for across in range(1, 5) for down in range(1, 5))
"""Sampling factors of a single component."""
_MARKER = re.compile(rb"\xff[^\x00\xff\xd0-\xd7]")
"""End of the data of a scan: a marker that is neither a stuffed 0xFF nor a restart."""


class Structure(NamedTuple):
    """The result of a walk."""

    scan: int
    """Offset of the first scan in bytes; 0 if the walk did not reach it."""
    odd: str
    """A word of :data:`ODD`; empty if nothing is odd."""
    progressive: bool


def walk(head: bytes, height: int, width: int, *, whole: bool = False) -> Structure:
    """Walk the segments of a file.

    Args:
        head: the file, or its beginning.
        height, width: what the frame header must say, in pixels.
        whole: continue after the first scan of a progressive file; ``head`` is the whole file.
    """
    found = _Walk(height, width)
    at, end, scan = 2, len(head), 0
    # Behind a scan two bytes suffice, because the end marker has no length.
    while at + 3 < end or (scan and at + 1 < end):
        marker = head[at + 1]
        if head[at] != 0xFF or marker == 0xFF:
            found.note("junk")  # or a fill byte, which T.81 allows and encoders do not write
            at += 1
            continue
        # Before any scan, the end marker is one of those that do not belong there.
        if marker == 0xD9 and scan:
            found.finish()
            return Structure(scan, found.odd, True)
        if marker in _SHORT:
            found.note("markers")
            at += 2
            continue
        length = int.from_bytes(head[at + 2 : at + 4], "big")
        body = head[at + 4 : at + 2 + length]
        # The segment is damaged, or continues behind what was read.
        if length < 2 or len(body) < length - 2:
            break
        if marker not in _PLAIN and marker != 0xDA:
            found.segment(marker, body)
        elif marker == 0xE1 or marker == 0xEE:
            found.application(marker, body)
        elif marker == 0xDA:
            scan = scan or at
            found.scan(body)
            # Behind the first scan, only the order of progressive scans is of interest.
            behind = _MARKER.search(head, at + 2 + length) if whole and found.progressive else None
            if behind is None:
                break
            length = behind.start() - at - 2
        at += 2 + length
    # The end marker would have returned above.
    if whole and scan and found.progressive:
        found.note("unfinished")
    return Structure(scan, found.odd, found.progressive)


class _Walk:
    """Findings so far."""

    def __init__(self, height: int, width: int):
        self.odd = ""
        self.progressive = False
        self._size = height, width
        self._components: dict[int, int] = {}
        """Quantization table of each component of the frame, by its id."""
        self._known: dict[int, list[int]] = {}
        """For each component of a progressive frame, how many low bits of its 64 coefficients are still missing."""
        self._quantization: set[int] = set()
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
            self._define(self._quantization, _quantization_tables(body))
        elif marker == 0xC4:
            self._define(self._huffman, _huffman_tables(body))
        elif marker in (0xC0, 0xC2):
            self._frame(body)
            self.progressive = marker == 0xC2
        elif marker == 0xDD:  # the restart interval
            if len(body) != 2:
                self.note("tables")
        else:
            self.note("process" if 0xC0 <= marker <= 0xDF else "markers")

    def _define(self, known: set[int], tables: frozenset[int] | None) -> None:
        if tables is None:
            self.note("tables")
        else:
            known |= tables

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
        # A single component is not subsampled, whatever its factors are. Pillow writes 2x2.
        usual = sampling in _ALONE if count == 1 else count == 3 and sampling[:1] and sampling[0] in _LUMA
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
        """The header of a scan."""
        count = body[0] if body else 0
        if not count or len(body) != 4 + 2 * count:
            self.note("scan")
            return
        # Two bytes for each component, its id and its tables, and three for the coefficients and bits.
        names, tables = body[1:-3:2], body[2:-3:2]
        first, last, steps = body[-3:]
        if len(set(names)) != count or not self._components.keys() >= set(names):
            self.note("scan")
        elif self.progressive:
            self._progress(names, first, last, high=steps >> 4, low=steps & 15)
        elif (first, last, steps) != (0, 63, 0):
            self.note("scan")
        used: set[int] = set()
        if first == 0 and not steps >> 4:  # refinements of DC have no Huffman codes
            used = {table >> 4 for table in tables}
        if last > 0:
            used |= {0x10 | table & 15 for table in tables}
        if not self._huffman >= used or not self._quantization >= set(self._components.values()):
            self.note("tables")

    def _progress(self, names: bytes, first: int, last: int, *, high: int, low: int) -> None:
        """Take a scan of coefficients ``first`` to ``last`` to bit ``low``, after scans to bit ``high`` (0: none)."""
        # A scan has DC coefficients, or AC ones of a single component (T.81, G.1.1).
        dc = first == last == 0
        ac = 0 < first <= last <= 63 and len(names) == 1
        # A refinement adds exactly one bit, and at most 13 bits can be left for later.
        if not (dc or ac) or low > 13 or (high and low != high - 1):
            self.note("scan")
            return
        for name in names:
            known = self._known.setdefault(name, [_NOTHING] * 64)
            # A scan continues where the ones before it ended, and DC comes before AC.
            if any(bits != (high or _NOTHING) for bits in known[first : last + 1]) or (ac and known[0] == _NOTHING):
                self.note("scan")
            known[first : last + 1] = [low] * (last + 1 - first)

    def finish(self) -> None:
        """Handle the end marker after the last scan of a progressive frame."""
        # A component is complete if none of its coefficients lacks a bit.
        if self._known.keys() != self._components.keys() or any(map(any, self._known.values())):
            self.note("unfinished")


_NOTHING = 99
"""Instead of a number of bits: no scan had this coefficient."""


# Most encoders use the tables of T.81, or a few of their own.
@lru_cache(1024)
def _quantization_tables(body: bytes) -> frozenset[int] | None:
    """Return the numbers of the tables in a segment; ``None`` if one is damaged."""
    at, found = 0, set[int]()
    while at < len(body):
        precision, number = body[at] >> 4, body[at] & 15
        # One byte for precision and number, and 64 values of one or two bytes.
        at += 65 + 64 * precision
        if precision > 1 or number > 3 or at > len(body):
            return None
        found.add(number)
    return frozenset(found)


@lru_cache(1024)
def _huffman_tables(body: bytes) -> frozenset[int] | None:
    """Return class and number of the tables in a segment; ``None`` if one is damaged."""
    at, found = 0, set[int]()
    while at < len(body):
        # After the table's byte come 16 numbers of codes, one for each length, and the symbols.
        table, counts = body[at], body[at + 1 : at + 17]
        symbols = body[at + 17 : at + 17 + sum(counts)]
        at += 17 + sum(counts)
        largest = 15 if table < 0x10 else 255  # of DC the symbols are numbers of bits
        if table & 0xEC or at > len(body) or not _is_code(counts) or max(symbols, default=0) > largest:
            return None
        found.add(table)
    return frozenset(found)


def _is_code(counts: Iterable[int]) -> bool:
    """Tell whether a prefix code with these counts of words of 1 to 16 bits exists, with no word of ones only (T.81,
    annex C)."""
    code = 0
    for length, count in enumerate(counts, 1):
        # Of the 2**length words this many are taken, or begin with a taken one.
        code = 2 * code + count
        if count and code >= 1 << length:
            return False
    return True
