"""Transforms of the boxes of an image, and filters of its objects. Pixels do not change."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ..errors import ConfigError
from .boxes import BoxFormat, Size, check_boxes, clamp_boxes, convert_boxes
from .fields import Converted, TorchvisionEnum, frozen
from .ops.op import F64, Array, Mask
from .transform import Images, Ops, Transform

__all__ = ["ClampBoundingBoxes", "ConvertBoundingBoxFormat", "SanitizeBoundingBoxes"]


class Found(NamedTuple):
    """Boxes of one image."""

    boxes: Array
    """[N, 4]"""
    format: BoxFormat
    keep: Mask | None = None
    """bool[N]: which objects remain; ``None`` for all."""


@frozen
class OnObjects(Transform):
    """Base class of transforms that have no ops, and change boxes after they were moved with the image."""

    @property
    def on_objects(self) -> bool:
        return True

    def resolve(self, u: F64, images: Images) -> tuple[Ops, Images]:
        raise self.refuse(
            "it changes boxes after all pixels were moved; put it into the Compose itself, not into views, "
            "RandomApply or RandomChoice"
        )

    def change(self, boxes: Array, format: BoxFormat, size: Size) -> Found:
        """Return the changed boxes of one image.

        Args:
            boxes: [N, 4] in ``format``.
            size: height and width of the image.
        """
        raise NotImplementedError


def _least(value: Any, what: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not value >= 1:
        raise ConfigError(f"{what} must be a number of at least 1, not {value!r}")
    return float(value)


@frozen
class SanitizeBoundingBoxes(OnObjects):
    """Remove objects whose box is degenerate, outside the image or too small, with their labels, masks and other rows.

    It removes rows of all columns that have one for each object, such as ``targets.ObjectNumbers``.

    Args:
        min_size: least width and height in pixels, at least 1.
        min_area: least area in pixels, at least 1.

    >>> SanitizeBoundingBoxes().change(np.array([[0.0, 0, 9, 9], [3, 3, 3, 9]]), "XYXY", (10, 10)).keep
    array([ True, False])
    """

    min_size: Converted[float, float] = Converted(_least, default=1.0)
    min_area: Converted[float, float] = Converted(_least, default=1.0)

    def change(self, boxes: Array, format: BoxFormat, size: Size) -> Found:
        xyxy = convert_boxes(boxes, format, "XYXY")
        width, height = xyxy[:, 2] - xyxy[:, 0], xyxy[:, 3] - xyxy[:, 1]
        keep = (width >= self.min_size) & (height >= self.min_size) & (width * height >= self.min_area)
        keep &= (xyxy >= 0).all(axis=1) & (xyxy <= [size[1], size[0], size[1], size[0]]).all(axis=1)
        return Found(boxes[keep], format, keep)


@frozen
class ClampBoundingBoxes(OnObjects):
    """Limit boxes to the image.

    Takes and returns boxes f32 ``[n, 4]``; the image stays as it is.

    >>> ClampBoundingBoxes().change(np.array([[-3.0, 0, 19, 9]]), "XYXY", (10, 10)).boxes
    array([[ 0.,  0., 10.,  9.]])
    """

    def change(self, boxes: Array, format: BoxFormat, size: Size) -> Found:
        return Found(clamp_boxes(boxes, size, format), format)


def _format(value: Any, what: str) -> BoxFormat:
    name = str(getattr(value, "value", value)).upper()  # a member of torchvision's enumeration, or its name
    try:
        check_boxes(np.zeros((0, 4)), name)
    except Exception:
        raise ConfigError(f"{what} must be XYXY, XYWH or CXCYWH, not {value!r}") from None
    return name  # type: ignore[return-value]


@frozen
class ConvertBoundingBoxFormat(OnObjects):
    """Convert boxes to another format.

    Args:
        format: ``"XYXY"``, ``"XYWH"`` or ``"CXCYWH"``, in any case.

    >>> ConvertBoundingBoxFormat("cxcywh").change(np.array([[2.0, 2, 6, 4]]), "XYXY", (10, 10)).boxes
    array([[4., 3., 4., 2.]])
    """

    format: Converted[TorchvisionEnum | str, BoxFormat] = Converted(_format)

    def change(self, boxes: Array, format: BoxFormat, size: Size) -> Found:
        return Found(convert_boxes(boxes, format, self.format), self.format)
