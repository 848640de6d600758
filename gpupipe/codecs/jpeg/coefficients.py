"""The quantized coefficients of Huffman-coded files: sequential or progressive, in any number of scans.

One code after the other, in Python; for files whose bits cannot be copied as they are, and to compare two files.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from .huffman import lookup
from .markers import SOF2, Component, Frame, HuffmanCode, Jpeg, Scan, Unsliceable

__all__ = ["coefficients"]

I16 = npt.NDArray[np.int16]
I64 = npt.NDArray[np.int64]


def coefficients(jpeg: Jpeg, data: bytes) -> list[I16]:
    """Of each component i16[rows, columns, 64]: its blocks, as many as whole MCUs have, each in zigzag order.

    Args:
        jpeg: ``data`` as :func:`~.markers.parse` gave it.

    Raises :class:`Unsliceable` if a scan is damaged.
    """
    rows, columns = jpeg.frame.mcus
    shapes = [(rows * c.v, columns * c.h) if len(jpeg.frame.components) > 1 else (rows, columns)
              for c in jpeg.frame.components]  # fmt: skip
    planes = [np.zeros((*shape, 64), np.int16) for shape in shapes]
    try:
        for scan in jpeg.scans:
            _decode(jpeg.frame, scan, data, planes)
    except IndexError:
        raise Unsliceable("broken", "the bits of a scan end too early") from None
    return planes


def _decode(frame: Frame, scan: Scan, data: bytes, planes: list[I16]) -> None:
    phases = _phases(frame, scan, [plane.shape[:2] for plane in planes])
    count = len(phases[0].blocks)
    intervals = scan.intervals(data)
    step = scan.restart or count
    if len(intervals) != -(-count // step):
        raise Unsliceable("broken", f"a scan has {len(intervals) - 1} restart markers, and {-(-count // step) - 1} fit")
    progressive = frame.marker == SOF2
    first, last = scan.spectral
    if not (0 <= first <= last <= 63) or (progressive and (first == 0) != (last == 0)) or (first and len(phases) > 1):
        raise Unsliceable("broken", "a scan has coefficients that do not go together")
    flat = [plane.reshape(-1) for plane in planes]
    for i, part in enumerate(intervals):
        bits = _Bits.of(part)
        mcus = slice(i * step, min((i + 1) * step, count))
        if not progressive:
            _sequential(bits, phases, mcus, flat)
        elif first == 0 and scan.high == 0:
            _dc_first(bits, phases, mcus, flat, scan.low)
        elif first == 0:
            _dc_more(bits, phases, mcus, flat, scan.low)
        elif scan.high == 0:
            _ac_first(bits, phases[0], mcus, flat, scan)
        else:
            _ac_more(bits, phases[0], mcus, flat, scan)


@dataclass(frozen=True)
class _Phase:
    """One block of each MCU of a scan."""

    component: int
    blocks: I64
    """i64[MCUs]: where in its component's coefficients it begins."""
    dc: HuffmanCode | None
    ac: HuffmanCode | None


def _phases(frame: Frame, scan: Scan, shapes: list[tuple[int, ...]]) -> list[_Phase]:
    """The blocks of an MCU in turn. A scan of one component has one block in each, and only those that have pixels
    (T.81, A.2)."""
    if len(scan.components) == 1:
        (i,) = scan.components
        rows, columns = frame.blocks(frame.components[i])
        blocks = np.arange(rows)[:, None] * shapes[i][1] + np.arange(columns)
        return [_Phase(i, blocks.reshape(-1) * 64, scan.dc[0], scan.ac[0])]
    rows, columns = frame.mcus
    found = []
    for i, dc, ac in zip(scan.components, scan.dc, scan.ac, strict=True):
        c: Component = frame.components[i]
        for y in range(c.v):
            for x in range(c.h):
                blocks = (np.arange(rows)[:, None] * c.v + y) * shapes[i][1] + np.arange(columns) * c.h + x
                found.append(_Phase(i, blocks.reshape(-1) * 64, dc, ac))
    return found


