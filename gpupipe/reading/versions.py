"""What a batch is made of apart from its plan, told without reading it: its files as they are at this moment, and its
targets."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..datasets.base import Dataset
from ..sources.storage import look_closely
from ..types import Plan

__all__ = ["versions_of"]


def versions_of(dataset: Dataset, plan: Plan) -> list[Any]:
    """Of the files that a plan's samples are in sizes and times, or the number of the error; and the values of all
    columns, which may be arrays of the script's own. It takes some microseconds for each file of this machine; nobody
    asks a network.

    Of ``"files"`` and ``"clips"`` only. Two of them can be compared.
    """
    columns: list[Any] = [column.of(plan.indices) for column in dataset.target_columns.values()]
    values = [value.tobytes() if isinstance(value, np.ndarray) else value for value in columns]
    if dataset.kind == "files" and dataset.source.storage.remote:
        return values
    files = dict.fromkeys(map(dataset.file, plan.indices.tolist()))
    return [*values, *map(look_closely, files)]
