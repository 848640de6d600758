"""Targets of a batch that its dataset knows."""

from __future__ import annotations

from typing import Any

import torch

from ..datasets.dataset import Dataset
from ..targets import Target
from ..types import Plan

__all__ = ["targets_of"]


def targets_of(dataset: Dataset, plan: Plan) -> Any:
    """Return labels i64[B], or a dictionary of all columns by name if there are others, or ``None``. On the CPU."""
    made: dict[str, Any] = {}
    for name, target in dataset.target_columns.items():
        values = target.of(plan.indices)
        if type(target).follow is not Target.follow:
            values = [target.follow(value, plan.ops or (), row) for row, value in enumerate(values)]
        batch = target.collate(values)
        made[name] = batch if isinstance(batch, list) else torch.from_numpy(batch)
    return made if dataset.columns else made.get("label")
