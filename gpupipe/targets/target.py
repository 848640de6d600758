"""The interface of targets."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from ..transforms.boxes import BatchBoxes, BoxFormat, Clamping

Array: TypeAlias = npt.NDArray[Any]
Collated: TypeAlias = Array | list[Array] | list[str]


class Moves(Protocol):
    """How the ops of a plan move one image; see :class:`gpupipe.kernels.moving.Moves`."""

    size: tuple[int, int]
    out_size: tuple[int, int]

    def mask(self, mask: Array, nearest: Any = "floor", fill: float | Sequence[float] = 0) -> Array: ...

    def boxes(self, boxes: Array, format: BoxFormat = "XYXY", clamping: Clamping = "soft") -> Array: ...

    def keypoints(self, points: Array, clamping: Clamping = None) -> Array: ...


class Target(ABC):
    """One value that belongs to every image of a dataset. Numpy only.

    It is known before the image is decoded, so that a crop can depend on it. It then follows the numbers of the image's
    ops, so that all engines agree.
    """

    moves: bool = False
    """Whether :meth:`follow` does anything. It then runs in threads, ahead of the training loop."""
    per_object: bool = False
    """Whether a value has one row for each object of an image, such as a box. A filter of objects then removes rows of
    all such columns together."""
    format: BoxFormat | None = None
    """Format of the boxes, if the values are boxes [N, 4] that filters look at."""

    @abstractmethod
    def of(self, indices: npt.NDArray[np.int64]) -> Sequence[Any]:
        """Return the values of samples, given their indices. Must be cheap: what has to be read, such as a mask, is
        represented by its path."""

    def boxes(self, indices: npt.NDArray[np.int64]) -> BatchBoxes | None:
        """Return the boxes of samples, by which a transform may draw; ``None`` if the values are no boxes."""
        return None

    def follow(self, values: Sequence[Any], moves: Sequence[Moves]) -> Sequence[Any]:
        """Return values after their images were moved, one for each of ``moves``.

        A value that cannot be read is returned as :class:`~gpupipe.codecs.files.Undecodable`.
        """
        return values

    @abstractmethod
    def collate(self, values: Sequence[Any]) -> Collated:
        """Return a batch of values: one array, or a list of arrays or texts."""
