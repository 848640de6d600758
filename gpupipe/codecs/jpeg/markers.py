"""The markers of a JPEG file: frame, tables and scans, and where the entropy-coded bytes of each scan lie."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

__all__ = ["Component", "Frame", "HuffmanCode", "Jpeg", "Scan", "Segment", "Unsliceable", "parse"]

SOI, EOI, SOS, DQT, DNL, DRI, DHT = 0xD8, 0xD9, 0xDA, 0xDB, 0xDC, 0xDD, 0xC4
APP0, APP1, APP2, APP9 = 0xE0, 0xE1, 0xE2, 0xE9
SOF0, SOF1, SOF2 = 0xC0, 0xC1, 0xC2
_OTHER_FRAMES = {
    **dict.fromkeys((0xC3, 0xC7, 0xCB, 0xCF), "lossless"),
    **dict.fromkeys((0xC5, 0xC6, 0xCD, 0xCE, 0xDE, 0xDF), "hierarchical"),
    **dict.fromkeys((0xC9, 0xCA, 0xCC), "arithmetic"),
}
"""T.81, table B.1: what we do not rewrite, and why."""


class Unsliceable(Exception):
    """A file that stays as it is. ``kind`` is a short word, ``reason`` a sentence."""

    def __init__(self, kind: str, reason: str):
        super().__init__(kind, reason)
        self.kind = kind
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.kind}: {self.reason}"


@dataclass(frozen=True)
class Segment:
    """A marker with what belongs to it, at ``data[start:end]``."""

    marker: int
    start: int
    end: int


@dataclass(frozen=True)
class Component:
    """One plane of a frame."""

    id: int
    h: int
    """Samples across for each MCU, in blocks."""
    v: int
    """The same, down."""
    quantization: int


@dataclass(frozen=True)
class Frame:
    """What SOF says, and what follows from it."""

    marker: int
    height: int
    width: int
    components: tuple[Component, ...]
    height_at: int
    """Where in the file the two bytes of the height are."""

    @property
    def h(self) -> int:
        """The largest horizontal sampling factor; 1 of a single component, whose MCU is one block (T.81, A.2.2)."""
        return max(c.h for c in self.components) if len(self.components) > 1 else 1

    @property
    def v(self) -> int:
        """The largest vertical one."""
        return max(c.v for c in self.components) if len(self.components) > 1 else 1

    @property
    def mcus(self) -> tuple[int, int]:
        """(rows, columns) of MCUs if all components are in one scan."""
        return -(-self.height // (8 * self.v)), -(-self.width // (8 * self.h))

    def blocks(self, component: Component) -> tuple[int, int]:
        """(rows, columns) of blocks that a scan of this component alone has (T.81, A.2.2 and A.1.1)."""
        if len(self.components) == 1:
            return self.mcus
        height, width = self.height * component.v, self.width * component.h
        return -(-height // (8 * self.v)), -(-width // (8 * self.h))


@dataclass(frozen=True)
class HuffmanCode:
    """A table of DHT: how many codes there are of 1 to 16 bits, and their symbols in order."""

    counts: tuple[int, ...]
    symbols: bytes


@dataclass(frozen=True)
class Scan:
    """One scan with the tables that stood when it began."""

    components: tuple[int, ...]
    """Positions in the frame's components."""
    dc: tuple[HuffmanCode | None, ...]
    """For each of them."""
    ac: tuple[HuffmanCode | None, ...]
    identifiers: tuple[tuple[int, int], ...]
    """What the file calls these (DC, AC) tables."""
    spectral: tuple[int, int]
    """The first and the last coefficient, in zigzag order."""
    high: int
    """Bits of these coefficients that earlier scans brought start above this one; 0 in a first scan."""
    low: int
    restart: int
    """MCUs between two restart markers, 0 if there are none."""
    start: int
    """Where in the file its entropy-coded bytes are."""
    end: int
    restarts: tuple[int, ...]
    """Where its restart markers are."""

    def intervals(self, data: bytes) -> list[bytes]:
        """The entropy-coded bytes between restart markers, with stuffed zeros taken out."""
        starts, ends = (self.start, *(at + 2 for at in self.restarts)), (*self.restarts, self.end)
        parts = [data[a:b] for a, b in zip(starts, ends, strict=True)]
        return [part.rstrip(b"\xff").replace(b"\xff\0", b"\xff") for part in parts]  # fill bytes, stuffing


