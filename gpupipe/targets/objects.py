"""Values of the objects of an image: boxes, keypoints, and one label or number for each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import DatasetError
from ..transforms.boxes import BatchBoxes, BoxFormat, Clamping, check_boxes
from .target import Array, Collated, Moves, Target


class ObjectNumbers(Target):
    """One row of numbers for each object of an image, such as its class, its area, or whether it is a crowd.

    All images' rows are one array. A batch is a list of arrays [n, ...], one per image, as torchvision's detection
    models take them. Filters such as :class:`~gpupipe.transforms.SanitizeBoundingBoxes` remove rows of all such columns
    together.

    Args:
        values: one array [n, ...] per image; or all rows [M, ...] in order, with ``offsets``.
        offsets: i64[N + 1]: the rows of image i are those from ``offsets[i]`` to before ``offsets[i + 1]``.

    Raises:
        DatasetError: the arrays differ in shape or data type, or ``offsets`` do not fit.

    >>> classes = ObjectNumbers([np.array([3, 1]), np.array([], np.int64)])
    >>> classes.of(np.array([1, 0]))
    [array([], dtype=int64), array([3, 1])]
    """

    per_object: bool = True

    def __init__(self, values: Iterable[Any] | Array, offsets: Any = None):
        name = type(self).__name__
        if offsets is None:
            parts = [np.asarray(part) for part in values]
            counts = [len(part) for part in parts]
            # Empty arrays may have any shape and data type, since they add no rows.
            filled = [part for part in parts if len(part)]
            if len({part.shape[1:] for part in filled}) > 1 or len({part.dtype for part in filled}) > 1:
                raise DatasetError(f"{name}: the arrays of different images must have one shape [n, ...] and data type")
            # If all are empty, the first one still has a data type.
            self.values = np.concatenate(filled) if filled else parts[0] if parts else np.zeros(0)
            self.offsets = np.concatenate([[0], np.cumsum(counts, dtype=np.int64)]).astype(np.int64)
        else:
            self.values, self.offsets = np.asarray(values), np.asarray(offsets, np.int64)
        o = self.offsets
        if o.ndim != 1 or not len(o) or o[0] != 0 or o[-1] != len(self.values) or (np.diff(o) < 0).any():
            raise DatasetError(f"{name}: offsets must rise from 0 to the number of rows, {len(self.values)}")
        self.values.flags.writeable = False  # values of samples are views of them

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def of(self, indices: npt.NDArray[np.int64]) -> Sequence[Any]:
        starts, ends = self.offsets[indices].tolist(), self.offsets[indices + 1].tolist()
        return [self.values[start:end] for start, end in zip(starts, ends, strict=True)]

    def collate(self, values: Sequence[Any]) -> Collated:
        """Return a list of writable copies."""
        return [np.array(value) for value in values]


class Boxes(ObjectNumbers):
    """Bounding boxes, which move with the image as in torchvision's v2 functionals.

    A batch is a list of arrays [n, 4] of the boxes' data type. Boxes outside a crop stay, without area, until
    :class:`~gpupipe.transforms.SanitizeBoundingBoxes` removes them.

    Args:
        values, offsets: as in :class:`ObjectNumbers`: [n, 4] per image, or [M, 4] with offsets. Pixels, as floats or
            signed integers, which truncate.
        format: ``"XYXY"``, ``"XYWH"`` or ``"CXCYWH"``.
        clamping: ``"soft"`` or ``"hard"`` limit boxes to the image after crops, padding and warps; ``None`` does not.

    >>> boxes = Boxes([np.array([[0.0, 0, 9, 9]], np.float32), np.zeros((0, 4), np.float32)])
    >>> [value.shape for value in boxes.of(np.array([0, 1]))]
    [(1, 4), (0, 4)]
    """

    moves: bool = True

    def __init__(
        self,
        values: Iterable[Any] | Array,
        offsets: Any = None,
        *,
        format: BoxFormat = "XYXY",
        clamping: Clamping = "soft",
    ):
        super().__init__(values, offsets)
        # Without any box, the arrays may have the shape [0].
        if not len(self.values):
            self.values = np.zeros((0, 4), self.values.dtype)
        check_boxes(self.values, format, clamping)
        self.format: BoxFormat = format
        self.clamping = clamping

    def boxes(self, indices: npt.NDArray[np.int64]) -> BatchBoxes:
        values = self.of(indices)
        rows = np.repeat(np.arange(len(values)), [len(boxes) for boxes in values])
        # The empty part has the data type if no image has boxes.
        return BatchBoxes(np.concatenate([self.values[:0], *values]), rows, self.format, self.clamping)

    def follow(self, values: Sequence[Any], moves: Sequence[Moves]) -> Sequence[Any]:
        found = zip(values, moves, strict=True)
        return [move.boxes(boxes, self.format, self.clamping) for boxes, move in found]


class Keypoints(ObjectNumbers):
    """Keypoints, which move with the image as in torchvision's v2 functionals.

    A batch is a list of arrays of the keypoints' data type and shape per image.

    Args:
        values, offsets: as in :class:`ObjectNumbers`: [n, ..., 2] per image with x and y, or [n, ..., 3] with a further
            number that does not move, such as COCO's visibility.
        clamping: ``"soft"`` or ``"hard"`` limit points to the image's pixels at the end; ``None`` does not.
        per_object: whether the first axis are the objects of the image, so that filters of boxes apply.

    Raises:
        DatasetError: the last axis has another length.
    """

    moves: bool = True

    def __init__(
        self, values: Iterable[Any] | Array, offsets: Any = None, *, clamping: Clamping = None, per_object: bool = True
    ):
        super().__init__(values, offsets)
        if self.values.ndim < 2 or self.values.shape[-1] not in (2, 3):
            raise DatasetError(f"Keypoints: points must be [n, ..., 2] or [n, ..., 3], not {list(self.values.shape)}")
        self.clamping = clamping
        self.per_object = per_object

    def follow(self, values: Sequence[Any], moves: Sequence[Moves]) -> Sequence[Any]:
        return [self._moved(points, move) for points, move in zip(values, moves, strict=True)]

    def _moved(self, points: Array, move: Moves) -> Array:
        moved = move.keypoints(points[..., :2], self.clamping)
        return np.concatenate([moved, points[..., 2:]], axis=-1)
