"""Arrays of numbers out of uniform ones, and of one number."""

from __future__ import annotations

from typing import Any

import numpy as np

from .ops.base import F64, I32, I64, U64, Mask

__all__ = ["below", "between", "by_chance", "everywhere", "filled", "i32", "seeds"]


def below(u: F64, n: I64 | int) -> I64:
    """A uniform integer in [0, n) from a uniform number in [0, 1)."""
    return np.minimum((u * n).astype(np.int64), n - 1)


def between(u: F64, low: float, high: float) -> F64:
    """A number uniform between ``low`` and ``high``."""
    return low + (high - low) * u


def by_chance(u: F64, p: float) -> tuple[Mask, bool]:
    """(bool[B], true with probability ``p`` of uniforms f64[B]; whether it is true in any case)"""
    return u < p, p == 1.0


def seeds(u: F64) -> U64:
    """u64[B] of uniform numbers f64[B]: their 53 random bits."""
    return (u * 2.0**53).astype(np.uint64)


def everywhere(n: int) -> Mask:
    """bool[n]: a mask that leaves nothing out."""
    return np.ones(n, np.bool_)


def filled(n: int, value: int) -> I64:
    """i64[n] of one number."""
    return np.full(n, value, np.int64)


def i32(a: np.ndarray[Any, Any]) -> I32:
    """As ops have sizes and places."""
    return a.astype(np.int32)
