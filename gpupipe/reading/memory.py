"""Images of one size that lie in memory as one array."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..datasets.arrays import Arrays
from ..datasets.dataset import Dataset
from ..datasets.subset import Subset


@dataclass(frozen=True)
class InMemory:
    """Images of a dataset in memory, by index."""

    images: npt.NDArray[np.uint8]
    """u8[N, H, W, C], C = 1 or 3."""
    rows: npt.NDArray[np.int64] | None
    """i64[M]: which of them the dataset has; ``None``: all."""

    @classmethod
    def of(cls, dataset: Dataset) -> InMemory | None:
        """``None`` of a dataset whose samples have to be fetched one by one."""
        rows: npt.NDArray[np.int64] | None = None
        while isinstance(dataset, Subset):
            rows = dataset.indices if rows is None else dataset.indices[rows]
            dataset = dataset.dataset
        if type(dataset) is not Arrays:
            return None
        images = dataset.images.view(np.ndarray)  # numpy's memmap is slower at everything
        return cls(images if images.ndim == 4 else images[..., None], rows)

    def copy(self, indices: npt.NDArray[np.int64], channels: int) -> npt.NDArray[np.uint8]:
        """u8[n, H, W, channels]"""
        found = self.images[indices if self.rows is None else self.rows[indices]]
        return found if found.shape[3] == channels else np.repeat(found, channels, axis=3)