@dataclass(frozen=True)
class _Bits:
    """Entropy-coded bytes: the bit p begins the highest of the 32 - (p & 15) lowest bits of ``words[p >> 4]``."""

    words: list[int]
    data: npt.NDArray[np.uint8]

    @classmethod
    def of(cls, part: bytes) -> _Bits:
        # A code may end in the padding, but what reads much behind the end fails with an IndexError.
        padded = part + bytes(-len(part) % 2 + 6)
        halves = np.frombuffer(padded, ">u2").astype(np.uint32)
        return cls((halves[:-1] << 16 | halves[1:]).tolist(), np.frombuffer(padded, np.uint8))

    def bits(self, start: int, count: int) -> npt.NDArray[np.uint8]:
        """u8[count] of 0 and 1."""
        if start + count > 8 * len(self.data):
            raise IndexError
        first = start >> 3
        return np.unpackbits(self.data[first : (start + count + 7 >> 3)])[start - 8 * first :][:count]


@lru_cache(maxsize=8)  # restart intervals begin with the same ones
def _codes(code: HuffmanCode | None) -> list[int]:
    """What 16 bits begin with: 256 times the bits of the code plus the symbol; 0 if there is no code."""
    if code is None:
        raise Unsliceable("broken", "a scan has no Huffman table")
    symbols, bits = lookup(code)
    return (bits.astype(np.int64) << 8 | symbols).tolist()  # type: ignore[no-any-return]


def _no_code() -> Unsliceable:
    return Unsliceable("broken", "the bits of a scan are no Huffman code")


def _sequential(bits: _Bits, phases: list[_Phase], mcus: slice, flat: list[I16]) -> None:
    """T.81, F.2.2."""
    words, p, before = bits.words, 0, [0] * len(flat)
    turns = [(f.component, f.blocks[mcus].tolist(), _codes(f.dc), _codes(f.ac), flat[f.component].data)
             for f in phases]  # fmt: skip
    for m in range(len(turns[0][1])):
        for component, blocks, dc, ac, out in turns:
            at = blocks[m]
            code = dc[words[p >> 4] >> 16 - (p & 15) & 0xFFFF]
            size = code & 255
            if not code or size > 15:
                raise _no_code()
            p += code >> 8
            if size:
                value = words[p >> 4] >> 32 - (p & 15) - size & (1 << size) - 1
                before[component] += value if value >> size - 1 else value - (1 << size) + 1
                p += size
            out[at] = _checked(before[component])
            k = 1
            while k < 64:
                code = ac[words[p >> 4] >> 16 - (p & 15) & 0xFFFF]
                size = code & 15
                p += code >> 8
                if size:
                    k += code >> 4 & 15
                    if k > 63:
                        raise _no_code()
                    value = words[p >> 4] >> 32 - (p & 15) - size & (1 << size) - 1
                    out[at + k] = value if value >> size - 1 else value - (1 << size) + 1
                    p += size
                    k += 1
                elif code & 255 == 0xF0:
                    k += 16
                elif code and not code & 255:
                    break
                else:
                    raise _no_code()
    _check_end(bits, p)


def _dc_first(bits: _Bits, phases: list[_Phase], mcus: slice, flat: list[I16], low: int) -> None:
    """T.81, G.1.2.1"""
    words, p, before = bits.words, 0, [0] * len(flat)
    turns = [(f.component, f.blocks[mcus].tolist(), _codes(f.dc), flat[f.component].data) for f in phases]
    for m in range(len(turns[0][1])):
        for component, blocks, dc, out in turns:
            code = dc[words[p >> 4] >> 16 - (p & 15) & 0xFFFF]
            size = code & 255
            if not code or size > 15:
                raise _no_code()
            p += code >> 8
            if size:
                value = words[p >> 4] >> 32 - (p & 15) - size & (1 << size) - 1
                before[component] += value if value >> size - 1 else value - (1 << size) + 1
                p += size
            out[blocks[m]] = _checked(before[component] << low)
    _check_end(bits, p)


def _dc_more(bits: _Bits, phases: list[_Phase], mcus: slice, flat: list[I16], low: int) -> None:
    """One more bit of each (T.81, G.1.2.1)."""
    count = len(phases[0].blocks[mcus])
    more = bits.bits(0, count * len(phases)).reshape(count, len(phases)).astype(np.int16) << low
    for i, f in enumerate(phases):
        flat[f.component][f.blocks[mcus]] |= more[:, i]


