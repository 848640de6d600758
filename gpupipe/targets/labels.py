"""Class labels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import DatasetError
from .target import Target


def as_labels(values: npt.NDArray[Any], owner: str) -> npt.NDArray[np.int64]:
    """Convert integers to i64[N]. Raises :class:`DatasetError` if one is too large for i64, as torch does."""
    if values.dtype == np.uint64 and (largest := int(values.max(initial=0))) >= 1 << 63:
        raise DatasetError(f"{owner}: label {largest} is too large; labels must be below 2**63")
    return values.astype(np.int64, copy=False)


class Labels(Target):
    """One integer class label per image, which transforms leave unchanged.

    >>> labels = Labels(np.array([3, 1, 4]))
    >>> labels.collate(labels.of(np.array([2, 0])))
    array([4, 3])

    Args:
        column: i64[N], may be read-only.
    """

    def __init__(self, column: npt.NDArray[np.int64]):
        self.column = column

    def of(self, indices: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:  # type: ignore[override]
        return self.column[indices]

    def collate(self, values: Sequence[Any]) -> npt.NDArray[np.int64]:
        """Return i64[B], a writable copy."""
        return np.array(values, np.int64)
