"""Random numbers as a pure function, without state or a generator that other code could advance.

A draw is ``uniforms(seed, epoch, transform, sample, k)``. It uses the counter-based scheme of Salmon et al., *Parallel
random numbers: as easy as 1, 2, 3* (SC 2011), with the 64-bit finalizer of SplitMix64 (Steele, Lea, Flood, *Fast
splittable pseudorandom number generators*, OOPSLA 2014) as the mixing function. The numbers do not change with the
version of numpy or torch.
"""

from __future__ import annotations

import functools
import hashlib

import numpy as np
import numpy.typing as npt

U64 = npt.NDArray[np.uint64]

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_M1 = np.uint64(0xBF58476D1CE4E5B9)
_M2 = np.uint64(0x94D049BB133111EB)
_S30, _S27, _S31, _S11 = (np.uint64(n) for n in (30, 27, 31, 11))
_TO_UNIT = 2.0**-53
_MASK = (1 << 64) - 1


def mix64(x: U64) -> U64:
    """Apply SplitMix64's finalizer: a bijection of 64-bit words in which every input bit affects every output bit.

    ``x`` is u64[...]. Returns a new array of the same shape.
    """
    x = x ^ (x >> _S30)
    x *= _M1
    x ^= x >> _S27
    x *= _M2
    x ^= x >> _S31
    return x


@functools.lru_cache(1024)
def key_of(name: str) -> int:
    """Return a 64-bit number for a name, equal in every process and every version of Python."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little")


def stream(*words: int | str) -> int:
    """Combine several words, such as (seed, epoch, transform), into one 64-bit key. The order of the words matters."""
    h = 0
    for word in words:
        w = key_of(word) if isinstance(word, str) else word & _MASK
        # Python integers are exact; the array code below computes the same modulo 2**64.
        # Each word enters a state that was mixed after the one before it, so (1, 2) and (2, 1) give different keys.
        h = (h ^ w) * 0x9E3779B97F4A7C15 + 0x632BE59BD9B4E019 & _MASK
        h = (h ^ h >> 30) * 0xBF58476D1CE4E5B9 & _MASK
        h = (h ^ h >> 27) * 0x94D049BB133111EB & _MASK
        h ^= h >> 31
    return h


def uniforms(
    seed: int, epoch: int, transform: int | str, sample: npt.NDArray[np.integer], k: int
) -> npt.NDArray[np.float64]:
    """Draw ``k`` independent uniform numbers in [0, 1) for every sample.

    Args:
        seed: any integer; only its low 64 bits count.
        epoch: any integer.
        transform: name or number of the transform that draws. Transforms never share numbers.
        sample: int[B], keys of the samples, normally indices in the dataset.
        k: count of numbers per sample.

    Returns:
        f64[B, k] with 53 random bits each. Row ``i`` depends on ``sample[i]`` only.
    """
    base = np.uint64(stream(seed, epoch, transform))
    s = np.asarray(sample).astype(np.uint64)
    with np.errstate(over="ignore"):
        # Mix twice. A single mix64((s + j) * _GOLDEN + base) would give number j + 1 of sample s and number j of
        # sample s + 1 the same bits.
        row = mix64(s * _GOLDEN + base)
        counter = (np.arange(1, k + 1, dtype=np.uint64) * _GOLDEN)[None, :]
        bits = mix64(row[:, None] + counter)
    # A float64 has 53 bits. Rounding all 64 of them could return 1.0, which is not in the range.
    return np.asarray((bits >> _S11).astype(np.float64) * _TO_UNIT)