def _ac_first(bits: _Bits, phase: _Phase, mcus: slice, flat: list[I16], scan: Scan) -> None:
    """T.81, G.1.2.2: blocks without coefficients are counted, and have no bits."""
    words, p, low, (first, last) = bits.words, 0, scan.low, scan.spectral
    blocks, ac, out = phase.blocks[mcus].tolist(), _codes(phase.ac), flat[phase.component].data
    m, count = 0, len(blocks)
    while m < count:
        at, k = blocks[m], first
        m += 1
        while k <= last:
            code = ac[words[p >> 4] >> 16 - (p & 15) & 0xFFFF]
            size, run = code & 15, code >> 4 & 15
            p += code >> 8
            if size:
                k += run
                if k > last:
                    raise _no_code()
                value = words[p >> 4] >> 32 - (p & 15) - size & (1 << size) - 1
                out[at + k] = _checked((value if value >> size - 1 else value - (1 << size) + 1) << low)
                p += size
                k += 1
            elif run == 15:
                k += 16
            elif code:
                m += (1 << run) - 1 + (words[p >> 4] >> 32 - (p & 15) - run & (1 << run) - 1)
                p += run
                break
            else:
                raise _no_code()
    if m > count:
        raise _no_code()
    _check_end(bits, p)


def _ac_more(bits: _Bits, phase: _Phase, mcus: slice, flat: list[I16], scan: Scan) -> None:
    """One more bit of each coefficient that is not zero, between the codes for those that were zero (T.81, G.1.2.3).

    The bits for what is not zero lie in its order, so it is enough to know where stretches of them are.
    """
    words, p, (first, last), unit = bits.words, 0, scan.spectral, 1 << scan.low
    plane, blocks, ac = flat[phase.component], phase.blocks[mcus], _codes(phase.ac)
    band = plane[blocks[:, None] + np.arange(first, last + 1)]
    rows, places = np.nonzero(band)
    known = (places + first).tolist()
    bounds = np.searchsorted(rows, np.arange(len(blocks) + 1)).tolist()
    stretches: list[tuple[int, int, int]] = []
    """(the first of ``known``, how many, the bit of the first)"""
    new: list[tuple[int, int, int]] = []
    """(block, coefficient, value)"""
    m, count = 0, len(blocks)
    while m < count:
        i, end, k = bounds[m], bounds[m + 1], first
        skipped = 0
        while k <= last:
            code = ac[words[p >> 4] >> 16 - (p & 15) & 0xFFFF]
            size, run = code & 15, code >> 4 & 15
            p += code >> 8
            if size == 1:
                value = unit if words[p >> 4] >> 31 - (p & 15) & 1 else -unit
                p += 1
            elif size or not code:
                raise _no_code()
            elif run < 15:
                skipped = (1 << run) + (words[p >> 4] >> 32 - (p & 15) - run & (1 << run) - 1)
                p += run
                break
            start = i
            while i < end and known[i] - k <= run:
                run -= known[i] - k
                k = known[i] + 1
                i += 1
            if i > start:
                stretches.append((start, i - start, p))
                p += i - start
            k += run
            if size:
                if k > last:
                    raise _no_code()
                new.append((m, k, value))
            k += 1
        if skipped:
            if m + skipped > count:
                raise _no_code()
            end = bounds[m + skipped]
            m += skipped - 1
        if end > i:
            stretches.append((i, end - i, p))
            p += end - i
        m += 1
    _check_end(bits, p)
    _add(plane, blocks[rows] + places + first, bits, stretches, unit)
    if new:
        at, k_, values = np.array(new).T
        plane[blocks[at] + k_] = values


def _add(plane: I16, known: I64, bits: _Bits, stretches: list[tuple[int, int, int]], unit: int) -> None:
    """Add ``unit``, away from zero, to those coefficients whose bit is 1."""
    if not stretches:
        return
    first, lengths, place = np.array(stretches).T
    within = np.arange(lengths.sum()) - (np.cumsum(lengths) - lengths).repeat(lengths)
    ones = np.unpackbits(bits.data)[place.repeat(lengths) + within] > 0
    chosen = known[first.repeat(lengths)[ones] + within[ones]]
    plane[chosen] += np.where(plane[chosen] > 0, unit, -unit).astype(np.int16)


def _checked(value: int) -> int:
    if not -32768 <= value <= 32767:
        raise _no_code()
    return value


def _check_end(bits: _Bits, p: int) -> None:
    if p > 8 * (len(bits.data) - 6):
        raise IndexError
