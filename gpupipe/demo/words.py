"""Words that terminal and page share."""

from __future__ import annotations

from ..bench.torchs_loader import TITLES

_ENGINES = {"dali": "gpupipe on DALI", "torch": "gpupipe's reference engine"}


def loader_name(name: str) -> str:
    """Return how people call a candidate of the measurement."""
    return _ENGINES.get(name) or TITLES[name]


def factor(ratio: float) -> str:
    """Return a text such as "2.7 times as fast"."""
    return f"{ratio:.2f} times as fast"
