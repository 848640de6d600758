"""Coefficients to the entropy-coded bytes of one sequential scan, with a restart behind every tile."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .bits import packed
from .huffman import code_of, codewords
from .markers import Component, HuffmanCode, Unsliceable

__all__ = ["Encoded", "encode"]

I16 = npt.NDArray[np.int16]
I64 = npt.NDArray[np.int64]

_ZRL = 0xF0


@dataclass(frozen=True)
class Encoded:
    """A scan. The first component has the tables 0, the others 1."""

    data: bytes
    """Without stuffed zeros and markers."""
    starts: I64
    """i64[tiles + 1]: where each tile begins in there."""
    codes: dict[tuple[int, int], HuffmanCode]
    """(class, identifier) to the code, class 0 being DC."""


def encode(planes: list[I16], components: tuple[Component, ...], tile: int) -> Encoded:
    """T.81, F.1.2, by the shortest codes for these symbols.

    Args:
        planes: of each component i16[rows, columns, 64], as :func:`~.coefficients.coefficients` gives them.
        tile: MCUs of one.

    Raises :class:`Unsliceable` if a coefficient has more bits than a sequential file of 8 bits takes.
    """
    blocks, component = _interleaved(planes, components)
    n, per_tile = len(blocks), tile * (sum(c.h * c.v for c in components) if len(components) > 1 else 1)
    dc = _differences(blocks[:, 0].astype(np.int64), component, per_tile)
    block, k = np.nonzero(blocks[:, 1:])
    ac = blocks[block, k + 1].astype(np.int64)
    first = np.diff(block, prepend=-1) != 0
    run = np.diff(k, prepend=0) - 1
    run[first] = k[first]
    zrl = run >> 4
    last = np.zeros(n, np.int64)
    last[block] = k + 1
    ends = last < 63

    # Every block is one DC code, for each coefficient a code after some for 16 zeros, and an end unless the last is
    # there. What is not set below stays a code for 16 zeros.
    ended = np.concatenate([[0], np.cumsum(ends)])
    behind = np.cumsum(zrl + 1)
    of_block = np.concatenate([[0], behind])[np.searchsorted(block, np.arange(n + 1))]
    begin = np.arange(n + 1) + ended + of_block
    at_ac = behind + block + ended[block]
    at_end = begin[1:][ends] - 1
    symbols = np.full(int(begin[-1]), _ZRL)
    table = (component.clip(max=1) + 2).repeat(np.diff(begin))
    values, sizes = np.zeros((2, len(symbols)), np.int64)
    sizes[at_ac], values[at_ac] = _magnitude(ac)
    symbols[at_ac] = (run & 15) << 4 | sizes[at_ac]
    symbols[at_end] = 0
    at_dc = begin[:-1]
    sizes[at_dc], values[at_dc] = _magnitude(dc)
    symbols[at_dc] = sizes[at_dc]
    table[at_dc] -= 2
    if sizes[at_dc].max() > 11 or sizes[at_ac].max(initial=0) > 10:
        raise Unsliceable("broken", "it has coefficients of more bits than there can be")

    counts = np.bincount(table << 8 | symbols, minlength=1024).reshape(4, 256)
    codes = {(i >> 1, i & 1): code_of(counts[i]) for i in range(4) if counts[i].any()}
    words, bits = np.zeros((2, 1024), np.int64)
    for (kind, identifier), code in codes.items():
        here = (kind << 1 | identifier) * 256
        words[here : here + 256], bits[here : here + 256] = codewords(code)
    chosen = table << 8 | symbols
    data, starts = packed(words[chosen] << sizes | values, bits[chosen] + sizes, begin[per_tile::per_tile])
    return Encoded(data, starts, codes)


def _interleaved(planes: list[I16], components: tuple[Component, ...]) -> tuple[I16, I64]:
    """(i16[N, 64] the blocks in the order of one scan, i64[N] their components)"""
    if len(components) == 1:
        blocks = planes[0].reshape(-1, 64)
        return blocks, np.zeros(len(blocks), np.int64)
    parts = []
    for plane, c in zip(planes, components, strict=True):
        rows, columns = plane.shape[0] // c.v, plane.shape[1] // c.h
        parts.append(plane.reshape(rows, c.v, columns, c.h, 64).transpose(0, 2, 1, 3, 4).reshape(rows, columns, -1, 64))
    turns = np.arange(len(components)).repeat([part.shape[2] for part in parts])
    blocks = np.concatenate(parts, axis=2).reshape(-1, 64)
    return blocks, np.tile(turns, len(blocks) // len(turns))


def _differences(dc: I64, component: I64, per_tile: int) -> I64:
    """From the block of the same component before it; the first ones of a tile from 0."""
    out = dc.copy()
    for c in range(int(component.max()) + 1):
        here = np.flatnonzero(component == c)
        same = here[1:] // per_tile == here[:-1] // per_tile
        out[here[1:]] -= np.where(same, dc[here[:-1]], 0)
    return out


def _magnitude(values: I64) -> tuple[I64, I64]:
    """(bits of each value, the bits themselves) as T.81, F.1.2.1 writes them: a negative one less 1."""
    sizes = np.frexp(np.abs(values).astype(np.float64))[1].astype(np.int64)
    return sizes, np.where(values < 0, values + (1 << sizes) - 1, values)
