"""JPEG files to sliceable ones, without a change of a coefficient.

The entropy-coded bits of a sequential scan are copied as they are; only the DC codes that a restart marker changes, a
few for each tile, are written anew. Files in several scans, progressive ones among them, are decoded to coefficients
and encoded again as one sequential scan.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from . import IDENTIFIER
from .bits import joined
from .blocks import Interval, block_starts
from .coefficients import coefficients
from .encode import encode
from .huffman import codewords, extended, lookup
from .markers import APP0, APP1, APP2, DHT, DQT, DRI, SOF0, SOF1, SOF2, SOS, HuffmanCode, Jpeg, Scan, Unsliceable, parse
from .tiles import segment, tile_of

__all__ = ["rewrite"]

I64 = npt.NDArray[np.int64]
U8 = npt.NDArray[np.uint8]
Codes = dict[tuple[int, int], HuffmanCode]

_PIXELS = 1 << 28
"""Of larger images the coefficients would take gigabytes, also if a small file only says that it has so many."""


class _Scan(NamedTuple):
    """The one scan of a new file."""

    data: bytes
    starts: list[int]
    """Where in ``data`` the tiles begin, and the end."""
    codes: Codes
    """(class, identifier) to the code, class 0 being DC: those that the file does not have."""
    again: bool
    """Whether it has none of the file's own."""


def rewrite(files: Sequence[bytes]) -> list[bytes | Unsliceable]:
    """Sliceable files with the same coefficients, in the same order; of what stays as it is the reason.

    All files at once take much less time than one after another.
    """
    parsed = [_parsed(data) for data in files]
    plans = [_copy_plan(p, data) if isinstance(p, Jpeg) else None for p, data in zip(parsed, files, strict=True)]
    starts = iter(block_starts([interval for plan in plans if plan is not None for interval in plan]))
    found = [None if plan is None else [next(starts) for _ in plan] for plan in plans]
    return [_one(*each) for each in zip(files, parsed, plans, found, strict=True)]


def _parsed(data: bytes) -> Jpeg | Unsliceable:
    try:
        jpeg = parse(data)
    except Unsliceable as e:
        return e
    if jpeg.frame.height * jpeg.frame.width > _PIXELS:
        return Unsliceable("large", f"{jpeg.frame.height}x{jpeg.frame.width} pixels are more than {_PIXELS}")
    if any(part.marker == APP2 and data[part.start + 4 : part.start + 8] == b"MPF\0" for part in jpeg.segments):
        return Unsliceable("MPO", "several images are in it, and it says where")
    return jpeg


def _one(
    data: bytes, jpeg: Jpeg | Unsliceable, intervals: list[Interval] | None, starts: list[I64 | None] | None
) -> bytes | Unsliceable:
    if isinstance(jpeg, Unsliceable):
        return jpeg
    try:
        if intervals is None or starts is None:
            return _file(data, jpeg, _coded_again(data, jpeg))
        good = [s for s in starts if s is not None]
        if len(good) < len(starts):
            return Unsliceable("broken", "the bits of its scan are too few, or are no Huffman code")
        return _file(data, jpeg, _copied(jpeg, intervals, good))
    except Unsliceable as e:
        return e


# ---------------------------------------------------------------------- coefficients


def _coded_again(data: bytes, jpeg: Jpeg) -> _Scan:
    made = encode(coefficients(jpeg, data), jpeg.frame.components, tile_of(jpeg.frame))
    return _Scan(*joined(made.data, made.starts.tolist()), made.codes, again=True)


# ---------------------------------------------------------------------- bits


def _phases(jpeg: Jpeg) -> list[int]:
    """The components of the blocks of an MCU, in turn."""
    components = jpeg.frame.components
    if len(components) == 1:
        return [0]
    return [i for i, c in enumerate(components) for _ in range(c.h * c.v)]


