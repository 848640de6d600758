"""The targets of a batch, from what its dataset knows of them."""

from __future__ import annotations

from typing import Any

import torch

from ..datasets.base import Dataset
from ..targets import Target
from ..types import Plan

__all__ = ["targets_of"]


def targets_of(dataset: Dataset, plan: Plan) -> Any:
    """A tensor, a tuple of them if there are several targets, or ``None`` if there is none. On the CPU."""
    made = []
    for target in dataset.target_columns.values():
        values = target.of(plan.indices)
        if type(target).follow is not Target.follow:
            values = [target.follow(value, plan.ops or (), row) for row, value in enumerate(values)]
        made.append(torch.from_numpy(target.collate(values)))
    return tuple(made) if len(made) > 1 else made[0] if made else None