@dataclass(frozen=True)
class Jpeg:
    """A parsed file. ``tables`` are those that stand at its end: (class, identifier) to code, class 0 being DC."""

    segments: tuple[Segment, ...]
    """All before the first scan's entropy-coded bytes, SOI and that scan's SOS included."""
    frame: Frame
    scans: tuple[Scan, ...]
    quantization: dict[int, bytes] = field(repr=False)
    """Identifier to the table as DQT has it: a byte of precision and identifier, then 64 values in zigzag order."""
    end: int
    """Behind EOI."""


def parse(data: bytes) -> Jpeg:
    """Read all markers of a file.

    Raises :class:`Unsliceable` if it is damaged, or of a kind that we do not rewrite: CMYK, arithmetic, lossless,
    hierarchical, 12 bit.
    """
    return _Parser(data).parse()


class _Parser:
    def __init__(self, data: bytes):
        self._data = data
        array = np.frombuffer(data, np.uint8)
        marks = np.flatnonzero(array[:-1] == 0xFF)
        after = array[marks + 1]
        restart = after & 0xF8 == 0xD0
        self._restarts: npt.NDArray[np.int64] = marks[restart]
        self._others: npt.NDArray[np.int64] = marks[~restart & (after != 0) & (after != 0xFF)]
        """Where in the file a marker may be, if that is no coincidence."""
        self._segments: list[Segment] = []
        self._frame: Frame | None = None
        self._scans: list[Scan] = []
        self._codes: dict[tuple[int, int], HuffmanCode] = {}
        self._quantization: dict[int, bytes] = {}
        self._restart = 0

    def parse(self) -> Jpeg:
        data, at = self._data, 2
        if data[:2] != b"\xff\xd8":
            raise Unsliceable("broken", "no JPEG: it does not begin with the marker SOI")
        self._segments.append(Segment(SOI, 0, 2))
        while True:
            start = at
            while data[at : at + 1] == b"\xff" and data[at + 1 : at + 2] == b"\xff":
                at += 1  # fill bytes
            if at + 2 > len(data):
                raise Unsliceable("broken", "it ends before the marker EOI")
            if data[at] != 0xFF:
                raise Unsliceable("broken", f"byte {at} is no marker")
            marker = data[at + 1]
            if marker == EOI:
                at += 2
                break
            length = int.from_bytes(data[at + 2 : at + 4], "big")
            end = at + 2 + length
            if length < 2 or end > len(data):
                raise Unsliceable("broken", f"the segment at byte {at} ends behind the file")
            self._segment(marker, at + 4, end)
            if not self._scans:
                self._segments.append(Segment(marker, start, end))
            if marker == SOS:
                end = self._scan(at + 4, end)
            at = end
        if self._frame is None or not self._scans:
            raise Unsliceable("broken", "it has no image")
        return Jpeg(tuple(self._segments), self._frame, tuple(self._scans), self._quantization, at)

    def _segment(self, marker: int, at: int, end: int) -> None:
        data = self._data
        if marker in (SOF0, SOF1, SOF2):
            if self._frame is not None:
                raise Unsliceable("hierarchical", "it has several frames")
            self._frame = _frame(marker, data, at, end)
        elif marker in _OTHER_FRAMES:
            kind = _OTHER_FRAMES[marker]
            raise Unsliceable(kind, f"its coding is {kind}")
        elif marker == DHT:
            while at < end:
                self._codes[data[at] >> 4, data[at] & 15], at = _huffman(data, at + 1, end)
        elif marker == DQT:
            while at < end:
                size = 129 if data[at] >> 4 else 65
                table, identifier = data[at : min(at + size, end)], data[at] & 15
                if len(table) != size:
                    raise Unsliceable("broken", "a quantization table is cut short")
                if self._scans and self._quantization.get(identifier, table) != table:
                    raise Unsliceable("unusual", "quantization changes between its scans")
                self._quantization[identifier] = table
                at += size
        elif marker == DRI:
            if end - at < 2:
                raise Unsliceable("broken", "its restart interval is cut short")
            self._restart = int.from_bytes(data[at : at + 2], "big")
        elif marker == DNL:
            raise Unsliceable("unusual", "its height stands behind its first scan")

    def _scan(self, at: int, end: int) -> int:
        """Behind the entropy-coded bytes of the scan whose header is ``data[at:end]``."""
        data, frame = self._data, self._frame
        if frame is None:
            raise Unsliceable("broken", "a scan comes before the frame")
        n = data[at] if at < end else 0
        if not 1 <= n <= 4 or end - at != 4 + 2 * n:
            raise Unsliceable("broken", "the header of a scan has the wrong length")
        identifiers = [c.id for c in frame.components]
        try:
            components = tuple(identifiers.index(data[at + 1 + 2 * i]) for i in range(n))
        except ValueError:
            raise Unsliceable("broken", "a scan has a component that the frame lacks") from None
        if list(components) != sorted(set(components)):
            raise Unsliceable("broken", "the components of a scan are in disorder")
        tables = [data[at + 2 + 2 * i] for i in range(n)]
        first, last, bits = data[end - 3 : end]
        behind = int(np.searchsorted(self._others, end))
        if behind == len(self._others):
            raise Unsliceable("broken", "it ends before the marker EOI")
        stop = int(self._others[behind])
        restarts = self._restarts[slice(*np.searchsorted(self._restarts, (end, stop)))]
        self._scans.append(
            Scan(
                components,
                tuple(self._codes.get((0, t >> 4)) for t in tables),
                tuple(self._codes.get((1, t & 15)) for t in tables),
                tuple((t >> 4, t & 15) for t in tables),
                (first, last),
                bits >> 4,
                bits & 15,
                self._restart,
                end,
                stop,
                tuple(restarts.tolist()),
            )
        )
        return stop