def _copy_plan(jpeg: Jpeg, data: bytes) -> list[Interval] | None:
    """What to look for in a file whose bits can be copied; ``None`` if it has to be coded again."""
    scan: Scan = jpeg.scans[0]
    if (
        jpeg.frame.marker == SOF2
        or len(jpeg.scans) > 1
        or len(scan.components) < len(jpeg.frame.components)
        or scan.spectral != (0, 63)
        or None in scan.dc
        or None in scan.ac
    ):
        return None
    phases = _phases(jpeg)
    pairs: list[tuple[HuffmanCode, HuffmanCode]] = list(zip(scan.dc, scan.ac, strict=True))  # type: ignore[arg-type]
    turns = tuple(pairs[i] for i in phases)
    rows, columns = jpeg.frame.mcus
    count = rows * columns
    step = scan.restart or count
    parts = scan.intervals(data)
    if len(parts) != -(-count // step):
        return None
    return [Interval(part, min(step, count - i * step) * len(phases), turns) for i, part in enumerate(parts)]


def _copied(jpeg: Jpeg, intervals: list[Interval], starts: list[I64]) -> _Scan:
    """The bits of a scan with other restarts."""
    scan, phases = jpeg.scans[0], _phases(jpeg)
    offsets = np.concatenate([[0], np.cumsum([8 * len(i.data) for i in intervals])])
    begin = np.concatenate([s[:-1] + o for s, o in zip(starts, offsets[:-1], strict=True)])
    end = np.concatenate([s[1:] + o for s, o in zip(starts, offsets[:-1], strict=True)])
    source = np.frombuffer(b"".join(i.data for i in intervals) + bytes(8), np.uint8)
    per_tile = tile_of(jpeg.frame) * len(phases)
    component = np.tile(phases, len(begin) // len(phases))
    reset = np.cumsum([0] + [i.blocks for i in intervals])[:-1]

    old, new, taken = (np.zeros(len(begin), np.int64) for _ in range(3))
    for c, code in enumerate(scan.dc):
        assert code is not None
        here = np.flatnonzero(component == c)
        old[here], taken[here] = _dc(source, begin[here], code)
        new[here] = _rebased(old[here], here, reset, per_tile)
    changed = np.flatnonzero(new != old)
    sizes = np.frexp(np.abs(new[changed]).astype(np.float64))[1]
    if sizes.max(initial=0) > 11:
        raise Unsliceable("broken", "it has coefficients of more bits than there can be")
    codes: Codes = {}
    words, lengths = np.zeros((2, len(changed)), np.int64)
    for name in {dc for dc, _ in scan.identifiers}:
        used = [c for c, (dc, _) in enumerate(scan.identifiers) if dc == name]
        here = np.flatnonzero(np.isin(component[changed], used))
        code = scan.dc[used[0]]
        assert code is not None
        wider = extended(code, set(sizes[here].tolist()))
        if wider is not code:
            codes[0, name] = wider
        word, length = codewords(wider)
        words[here], lengths[here] = word[sizes[here]], length[sizes[here]]
    value = new[changed]
    words = words << sizes | np.where(value < 0, value + (1 << sizes) - 1, value)
    first = begin.copy()
    first[changed] += taken[changed]
    events = np.unique(np.concatenate([np.arange(0, len(begin), per_tile), reset, changed]))
    coded = np.zeros(len(begin), np.int64)
    coded[changed] = lengths + sizes
    stop = end[np.append(events[1:], len(end)) - 1]
    data, places = _spliced(np.unpackbits(source), first[events], stop, (words, lengths + sizes), coded[events] > 0,
                            events // per_tile)  # fmt: skip
    return _Scan(*joined(data, places), codes, again=False)


def _spliced(
    source: U8, first: I64, stop: I64, words: tuple[I64, I64], worded: npt.NDArray[np.bool_], tile: I64
) -> tuple[bytes, list[int]]:
    """(stretches of bits one after another, those of a tile up to a whole byte; where in there each tile begins)

    Args:
        source: u8[bits]
        first, stop: i64[S], of each stretch in the source.
        words: (i64[W], i64[W]) words and their bits, which come before a stretch that is ``worded``.
        tile: i64[S], of each stretch.
    """
    text = "".join([f"{word:0{bits}b}" for word, bits in zip(*(x.tolist() for x in words), strict=True)])
    coded = np.frombuffer(text.encode(), np.uint8) & 1
    bits = np.zeros(len(first), np.int64)
    bits[worded] = words[1]
    at = np.concatenate([[0], np.cumsum(bits)])
    lengths = np.bincount(tile, bits + stop - first).astype(np.int64)
    pads = -lengths % 8
    pad = np.where(np.diff(tile, append=-1) != 0, pads[tile], 0)
    ones = np.ones(8, np.uint8)
    parts = []
    for a, b, c, d, n in zip(*(x.tolist() for x in (at[:-1], at[1:], first, stop, pad)), strict=True):
        parts += [coded[a:b], source[c:d], ones[:n]]
    starts = np.concatenate([[0], np.cumsum(lengths + pads)]) // 8
    return np.packbits(np.concatenate(parts)).tobytes(), starts.tolist()


def _dc(source: U8, at: I64, code: HuffmanCode) -> tuple[I64, I64]:
    """(the difference that each DC code at a bit stands for, the bits that it takes)"""
    first = at >> 3
    window = np.zeros(len(at), np.int64)
    for i in range(5):
        window = window << 8 | source[first + i]
    symbols, lengths = lookup(code)
    shown = window >> (24 - (at & 7)) & 0xFFFF
    size, bits = symbols[shown].astype(np.int64), lengths[shown].astype(np.int64)
    value = window >> (40 - (at & 7) - bits - size) & (1 << size) - 1
    return np.where(value < 1 << size >> 1, value - (1 << size) + 1, value), bits + size


def _rebased(old: I64, blocks: I64, reset: I64, per_tile: int) -> I64:
    """The differences of one component's blocks if they begin anew with every tile.

    Args:
        old: as they were, begun anew at the blocks ``reset``.
        blocks: which blocks of the scan these are.
    """
    total = np.cumsum(old)
    interval = np.searchsorted(reset, blocks, side="right") - 1
    first = np.searchsorted(blocks, reset)
    before = np.concatenate([[0], total])[first]
    values = total - before[interval]
    new: I64 = np.diff(values, prepend=0)
    begins = np.diff(blocks // per_tile, prepend=-1) != 0
    new[begins] = values[begins]
    return new


# ---------------------------------------------------------------------- markers


def _file(data: bytes, jpeg: Jpeg, scan: _Scan) -> bytes:
    """The file around a new scan; what stands behind the old one's end stays behind it."""
    frame = jpeg.frame
    head, height_at = b"\xff\xd8", 0
    for part in jpeg.segments[1:-1]:
        content = b"\xff" + data[part.start : part.end].lstrip(b"\xff")
        marker = part.marker
        if marker == DRI or (marker in (DHT, DQT) and scan.again) or content[4:].startswith(IDENTIFIER):
            continue
        if marker in (SOF0, SOF1, SOF2):
            if scan.again:
                head += b"".join(_segment(DQT, table) for table in jpeg.quantization.values())
                wide = any(table[0] >> 4 for table in jpeg.quantization.values())
                content = bytes([0xFF, SOF1 if wide else SOF0]) + content[2:]
            height_at = len(head) + 5
        head += content
    first = jpeg.segments[1]
    at = first.end if first.marker in (APP0, APP1) and data[3] == first.marker else 2
    for (kind, name), code in scan.codes.items():
        head += _segment(DHT, bytes([kind << 4 | name, *code.counts]) + code.symbols)
    head += _segment(DRI, tile_of(frame).to_bytes(2, "big"))
    if scan.again:
        named = b"".join(bytes([c.id, 0x11 * min(i, 1)]) for i, c in enumerate(frame.components))
        head += _segment(SOS, bytes([len(frame.components)]) + named + bytes([0, 63, 0]))
    else:
        last = jpeg.segments[-1]
        head += b"\xff" + data[last.start : last.end].lstrip(b"\xff")
    index = segment(replace(frame, height_at=height_at), [len(head) + place for place in scan.starts], at)
    return head[:at] + index + head[at:] + scan.data + b"\xff\xd9" + data[jpeg.end :]


def _segment(marker: int, content: bytes) -> bytes:
    return bytes([0xFF, marker]) + (len(content) + 2).to_bytes(2, "big") + content
