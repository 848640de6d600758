"""What torch's loader gives, gpupipe's gives too."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from .__main__ import judged, ways
from .base import Outcome, cases, differs

pytest.importorskip("nvidia.dali")
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # damaged files are Pillow's


def parameters(workers: list[int], starts: list[str]) -> list[Any]:
    """Return (name of a case, arguments of the loader)."""
    return [
        pytest.param(name, arguments, id="-".join(map(str, (name, *arguments.values()))))
        for name, case in cases().items()
        for arguments in ways(case, workers, starts)
    ]


@pytest.mark.part(of=40)
@pytest.mark.parametrize(("name", "arguments"), parameters([0, 2], ["fork"]))
def test_it_gives_what_torchs_loader_gives(name: str, arguments: dict[str, Any]) -> None:
    found, _ = judged(cases()[name], arguments)
    assert found is None


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "arguments"), parameters([0, 2], ["fork"]))
def test_it_gives_nearly_the_same_with_dali(name: str, arguments: dict[str, Any]) -> None:
    found, _ = judged(cases()[name], arguments, exact=False)
    assert found is None


@pytest.mark.thorough
@pytest.mark.parametrize(("name", "arguments"), parameters([2], ["spawn"]))
def test_it_does_so_in_processes_that_are_spawned(name: str, arguments: dict[str, Any]) -> None:
    found, _ = judged(cases()[name], arguments)
    assert found is None


def test_differences_are_found() -> None:
    assert differs(Outcome([1, 2]), Outcome([1, 3])) == "[1]: 2, not 3"
    assert differs(Outcome({"a": 1}), Outcome({"a": 1})) is None
    assert "raises ValueError" in str(differs(Outcome(error=ValueError()), Outcome(1)))
    assert "apart" in str(differs(Outcome(np.zeros(2, np.float32)), Outcome(np.full(2, 0.001, np.float32))))
