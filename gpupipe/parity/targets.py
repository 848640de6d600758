"""Masks and boxes of compared images."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from ..datasets.dataset import Dataset
from ..reading.targets import following
from ..transforms.boxes import convert_boxes


@dataclass(frozen=True, eq=False)
class Targets:
    """Targets that moved with one image."""

    values: Mapping[str, npt.NDArray[Any]] = field(default_factory=dict)
    """Values of an engine, by column."""
    masks: tuple[npt.NDArray[Any], ...] = ()
    """[H, W]: ids, or one mask for each object; 0 is the background."""
    boxes: npt.NDArray[Any] = field(default_factory=lambda: np.zeros((0, 4)))
    """[n, 4] in XYXY."""

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Targets)
            and self.values.keys() == other.values.keys()
            and all(np.array_equal(value, other.values[name]) for name, value in self.values.items())
        )

    __hash__ = None  # type: ignore[assignment]


def moved_columns(dataset: Dataset) -> list[str]:
    """Return the names of columns that move with images."""
    return [name for name, target in following(dataset).items() if target.moves]


def targets_of(dataset: Dataset, batch: Mapping[str, Any], count: int) -> list[Targets]:
    """Return the targets of every sample of a batch."""
    columns, moved = dataset.columns, moved_columns(dataset)
    values = {name: [_array(value) for value in batch[name]] for name in moved}
    found = []
    for row in range(count):
        masks: list[npt.NDArray[Any]] = []
        boxes = np.zeros((0, 4))
        for name in moved:
            value, size = values[name][row], batch["image"].shape[-2:] if isinstance(batch["image"], Tensor) else ()
            if columns[name].format is not None:
                boxes = convert_boxes(value, columns[name].format or "XYXY", "XYXY")
            elif value.ndim > 1 and value.shape[-2:] == tuple(size):
                masks += list(value) if value.ndim == 3 else [value]
        found.append(Targets({name: values[name][row] for name in moved}, tuple(masks), boxes))
    return found


def _array(value: Any) -> npt.NDArray[Any]:
    array: npt.NDArray[Any] = value.cpu().numpy()
    return array
