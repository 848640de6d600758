"""Words that terminal and page share."""

from __future__ import annotations

from ..bench.peers import PEERS

_ENGINES = {"dali": "gpupipe on DALI", "torch": "gpupipe's reference engine"}


def loader_name(name: str) -> str:
    """Return how people call a candidate of the measurement."""
    return _ENGINES.get(name) or PEERS[name].title


def factor(ratio: float) -> str:
    """Return a text such as "2.7 times as fast"."""
    return f"{ratio:.2f} times as fast"
