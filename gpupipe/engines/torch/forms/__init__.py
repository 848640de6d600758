"""The torch form of every op, bit by bit as torchvision does it where the numbers are the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ....transforms.ops import Call, Crop, Flip, Gray, Normalize, Op, Resize, ToDtype
from .batch import BATCH_FORMS, arithmetic
from .color import gray
from .function import call
from .geometry import crop, flip, resize
from .picture import Picture

__all__ = ["BATCH_FORMS", "FORMS", "POINTWISE", "arithmetic"]

POINTWISE: tuple[type[Op], ...] = (ToDtype, Normalize)
"""What :func:`arithmetic` does, to single images and to batches."""

FORMS: dict[type[Op], Callable[[Picture, Any, int], Picture]] = {
    Crop: crop,
    Resize: resize,
    Flip: flip,
    Gray: gray,
    Call: call,
}
"""``form(image, op, i)``: row ``i`` of the op on one image. What the mask leaves out must come out as it came in."""
