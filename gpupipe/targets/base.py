"""The base class of targets."""

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
    """One value that belongs to every image of a dataset. Numpy only.

    It is known before the image is decoded, so that a crop can depend on it. It then follows the numbers of the image's
    ops, so that all engines agree.
    """

    @abstractmethod
    def of(self, indices: npt.NDArray[np.int64]) -> Sequence[Any]:
        """Return the values of samples, given their indices."""

    def follow(self, value: Any, ops: Sequence[Op], row: int) -> Any:
        """Return the value after the image went through row ``row`` of ``ops``. By default it stays unchanged."""
        return value

    @abstractmethod
    def collate(self, values: Sequence[Any]) -> npt.NDArray[Any] | list[str]:
        """Return a batch of values as one array, or texts as a list."""
