"""Inverse distribution functions, which turn uniform numbers into numbers of other distributions.

One uniform number gives one number, so a transform knows beforehand how many it needs. Rejection methods do not.

The distribution functions are the series and continued fractions of the NIST Handbook, 8.7.1, 8.9.2 and 8.17.22.
Newton's method inverts them, in the logarithm of the probability and in ``log x`` (gamma) or ``log(x / (1 - x))``
(beta). The densities are log-concave there for all parameters, hence the distribution functions are too: from any
start, the first step reaches the near side of the root, and every further step comes closer.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from ..errors import ConfigError
from .fields import positive
from .ops.op import F64

_STEPS = 100
_TERMS = 10_000
_TINY = 1e-300
_EPS = 1e-15


def beta_quantile(u: npt.ArrayLike, a: float, b: float) -> F64:
    """Invert the distribution function of Beta(a, b) at ``u``.

    Args:
        u: f64[...] in [0, 1].
        a, b: positive.

    Returns:
        f64[...] in [0, 1], accurate to 1e-12; values near 0 are also accurate in their leading digits.
    """
    u, a, b = _checked(u, 1.0), positive(a, "beta_quantile: a"), positive(b, "beta_quantile: b")
    # The distribution function is x ** a for b = 1, and 1 - (1 - x) ** b for a = 1.
    if b == 1:
        return np.asarray(u ** (1 / a))
    if a == 1:
        with np.errstate(divide="ignore"):
            return np.asarray(-np.expm1(np.log1p(-u) / b))
    # The lower tail is more accurate, so compute the upper half as one minus a quantile of Beta(b, a).
    flat = u.ravel()
    out = np.empty_like(flat)
    upper = flat > 0.5
    out[~upper] = _beta_lower(flat[~upper], a, b)
    out[upper] = 1 - _beta_lower(1 - flat[upper], b, a)
    return out.reshape(u.shape)


def gamma_quantile(u: npt.ArrayLike, a: float) -> F64:
    """Invert the distribution function of Gamma(a) with scale 1 at ``u``.

    Args:
        u: f64[...] in [0, 1).
        a: positive.

    Returns:
        f64[...], with a relative accuracy of 1e-12. Results below the smallest float are 0.
    """
    return np.asarray(np.exp(_log_gamma_quantile(_checked(u, np.nextafter(1, 0)), positive(a, "gamma_quantile: a"))))


def dirichlet(u: npt.ArrayLike, alpha: float) -> F64:
    """Draw from the symmetric Dirichlet(alpha): gamma numbers divided by their sum.

    Source: Devroye, *Non-Uniform Random Variate Generation*, 1986, XI.4.

    Args:
        u: f64[..., n] in [0, 1).
        alpha: positive.

    Returns:
        f64[..., n], whose last axis sums to 1.
    """
    # The quantile of 0 has the logarithm -inf. If a whole row had it, the weights would be NaN.
    u = np.maximum(_checked(u, np.nextafter(1, 0)), 2.0**-54)
    logs = _log_gamma_quantile(u, positive(alpha, "dirichlet: alpha"))  # numbers of a small alpha underflow
    # Divide by the largest number first, so that not all of them can underflow to 0.
    weights = np.exp(logs - logs.max(axis=-1, keepdims=True))
    return np.asarray(weights / weights.sum(axis=-1, keepdims=True))


def _checked(u: npt.ArrayLike, most: float) -> F64:
    values = np.asarray(u, np.float64)
    if not ((values >= 0) & (values <= most)).all():
        raise ConfigError("u must contain probabilities, between 0 and 1")
    return values


def _beta_lower(p: F64, a: float, b: float) -> F64:
    """Return f64[n], the quantiles of ``p`` f64[n], at most 0.5."""
    log_beta = math.lgamma(a) + math.lgamma(b) - math.lgamma(a + b)
    with np.errstate(divide="ignore"):
        log_p = np.log(p)
    # Near 0 the distribution function is x ** a / (a * beta(a, b)).
    log_x = np.minimum((log_p + math.log(a) + log_beta) / a, math.log(a / (a + b)))
    t = log_x - np.log1p(-np.exp(log_x))
    todo = np.flatnonzero(np.isfinite(log_p))
    for _ in range(_STEPS):
        log_x, log_y = -np.logaddexp(0, -t[todo]), -np.logaddexp(0, t[todo])
        log_cdf = _log_beta_cdf(log_x, log_y, a, b, log_beta)
        # Newton in t = log(x / (1 - x)), where dx/dt = x (1 - x). The derivative of log F is x^a (1-x)^b / (B F), and
        # the step is the error of log F divided by it. All three may underflow, so use logarithms.
        step = (log_cdf - log_p[todo]) * np.exp(log_cdf - (a * log_x + b * log_y - log_beta))
        t[todo] -= step
        # Only numbers that still move are computed again.
        todo = todo[np.abs(step) > 1e-14 * np.maximum(1, np.abs(t[todo]))]
        if not todo.size:
            break
    return np.where(p > 0, np.exp(-np.logaddexp(0, -t)), 0.0)


def _log_beta_cdf(log_x: F64, log_y: F64, a: float, b: float, log_beta: float) -> F64:
    """Return the logarithm of the distribution function at x. ``log_y`` is the logarithm of 1 - x."""
    front = a * log_x + b * log_y - log_beta
    x, y = np.exp(log_x), np.exp(log_y)
    # Here the fraction converges fast, in about sqrt(max(a, b)) terms; elsewhere the fraction of the other tail does.
    near = x <= (a + 1) / (a + b + 2)
    out = np.empty_like(x)
    out[near] = front[near] - math.log(a) - np.log(_beta_fraction(x[near], a, b))
    far = ~near
    rest = np.exp(front[far]) / b / _beta_fraction(y[far], b, a)
    # The rest may round to 1, whose complement has no logarithm.
    out[far] = np.log1p(-np.minimum(rest, 1 - 2**-53))
    return out


def _beta_fraction(x: F64, a: float, b: float) -> F64:
    """Evaluate 1 + d1 / (1 + d2 / (1 + ...)) of NIST 8.17.22 with Lentz's method."""
    f, c, d = np.ones_like(x), np.ones_like(x), np.zeros_like(x)
    for k in range(1, _TERMS):
        m = k // 2
        if k % 2:
            coefficient = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        else:
            coefficient = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        d = 1 / _not_zero(1 + coefficient * d)
        c = _not_zero(1 + coefficient / c)
        f *= c * d
        if not (np.abs(c * d - 1) > _EPS).any():
            break
    return f


