"""Grids of parameters of which ``make test`` runs half."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

import pytest

__all__ = ["half"]


def half(*axes: Iterable[Any]) -> list[Any]:
    """Return all combinations of the values of some axes, and mark every second one as ``thorough``.

    The marks form a chessboard, so that each value meets half of the values of every other axis. A tuple stands for
    several parameters.
    """
    found = []
    for numbered in itertools.product(*map(enumerate, axes)):
        values = [part for _, value in numbered for part in (value if type(value) is tuple else (value,))]
        marks = [pytest.mark.thorough] if sum(number for number, _ in numbered) % 2 else []
        found.append(pytest.param(*values, marks=marks))
    return found
