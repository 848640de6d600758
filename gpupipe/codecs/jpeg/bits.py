"""Codes of many lengths put together to bytes, and tiles of bytes to a scan with restart markers."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import numpy.typing as npt

__all__ = ["joined", "packed"]

I64 = npt.NDArray[np.int64]


def packed(words: I64, lengths: I64, ends: I64) -> tuple[bytes, I64]:
    """(the words one after another, with ones up to a whole byte at the end of each tile; i64[tiles + 1] where each
    tile's bytes begin)

    Args:
        words, lengths: i64[N], each at most 32 bits and those above ``length`` zero.
        ends: i64[tiles], how many words there are up to the end of each tile.
    """
    after = np.concatenate([[0], np.cumsum(lengths)])
    bits = np.diff(after[np.concatenate([[0], ends])])
    pads = -bits % 8
    starts = np.concatenate([[0], np.cumsum(bits + pads)])
    shift = (starts[:-1] - after[np.concatenate([[0], ends[:-1]])]).repeat(np.diff(ends, prepend=0))
    at = np.concatenate([after[:-1] + shift, starts[1:] - pads])
    words = np.concatenate([words, (1 << pads) - 1])
    lengths = np.concatenate([lengths, pads])
    # Each word lies in one or two of 32 bits, and no two have a bit in common: their sum is them together. The sum is
    # exact, because 64-bit floats are up to 2 ** 53.
    slot, free = at >> 5, 64 - (at & 31) - lengths
    slots = int(starts[-1] // 32) + 2
    wide = words.astype(np.uint64) << free.astype(np.uint64)
    high = np.bincount(slot, (wide >> np.uint64(32)).astype(np.float64), slots)
    low = np.bincount(slot + 1, (wide & np.uint64(0xFFFFFFFF)).astype(np.float64), slots)
    data = (high + low).astype(np.uint64).astype(">u4").tobytes()
    return data[: int(starts[-1]) // 8], starts // 8


def joined(data: bytes, starts: Sequence[int]) -> tuple[bytes, list[int]]:
    """(tiles with stuffed zeros and restart markers between them; where each begins in there, and the end)"""
    tiles = [data[a:b].replace(b"\xff", b"\xff\0") for a, b in pairwise(starts)]
    at, places, parts = 0, [], []
    for i, tile in enumerate(tiles):
        places.append(at)
        parts += [tile, b"\xff" + bytes([0xD0 + i % 8])]
        at += len(tile) + 2
    parts.pop()
    return b"".join(parts), [*places, at - 2]
