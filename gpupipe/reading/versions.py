"""Versions of a batch's inputs besides its plan: the current state of its files, and its targets. Reads no file
content."""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from ..datasets.dataset import Dataset
from ..sources.storage import look_closely
from ..types import Plan


def versions_of(dataset: Dataset, plan: Plan) -> list[Any]:
    """Return sizes and times of the files of a plan's samples, or error numbers, and the values of all columns.

    Columns may be arrays of the script's own. The result can be compared with another. It takes some microseconds per
    local file, and makes no network request. Only for ``"files"`` and ``"clips"``.
    """
    values = [_comparable(column.of(plan.indices)) for column in dataset.target_columns.values()]
    if dataset.kind == "files" and dataset.source.storage.remote:
        return values
    files = dict.fromkeys(map(dataset.file, plan.indices.tolist()))
    return [*values, *map(look_closely, files)]


def _comparable(values: Any) -> Any:
    """Return values that ``==`` compares: bytes of arrays, and the state of files."""
    if isinstance(values, np.ndarray):
        return values.tobytes()
    if isinstance(values, os.PathLike):
        return _comparable(os.fsdecode(values)), look_closely(os.fsencode(values))
    return [_comparable(value) for value in values] if isinstance(values, (list, tuple)) else values
