"""Measurement of loaders that take turns in one process, so that disturbances affect all of them alike."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..errors import ConfigError
from ..system import cpu_seconds

Batches = Callable[[], Iterable[Any]]
"""Function that starts an epoch. It is called again when the epoch ends."""


@dataclass
class Result:
    """Images per second of every candidate in every round."""

    baseline: str
    rates: dict[str, list[float]] = field(default_factory=dict)
    """Images/s, one entry per round."""

    def median(self, name: str) -> float:
        """Return the median in images/s."""
        return statistics.median(self.rates[name])

    def spread(self, name: str) -> float:
        """Return (largest - smallest) / median of the rounds."""
        rates = self.rates[name]
        return (max(rates) - min(rates)) / self.median(name)

    def ratios(self, name: str) -> list[float]:
        """Return the ratio to the baseline within each round."""
        return [a / b for a, b in zip(self.rates[name], self.rates[self.baseline], strict=False)]

    def ratio(self, name: str) -> tuple[float, float, float]:
        """Return (median, smallest, largest) of the ratios."""
        ratios = self.ratios(name)
        return statistics.median(ratios), min(ratios), max(ratios)

    def to_dict(self) -> dict[str, Any]:
        """Return the result as JSON values."""
        return {
            "baseline": self.baseline,
            "candidates": {
                name: {
                    "images_per_second": self.rates[name],
                    "median": self.median(name),
                    "ratios": self.ratios(name),
                    "ratio": self.ratio(name)[0],
                }
                for name in self.rates
            },
        }


def count_images(batch: Any) -> int:
    """Return the number of images in a batch."""
    images = batch[0] if isinstance(batch, (list, tuple)) else batch
    return len(images[0] if isinstance(images, tuple) else images)  # several views of each image


def alternate(
    candidates: Mapping[str, Batches],
    *,
    rounds: int = 5,
    seconds: float = 3.0,
    warm_up: int = 6,
    baseline: str | None = None,
    synchronize: Callable[[], None] = lambda: None,
    progress: Callable[[str, int, float], None] = lambda name, round_, rate: None,
) -> Result:
    """Run every candidate for some seconds in each round.

    A measurement begins after ``warm_up`` batches, when batches loaded ahead during the pause are used up. A pause
    follows until this process and its children are idle, so that no candidate works during another's measurement. The
    first round (round 0), while caches fill, is not counted.

    Args:
        candidates: functions that start an epoch, by name. An epoch shorter than a measurement is restarted, and the
            restart counts.
        rounds: number of counted rounds.
        seconds: minimum length of a measurement, which has at least one batch.
        warm_up: at least the number of batches that a candidate loads ahead.
        baseline: candidate to divide by; the first one by default.
        synchronize: waits for the device, such as ``torch.cuda.synchronize``.
        progress: called with (name, round, images/s) after every measurement.

    Raises:
        ConfigError: there are no candidates, the baseline is unknown, or a candidate has no batches.
    """
    if not candidates or rounds < 1 or seconds < 0:
        raise ConfigError(f"alternate: {len(candidates)} candidates, {rounds} rounds, {seconds} seconds")
    result = Result(next(iter(candidates)) if baseline is None else baseline, {name: [] for name in candidates})
    if result.baseline not in candidates:
        raise ConfigError(f"alternate: baseline {baseline!r} must be one of {', '.join(candidates)}")
    streams = {name: _endless(name, start) for name, start in candidates.items()}
    try:
        for round_ in range(rounds + 1):
            for name, stream in streams.items():
                rate = _reading(stream, min(seconds, 1.0) if round_ == 0 else seconds, warm_up, synchronize)
                if round_:
                    result.rates[name].append(rate)
                progress(name, round_, rate)
                _until_idle()
    finally:
        for stream in streams.values():
            stream.close()
    return result


def _endless(name: str, start: Batches) -> Any:
    while True:
        empty = True
        for batch in start():
            empty = False
            yield count_images(batch)
        if empty:
            raise ConfigError(f"{name}: no batches; use a smaller batch_size")


def _reading(stream: Iterator[int], seconds: float, warm_up: int, synchronize: Callable[[], None]) -> float:
    """images/s"""
    for _ in range(warm_up):
        next(stream)
    synchronize()
    began, images = time.perf_counter(), 0
    while True:
        images += next(stream)
        if time.perf_counter() - began >= seconds:
            break
    synchronize()
    return images / (time.perf_counter() - began)


def _until_idle(limit: float = 5.0) -> None:
    """Wait, at most ``limit`` seconds, until this process and its children use less than a tenth of a core."""
    end = time.monotonic() + limit
    before = cpu_seconds()
    while time.monotonic() < end:
        time.sleep(0.1)
        now = cpu_seconds()
        if now - before <= 0.011:  # one clock tick of the kernel
            return
        before = now
