"""Tests of goodness of fit, so that no test needs scipy. Samples come from fixed seeds: a result never flickers."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt


def chi_square_p(observed: npt.ArrayLike, expected: npt.ArrayLike) -> float:
    """The probability of a worse fit, by Wilson and Hilferty's cube root; good for five or more expected per cell."""
    o, e = np.asarray(observed, np.float64).ravel(), np.asarray(expected, np.float64).ravel()
    o, e = np.broadcast_arrays(o, e)
    assert e.min() >= 5, "too few expected in a cell"
    k = len(o) - 1
    statistic = float(((o - e) ** 2 / e).sum())
    z = ((statistic / k) ** (1 / 3) - (1 - 2 / (9 * k))) / math.sqrt(2 / (9 * k))
    return 0.5 * math.erfc(z / math.sqrt(2))


def _kolmogorov(x: float) -> float:
    if x < 0.2:
        return 1.0
    return float(min(1.0, max(0.0, 2 * sum((-1) ** (j - 1) * math.exp(-2 * j * j * x * x) for j in range(1, 101)))))


def ks_uniform_p(x: npt.ArrayLike) -> float:
    """Kolmogorov-Smirnov against the uniform distribution on [0, 1)."""
    s = np.sort(np.asarray(x, np.float64).ravel())
    n = len(s)
    d = max(float((np.arange(1, n + 1) / n - s).max()), float((s - np.arange(n) / n).max()))
    return _kolmogorov((math.sqrt(n) + 0.12 + 0.11 / math.sqrt(n)) * d)


def ks_two_sample_p(a: npt.ArrayLike, b: npt.ArrayLike) -> float:
    """Kolmogorov-Smirnov: whether two samples come from one distribution. Ties make it cautious."""
    a, b = np.sort(np.asarray(a, np.float64).ravel()), np.sort(np.asarray(b, np.float64).ravel())
    both = np.concatenate([a, b])
    d = np.abs(np.searchsorted(a, both, side="right") / len(a) - np.searchsorted(b, both, side="right") / len(b)).max()
    n = len(a) * len(b) / (len(a) + len(b))
    return _kolmogorov((math.sqrt(n) + 0.12 + 0.11 / math.sqrt(n)) * float(d))