def _log_gamma_quantile(u: F64, a: float) -> F64:
    """Return f64[...], logarithms of the quantiles; minus infinity for a quantile of 0."""
    with np.errstate(divide="ignore"):
        if a == 1:
            return np.asarray(np.log(-np.log1p(-u)))
        flat = u.ravel()
        log_p, log_q = np.log(flat), np.log1p(-flat)
    upper = flat > 0.5
    # Near 0 the distribution function is x ** a / gamma(a + 1).
    t = np.where(upper, math.log(a + 1), np.minimum((log_p + math.lgamma(a + 1)) / a, math.log(a + 1)))
    todo = np.flatnonzero(flat > 0)
    for _ in range(_STEPS):
        below, above = _log_gamma_cdf(t[todo], a)
        # Newton in t = log x, where dx/dt = x, so the density in t is x^a e^-x / Gamma(a). In the upper half the upper
        # probability is the accurate one.
        density = a * t[todo] - np.exp(t[todo]) - math.lgamma(a)
        # exp() overflows above 709.
        step = np.where(
            upper[todo],
            (log_q[todo] - above) * np.exp(np.minimum(above - density, 700)),
            (below - log_p[todo]) * np.exp(np.minimum(below - density, 700)),
        )
        t[todo] -= step
        todo = todo[np.abs(step) > 1e-14 * np.maximum(1, np.abs(t[todo]))]
        if not todo.size:
            break
    return t.reshape(u.shape)


def _log_gamma_cdf(t: F64, a: float) -> tuple[F64, F64]:
    """Return the logarithms of the probabilities below and above ``exp(t)``."""
    x = np.exp(t)
    front = a * t - x - math.lgamma(a)
    below, above = np.empty_like(x), np.empty_like(x)
    near = x < a + 1  # here the series is short; elsewhere the fraction is
    below[near] = front[near] + np.log(_gamma_series(x[near], a))
    # As for beta: the tail may round to 1.
    above[near] = np.log1p(-np.minimum(np.exp(below[near]), 1 - 2**-53))
    far = ~near
    above[far] = front[far] + np.log(_gamma_fraction(x[far], a))
    below[far] = np.log1p(-np.minimum(np.exp(above[far]), 1 - 2**-53))
    return below, above


def _gamma_series(x: F64, a: float) -> F64:
    """Evaluate 1/a + x/(a (a+1)) + ... of NIST 8.7.1."""
    term = np.full_like(x, 1 / a)
    total = term.copy()
    for n in range(1, _TERMS):
        term *= x / (a + n)
        total += term
        if not (term > total * _EPS).any():
            break
    return total


def _gamma_fraction(x: F64, a: float) -> F64:
    """Evaluate 1/(x + 1 - a - 1 (1 - a)/(x + 3 - a - ...)) of NIST 8.9.2 with Lentz's method."""
    base = x + 1 - a
    c = np.full_like(x, 1 / _TINY)
    d = 1 / _not_zero(base)
    f = d.copy()
    for n in range(1, _TERMS):
        coefficient = -n * (n - a)
        base = base + 2
        d = 1 / _not_zero(coefficient * d + base)
        c = _not_zero(base + coefficient / c)
        f *= c * d
        if not (np.abs(c * d - 1) > _EPS).any():
            break
    return f


def _not_zero(x: F64) -> F64:
    return np.where(np.abs(x) < _TINY, _TINY, x)
