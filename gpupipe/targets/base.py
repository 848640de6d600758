"""What a target is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from ..transforms.ops import Op

__all__ = ["Target"]


class Target(ABC):
    """One thing that belongs to every image of a dataset. Numpy only.

    Known before the image is decoded, so that a crop may be drawn by it; then it follows the numbers of the image's
    own ops, so that both engines give the same.
    """

    @abstractmethod
    def of(self, indices: npt.NDArray[np.int64]) -> Sequence[Any]:
        """The values of samples, by their positions in the dataset."""

    def follow(self, value: Any, ops: Sequence[Op], row: int) -> Any:
        """The value after what row ``row`` of ``ops`` did to the image; by default it stays as it is."""
        return value

    @abstractmethod
    def collate(self, values: Sequence[Any]) -> npt.NDArray[Any] | list[str]:
        """One array for a batch of values; of texts a list of them."""
