"""Class labels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import DatasetError
from .base import Target

__all__ = ["Labels", "as_labels"]


def as_labels(values: npt.NDArray[Any], owner: str) -> npt.NDArray[np.int64]:
    """i64[N] of any integers. Raises :class:`DatasetError` for those that are too large, as torch does: as i64 they
    would be negative."""
    if values.dtype == np.uint64 and (largest := int(values.max(initial=0))) >= 1 << 63:
        raise DatasetError(f"{owner}: label {largest} is too large; labels must be below 2**63")
    return values.astype(np.int64, copy=False)


class Labels(Target):
    """One integer for each image; nothing that is done to an image changes its class.

    >>> labels = Labels(np.array([3, 1, 4]))
    >>> labels.collate(labels.of(np.array([2, 0])))
    array([4, 3])

    Args:
        column: i64[N], which may be read-only.
    """

    def __init__(self, column: npt.NDArray[np.int64]):
        self.column = column

    def of(self, indices: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:  # type: ignore[override]
        return self.column[indices]

    def collate(self, values: Sequence[Any]) -> npt.NDArray[np.int64]:
        """i64[B], a copy that can be written to."""
        return np.array(values, np.int64)