def _frame(marker: int, data: bytes, at: int, end: int) -> Frame:
    if end - at < 6 or end - at != 6 + 3 * data[at + 5]:
        raise Unsliceable("broken", "the header of the frame has the wrong length")
    if data[at] != 8:
        raise Unsliceable(f"{data[at]} bit", f"its samples have {data[at]} bits")
    height, width = int.from_bytes(data[at + 1 : at + 3], "big"), int.from_bytes(data[at + 3 : at + 5], "big")
    fields = [data[i : i + 3] for i in range(at + 6, end, 3)]
    components = tuple(Component(f[0], f[1] >> 4, f[1] & 15, f[2]) for f in fields)
    if not height:
        raise Unsliceable("unusual", "its height stands behind its first scan")
    if len(components) == 4:
        raise Unsliceable("CMYK", "it has four components")
    if len(components) not in (1, 3):
        raise Unsliceable("unusual", f"it has {len(components)} components")
    if not width or not all(1 <= c.h <= 4 and 1 <= c.v <= 4 for c in components):
        raise Unsliceable("broken", "the header of the frame is damaged")
    if len({c.id for c in components}) != len(components):
        raise Unsliceable("broken", "two components have the same name")
    return Frame(marker, height, width, components, at + 1)


def _huffman(data: bytes, at: int, end: int) -> tuple[HuffmanCode, int]:
    counts = tuple(data[at : at + 16])
    symbols = data[at + 16 : at + 16 + sum(counts)]
    if len(counts) != 16 or len(symbols) != sum(counts) or at + 16 + len(symbols) > end or len(symbols) > 256:
        raise Unsliceable("broken", "a Huffman table is cut short")
    room = 1 << 16
    for bits, count in enumerate(counts, 1):
        room -= count << (16 - bits)
    if room < 0:
        raise Unsliceable("broken", "a Huffman table has more codes than there can be")
    return HuffmanCode(counts, symbols), at + 16 + len(symbols)
