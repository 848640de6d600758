"""Huffman codes of JPEG (T.81, annexes C, F and K) as tables that arrays of 16 bits are looked up in."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt

from .markers import HuffmanCode, Unsliceable

__all__ = ["END", "NO_CODE", "PAIR", "code_of", "codewords", "extended", "lookup", "steps"]

U8 = npt.NDArray[np.uint8]
U16 = npt.NDArray[np.uint16]
U32 = npt.NDArray[np.uint32]

END, NO_CODE = 128, 512
"""What :func:`steps` adds to the coefficient for an end of block, and where no code fits."""
PAIR = 4 << 16
"""Entries of :func:`steps`."""


def codewords(code: HuffmanCode) -> tuple[U32, U8]:
    """(u32[256], u8[256]): the word of each symbol and its bits, 0 of those without one."""
    words, bits = np.zeros(256, np.uint32), np.zeros(256, np.uint8)
    word = at = 0
    for length, count in enumerate(code.counts, 1):
        for symbol in code.symbols[at : at + count]:
            words[symbol], bits[symbol] = word, length
            word += 1
        at += count
        word <<= 1
    return words, bits


@lru_cache(32)
def lookup(code: HuffmanCode) -> tuple[U8, U8]:
    """(u8[65536], u8[65536]): the symbol that 16 bits begin with, and the bits of its code, 0 if there is none."""
    repeats = [1 << (16 - length) for length, count in enumerate(code.counts, 1) for _ in range(count)]
    lengths = [length for length, count in enumerate(code.counts, 1) for _ in range(count)]
    left = (1 << 16) - sum(repeats)
    symbols = np.frombuffer(code.symbols + b"\0", np.uint8)
    return symbols.repeat([*repeats, left]), np.array([*lengths, 0], np.uint8).repeat([*repeats, left])


@lru_cache(32)
def steps(dc: HuffmanCode, ac: HuffmanCode) -> U16:
    """u16[4 * 65536]: what 16 bits mean, 64 times the coefficients that they bring plus the bits that they take.

    Four tables: at the beginning of a block the DC code and as many AC codes as the 16 bits show for certain; inside a
    block as many AC codes; and for single steps one DC code, one AC code. The bits behind a code are counted even if
    they are not among the 16. An end of block counts as :data:`END` coefficients, a word without a code as
    :data:`NO_CODE`.
    """
    first, after = _single(dc, dc=True), _single(ac, dc=False)
    # Of so many bits that are known: the entry of bits x out of n is chains[1 << n | x].
    chains, lengths = np.zeros(2 << 16, np.uint16), lookup(ac)[1]
    for n in range(1, 17):
        sure = lengths[:: 1 << (16 - n)] <= n
        chains[1 << n : 2 << n] = _chained(after[:: 1 << (16 - n)], chains, n) * sure
    return np.concatenate([_chained(first, chains, 16), chains[1 << 16 :], first, after])


def _single(code: HuffmanCode, *, dc: bool) -> U16:
    symbols, lengths = lookup(code)
    bits = lengths.astype(np.uint16) + (symbols if dc else symbols & 15)
    if dc:
        brings = np.ones_like(bits)
        fits = (lengths > 0) & (symbols <= 15)
    else:
        brings = (symbols >> 4).astype(np.uint16) + 1
        brings[symbols == 0] = END
        fits = (lengths > 0) & (((symbols & 15) > 0) | (symbols == 0) | (symbols == 0xF0))
    brings[~fits], bits[~fits] = NO_CODE, 1
    return np.asarray(brings << 6 | bits, np.uint16)


def _chained(first: U16, chains: U16, n: int) -> U16:
    """Entries with those that follow in what is left of n bits."""
    left = np.maximum(n - (first & 63).astype(np.int32), 0)
    mask = (1 << left) - 1
    rest = chains[(np.arange(len(first), dtype=np.int32) & mask) + mask + 1]
    brings = first >> 6
    # Nothing follows an end; and past coefficient 63 is another block, of which no entry may tell.
    goes_on = (brings < END) & (brings + (rest >> 6 & 127) < 64) & (rest >> 6 < NO_CODE)
    return np.asarray(first + rest * goes_on, np.uint16)


def code_of(frequencies: npt.NDArray[np.int64]) -> HuffmanCode:
    """The shortest code for symbols 0 to 255 that come so often, with at most 16 bits and none of all ones (T.81, K.2).

    Lengths by package-merge (L. Larmore and D. Hirschberg, *A fast algorithm for optimal length-limited Huffman codes*,
    1990); one more symbol that never comes takes the word of all ones.
    """
    symbols = np.flatnonzero(frequencies)
    if not len(symbols):
        return HuffmanCode((0,) * 16, b"")
    leaves = sorted([(int(frequencies[s]), (int(s),)) for s in symbols] + [(0, (256,))])
    packages: list[tuple[int, tuple[int, ...]]] = []
    for _ in range(16):
        merged = sorted(leaves + packages, key=lambda item: item[0])
        packages = [(a[0] + b[0], a[1] + b[1]) for a, b in zip(merged[0::2], merged[1::2], strict=False)]
    lengths = np.zeros(257, np.int64)
    for _, members in packages[: len(leaves) - 1]:
        for s in members:
            lengths[s] += 1
    # The word of all ones is the last of the longest.
    order = sorted((int(lengths[s]), -int(frequencies[s]), int(s)) for s in symbols)
    counts = np.bincount([length for length, _, _ in order], minlength=17)[1:17]
    assert order[-1][0] <= lengths[256]
    return HuffmanCode(tuple(counts.tolist()), bytes(s for _, _, s in order))


def extended(code: HuffmanCode, symbols: set[int]) -> HuffmanCode:
    """``code`` with words for further symbols; those it has keep theirs.

    The word of all ones, which no code uses, is the beginning of longer ones. Raises :class:`Unsliceable` if 16 bits
    leave no room.
    """
    missing = sorted(symbols - set(code.symbols))
    if not missing:
        return code
    counts = list(code.counts)
    used = sum(count << (16 - length) for length, count in enumerate(counts, 1))
    if used + len(missing) >= 1 << 16:
        raise Unsliceable("unusual", "a Huffman table has no room for another code")
    counts[15] += len(missing)
    return HuffmanCode(tuple(counts), code.symbols + bytes(missing))
