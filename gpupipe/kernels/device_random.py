"""Random fields from a sample's seed on the image's device, with the counter hash of :mod:`gpupipe.rng` in torch.

Bits do not depend on the device, because 64-bit integers wrap around everywhere. Normal numbers are computed in
float64, whose logarithm and cosine may differ between devices in the last bit, and rounded to float32, which nearly
always removes the difference.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..copy_stream import upload

_CHUNK = 1 << 22  # values at once: bounds the memory that float64 takes


def _signed(word: int) -> int:
    return word - (1 << 64) if word >> 63 else word


_GOLDEN = _signed(0x9E3779B97F4A7C15)
_M1, _M2 = _signed(0xBF58476D1CE4E5B9), _signed(0x94D049BB133111EB)


def on(values: Any, device: torch.device) -> Tensor:
    """Copy a numpy array to a device without waiting."""
    found = torch.from_numpy(np.ascontiguousarray(values))
    return upload([found], device)[0] if device.type == "cuda" else found


def _mix(x: Tensor) -> Tensor:
    """Apply :func:`gpupipe.rng.mix64` to int64, in place."""
    for shift, factor in ((30, _M1), (27, _M2), (31, None)):
        x ^= (x >> shift) & ((1 << (64 - shift)) - 1)  # torch shifts the sign in
        if factor is not None:
            x *= factor
    return x


def bits(seed: Any, count: int, device: torch.device, start: int = 0) -> Tensor:
    """Return i64[n, count], words ``start`` to ``start + count`` of each seed's stream.

    Args:
        seed: u64[n].
    """
    counter = torch.arange(start + 1, start + count + 1, dtype=torch.int64, device=device) * _GOLDEN
    return _mix(_streams(seed, device)[:, None] + counter)


def _streams(seed: Any, device: torch.device) -> Tensor:
    """Return i64[n], the beginning of each seed's stream."""
    return _mix(on(np.asarray(seed, np.uint64).view(np.int64), device).clone() * _GOLDEN)


def normal(seed: Any, count: int, device: torch.device) -> Tensor:
    """Return f32[n, count] with mean 0 and deviation 1, from one word each (Box and Muller, *A note on the generation
    of random normal deviates*, 1958)."""
    out = torch.empty(len(seed), count, dtype=torch.float32, device=device)
    step = max(1, _CHUNK // max(1, len(seed)))
    for start in range(0, count, step):
        out[:, start : start + step] = _normal(bits(seed, min(step, count - start), device, start))
    return out


def normal_at(seed: Any, row: Tensor, number: Tensor) -> Tensor:
    """Return f32[n, C], single numbers of :func:`normal`.

    Args:
        seed: u64[m].
        row: i64[n], whose seed.
        number: i64[n, C], which of its numbers, from 0.
    """
    streams = _streams(seed, number.device).index_select(0, row)
    return _normal(_mix(streams[:, None] + (number + 1) * _GOLDEN)).to(torch.float32)


def _normal(words: Tensor) -> Tensor:
    """Return f64 of the shape of ``words``."""
    radius = ((((words >> 32) & 0xFFFFFFFF) + 1).to(torch.float64) * 2.0**-32).log_().mul_(-2).sqrt_()
    return radius.mul_((words & 0xFFFFFFFF).to(torch.float64).mul_(2 * math.pi * 2.0**-32).cos_())
