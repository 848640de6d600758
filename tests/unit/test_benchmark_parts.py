"""Measurements in processes: one that fails, dies or hangs costs its own answer and no other."""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


def double(x: int) -> int:
    return 2 * x


def refuse(x: int) -> None:
    raise ValueError(f"{x} is refused")


def crash() -> None:
    faulthandler.disable()  # pytest's, in a forked process
    os.kill(os.getpid(), signal.SIGSEGV)


def hang() -> None:
    time.sleep(60)


def pid() -> int:
    return os.getpid()


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import _parts

    return _parts


@pytest.fixture
def forked(parts: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The same with processes that need not import torch; one test below starts them as benchmarks do."""
    context = multiprocessing.get_context("fork")
    monkeypatch.setattr(parts.multiprocessing, "get_context", lambda method: context)
    return parts


def test_every_part_has_an_answer_and_a_failure_has_its_reason(forked: Any) -> None:
    from _common import Budget

    given = [
        forked.Part("one", double, (4,)),
        forked.Part("refused", refuse, (7,)),
        forked.Part("crash", crash),
        forked.Part("hang", hang, seconds=0.5),
        forked.Part("two", double, (5,)),
    ]
    found = {a.part.name: a for a in forked.answers(given, 2, Budget(120))}
    assert len(found) == 5
    assert (found["one"].value, found["two"].value) == (8, 10)
    assert found["one"].failure is None and found["one"].brief == ""
    assert found["refused"].brief == "ValueError: 7 is refused" and "in refuse" in found["refused"].failure
    assert found["crash"].failure == "its process died with status -11"
    assert found["hang"].failure.startswith("no answer within")


def test_a_process_serves_until_something_goes_wrong_in_it(forked: Any) -> None:
    from _common import Budget

    given = [forked.Part("a", pid), forked.Part("b", pid), forked.Part("x", crash), forked.Part("c", pid)]
    found = {a.part.name: a.value for a in forked.answers(given, 1, Budget(120))}
    assert found["a"] == found["b"] != found["c"] != os.getpid()


@pytest.mark.slow
def test_what_has_no_time_left_is_left_out_or_stopped(parts: Any) -> None:
    from _common import Budget

    found = list(parts.answers([parts.Part("a", hang), parts.Part("b", double, (1,))], 1, Budget(3), reserve=1))
    assert [a.part.name for a in found] == ["a", "b"]
    assert found[0].failure.startswith("no answer within") and found[1].failure == "left out: no time"
