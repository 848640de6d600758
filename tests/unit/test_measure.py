"""Candidates take turns, and the ratios are made within a round."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

import pytest
import torch

from gpupipe.bench import measure
from gpupipe.bench.measure import Result, alternate


class Clock:
    """Stands still but for the work that is done."""

    now = 0.0

    def perf_counter(self) -> float:
        return self.now


def test_candidates_take_turns_and_epochs_begin_again(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr(measure, "time", clock)
    monkeypatch.setattr(measure, "_until_idle", lambda: None)
    log: list[str] = []
    seen: list[tuple[str, int]] = []

    def batches(seconds: float, name: str) -> Iterator[list[torch.Tensor]]:
        for _ in range(4):
            log.append(name)
            clock.now += seconds
            yield [torch.zeros(10, 1), torch.zeros(10)]

    result = alternate(
        {"fast": lambda: batches(1 / 512, "fast"), "slow": lambda: batches(1 / 128, "slow")},
        rounds=3,
        seconds=0.05,
        warm_up=1,
        baseline="slow",
        progress=lambda name, round_, rate: seen.append((name, round_)),
    )
    assert seen == [(name, round_) for round_ in range(4) for name in ("fast", "slow")]
    # One batch to warm up, and as many as take 0.05 s.
    assert [(name, len(list(turn))) for name, turn in groupby(log)] == [("fast", 27), ("slow", 8)] * 4
    assert result.rates == {"fast": [5120.0] * 3, "slow": [1280.0] * 3}
    assert result.ratio("fast") == (4, 4, 4) and result.ratio("slow") == (1, 1, 1)


def test_ratios_are_made_within_a_round() -> None:
    result = Result("b", {"a": [2.0, 40.0, 6.0], "b": [1.0, 10.0, 2.0]})
    assert result.ratios("a") == [2.0, 4.0, 3.0] and result.ratio("a") == (3.0, 2.0, 4.0)
    assert result.median("a") == 6.0 and result.spread("b") == 4.5
    assert result.to_dict()["candidates"]["a"]["ratio"] == 3.0


def test_what_cannot_be_measured_is_refused() -> None:
    with pytest.raises(ValueError, match="0 candidates"):
        alternate({})
    with pytest.raises(ValueError, match="must be one of a"):
        alternate({"a": list}, baseline="b")
    with pytest.raises(ValueError, match="a: no batches"):
        alternate({"a": list}, rounds=1, seconds=0)
