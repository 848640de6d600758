"""Words that terminal and page share."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from ..bench.measure import Result
from ..bench.torchs_loader import TITLES

_ENGINES = {"dali": "gpupipe on DALI", "torch": "gpupipe's reference engine"}


def loader_name(name: str) -> str:
    """Return how people call a candidate of the measurement."""
    return _ENGINES.get(name) or TITLES[name]


def factor(ratio: float) -> str:
    """Return a text such as "2.7 times as fast"."""
    return f"{ratio:.2f} times as fast"


@dataclass(frozen=True)
class MedianRound:
    """The round whose ratio is the median, so that the ratio is that of the rates shown beside it."""

    name: str
    """The loader that is compared with the baseline."""
    rates: dict[str, float]
    """images/s of the loader and the baseline in this round."""
    ratio: float
    low: float
    high: float
    """Smallest and largest ratio of all rounds."""

    @staticmethod
    def of(result: Result) -> MedianRound:
        (name,) = (name for name in result.rates if name != result.baseline)
        ratios = result.ratios(name)
        ratio = statistics.median_low(ratios)
        number = ratios.index(ratio)
        rates = {one: result.rates[one][number] for one in (name, result.baseline)}
        return MedianRound(name, rates, ratio, min(ratios), max(ratios))
