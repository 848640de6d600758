"""Arrays of per-sample numbers, made from uniform numbers or constants."""

from __future__ import annotations

from typing import Any

import numpy as np

from .ops.op import F64, I32, I64, U64, Mask


def below(u: F64, n: I64 | int) -> I64:
    """Map uniform numbers in [0, 1) to uniform integers in [0, n)."""
    # The product may round up to n.
    return np.minimum((u * n).astype(np.int64), n - 1)


def between(u: F64, low: float, high: float) -> F64:
    """Map uniform numbers in [0, 1) to numbers uniform between ``low`` and ``high``."""
    return low + (high - low) * u


def uniform_weights(u: F64) -> F64:
    """Map uniform numbers f64[..., n] to weights with a sum of 1, all equally likely: Dirichlet(1), by exponential
    numbers divided by their sum."""
    # A row of zeros would have no weights.
    logs = np.log(-np.log1p(-np.maximum(u, 2.0**-54)))
    parts = np.exp(logs - logs.max(axis=-1, keepdims=True))
    return np.asarray(parts / parts.sum(axis=-1, keepdims=True))


def by_chance(u: F64, p: float) -> tuple[Mask, bool]:
    """Return (mask bool[B], true with probability ``p``; whether it is always true), given uniform numbers f64[B]."""
    return u < p, p == 1.0


def seeds(u: F64) -> U64:
    """Return u64[B] seeds: the 53 random bits of uniform numbers f64[B]."""
    return (u * 2.0**53).astype(np.uint64)


def everywhere(n: int) -> Mask:
    """Return bool[n], a mask that selects all images."""
    return np.ones(n, np.bool_)


def filled(n: int, value: int) -> I64:
    """Return i64[n], filled with ``value``."""
    return np.full(n, value, np.int64)


def i32(a: np.ndarray[Any, Any]) -> I32:
    """Convert to int32, the type of sizes and positions in ops."""
    return a.astype(np.int32)
