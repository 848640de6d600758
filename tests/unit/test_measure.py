"""Candidates take turns, and the ratios are made within a round."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
import torch

from gpupipe.bench.measure import Result, alternate


def batches(seconds: float, log: list[str], name: str, count: int = 4) -> Iterator[list[torch.Tensor]]:
    for _ in range(count):
        log.append(name)
        time.sleep(seconds)
        yield [torch.zeros(10, 1), torch.zeros(10)]


def test_candidates_take_turns_and_epochs_begin_again() -> None:
    log: list[str] = []
    seen: list[tuple[str, int]] = []
    result = alternate(
        {"fast": lambda: batches(0.002, log, "fast"), "slow": lambda: batches(0.008, log, "slow")},
        rounds=3,
        seconds=0.05,
        warm_up=1,
        baseline="slow",
        progress=lambda name, round_, rate: seen.append((name, round_)),
    )
    assert seen == [(name, round_) for round_ in range(4) for name in ("fast", "slow")]
    turns = [a for a, b in zip(log, [None, *log], strict=False) if a != b]
    assert turns == ["fast", "slow"] * 4
    assert all(len(rates) == 3 for rates in result.rates.values())
    median, low, high = result.ratio("fast")
    assert 1.5 < low <= median <= high and result.ratio("slow") == (1, 1, 1)
    assert 10 / 0.002 > result.median("fast") > result.median("slow") > 0


def test_ratios_are_made_within_a_round() -> None:
    result = Result("b", {"a": [2.0, 40.0, 6.0], "b": [1.0, 10.0, 2.0]})
    assert result.ratios("a") == [2.0, 4.0, 3.0] and result.ratio("a") == (3.0, 2.0, 4.0)
    assert result.median("a") == 6.0 and result.spread("b") == 4.5
    assert result.to_dict()["candidates"]["a"]["ratio"] == 3.0


def test_what_cannot_be_measured_is_refused() -> None:
    with pytest.raises(ValueError, match="0 candidates"):
        alternate({})
    with pytest.raises(ValueError, match="is none of a"):
        alternate({"a": list}, baseline="b")
    with pytest.raises(ValueError, match="a: no batches"):
        alternate({"a": list}, rounds=1, seconds=0)
