"""Random numbers as a pure function: no state, no history, no generator that somebody else could advance.

A draw is ``uniforms(seed, epoch, transform, sample, k)``. It is the counter-based scheme of Salmon et al.,
*Parallel random numbers: as easy as 1, 2, 3* (SC 2011), with the 64-bit finaliser of SplitMix64
(Steele, Lea, Flood, *Fast splittable pseudorandom number generators*, OOPSLA 2014) as the mixing function.
The numbers are ours to keep: they do not change with the version of numpy or torch.
"""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt

__all__ = ["key_of", "mix64", "stream", "uniforms"]

U64 = npt.NDArray[np.uint64]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_M1 = np.uint64(0xBF58476D1CE4E5B9)
_M2 = np.uint64(0x94D049BB133111EB)
_S30, _S27, _S31, _S11 = (np.uint64(n) for n in (30, 27, 31, 11))
_TO_UNIT = 2.0**-53
_MASK = (1 << 64) - 1


def mix64(x: U64) -> U64:
    """SplitMix64's finaliser: a bijection of 64-bit words in which every input bit reaches every output bit.

    ``x``: u64[...]. Returns a new array of the same shape.
    """
    x = x ^ (x >> _S30)
    x *= _M1
    x ^= x >> _S27
    x *= _M2
    x ^= x >> _S31
    return x


def key_of(name: str) -> int:
    """A 64-bit number for a name, the same in every process and every version of Python."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little")


def stream(*words: int | str) -> int:
    """One 64-bit key out of several words, such as (seed, epoch, transform). The order of the words counts."""
    h = 0
    for word in words:
        w = key_of(word) if isinstance(word, str) else word & _MASK
        # Python integers are exact here; the array code below does the same steps modulo 2**64.
        h = (h ^ w) * 0x9E3779B97F4A7C15 + 0x632BE59BD9B4E019 & _MASK
        h = (h ^ h >> 30) * 0xBF58476D1CE4E5B9 & _MASK
        h = (h ^ h >> 27) * 0x94D049BB133111EB & _MASK
        h ^= h >> 31
    return h


def uniforms(
    seed: int, epoch: int, transform: int | str, sample: npt.NDArray[np.integer], k: int
) -> npt.NDArray[np.float64]:
    """``k`` independent uniform numbers in [0, 1) for every sample.

    Args:
        seed: any integer; its low 64 bits count.
        epoch: any integer.
        transform: which transform draws, by name or number. Two transforms never share numbers.
        sample: int[B], the keys of the samples, normally positions in the dataset.
        k: how many numbers per sample.

    Returns:
        f64[B, k] with 53 random bits each. Row ``i`` depends on ``sample[i]`` and on no other row.
    """
    base = np.uint64(stream(seed, epoch, transform))
    s = np.asarray(sample).astype(np.uint64)
    with np.errstate(over="ignore"):
        row = mix64(s * _GOLDEN + base)
        counter = (np.arange(1, k + 1, dtype=np.uint64) * _GOLDEN)[None, :]
        bits = mix64(row[:, None] + counter)
    return np.asarray((bits >> _S11).astype(np.float64) * _TO_UNIT)
