"""Crops, resizes and flips."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from .op import I32, I64, Dtype, HasMask, Kind, Mask, Op
from .promise import CPU, EQUAL, GRAPH, Bound, Promise, Tolerance

__all__ = ["Crop", "Flip", "Resize"]

_TRIANGLE_EDGE = Bound(60, 20, 1)
_EDGE = (
    "beyond the edge DALI repeats the edge pixel, which gets 1/8 of the filter's weight; Pillow and torch cut the "
    "filter off: at most 32 levels, 60 in a corner; on photographs 16 at 224 pixels, 27 at 16"
)
_ROUNDS = "Pillow and torch round between their two passes; DALI does not"
_WEIGHTS = "torch rounds filter weights to 16 bits at most, Pillow to 22"
_CLIPS = (
    "Pillow and torch clip to 0..255 between their two passes, which cuts overshoots at hard edges; DALI clips last"
)


@dataclass(frozen=True, eq=False, repr=False)
class Crop(Op):
    """Crop a window. If ``padded``, the window may extend beyond the image, and the outside is filled.

    The window of an image outside the mask is the whole image.
    """

    PROMISES = (Promise("crop", "crop, pad", {CPU: Tolerance(EQUAL)}),)
    geometric = True

    top: I32
    left: I32
    height: I32
    width: I32
    padded: bool = False
    fill: tuple[float, ...] = (0.0,)
    """One value for all channels, or one per channel, in units of the image."""
    mode: Literal["constant", "edge", "reflect", "symmetric"] = "constant"
    mask: Mask | None = None
    """Images that are cropped; ``None`` for all. A crop limits boxes to its window, even to the whole image."""
    by_center: bool = False
    """Whether boxes whose center lies outside the window become zero."""
    content: I32 | None = None
    """i32[B, 2]: height and width of the incoming images, if padding on the right and at the bottom is cut off again
    before delivery. Targets ignore such padding, and its pixels have any value."""

    def passes(self, i: int) -> bool:
        return self.mask is not None and not self.mask[i]

    def where(self, mask: Mask, sizes: I64) -> Op:
        whole: dict[str, Any] = {"top": 0, "left": 0, "height": sizes[:, 0], "width": sizes[:, 1]}
        windows = {k: np.where(mask, getattr(self, k), v).astype(np.int32) for k, v in whole.items()}
        return replace(self, **windows, mask=mask if self.mask is None else self.mask & mask)


@dataclass(frozen=True, eq=False, repr=False)
class Resize(Op):
    """Resample to ``height`` x ``width`` pixels."""

    PROMISES = (
        Promise(
            "resize bilinear uint8 antialias",
            "resize, bilinear, antialias",
            {
                CPU: Tolerance(Bound(2, 0.6, 0.0001), reason=_WEIGHTS),
                GRAPH: Tolerance(Bound(1, 0.6), _TRIANGLE_EDGE, reason=f"{_ROUNDS}; {_EDGE}"),
            },
        ),
        Promise(
            "resize bilinear uint8",
            "resize, bilinear, no antialias",
            {CPU: Tolerance(EQUAL), GRAPH: Tolerance(Bound(1, 0.4), reason=_ROUNDS)},
        ),
        Promise(
            "resize bilinear float antialias",
            "resize, bilinear, antialias, of floats",
            {CPU: Tolerance(EQUAL), GRAPH: Tolerance(Bound(0.1, 0.001), _TRIANGLE_EDGE, reason=_EDGE)},
        ),
        Promise(
            "resize bilinear float",
            "resize, bilinear, no antialias, of floats",
            {CPU: Tolerance(EQUAL), GRAPH: Tolerance(Bound(0.1, 0.001))},
        ),
        Promise(
            "resize bicubic uint8 antialias",
            "resize, bicubic, antialias",
            {
                CPU: Tolerance(Bound(3, 0.8, 0.001), gain=1.6, reason=_WEIGHTS),
                GRAPH: Tolerance(Bound(40, 6, 0.6), Bound(40, 6, 1), gain=1.6, reason=_CLIPS),
            },
        ),
        Promise(
            "resize bicubic float antialias",
            "resize, bicubic, antialias, of floats",
            {
                CPU: Tolerance(EQUAL, gain=1.6),
                GRAPH: Tolerance(
                    Bound(0.5, 0.1), Bound(40, 6, 1), gain=1.6, reason="DALI reads the filter from a table"
                ),
            },
        ),
        Promise(
            "resize lanczos uint8 antialias",
            "resize, lanczos",
            {
                CPU: Tolerance(EQUAL, gain=2.2),
                GRAPH: Tolerance(Bound(80, 8, 0.7), Bound(80, 8, 0.8), gain=2.2, reason=_CLIPS),
            },
        ),
        Promise(
            "resize nearest",
            "resize, nearest",
            {
                CPU: Tolerance(EQUAL),
                GRAPH: Tolerance(
                    Bound(255, 40, 0.25),
                    reason="for a position exactly between two rows or columns, DALI may take the other one",
                ),
            },
        ),
    )
    geometric = True

    height: I32
    width: I32
    interpolation: str = "bilinear"
    antialias: bool = True
    kind: Kind = "pil"

    def promise(self, dtype: Dtype) -> str:
        if self.interpolation in ("nearest", "nearest-exact"):
            return "resize nearest"
        of = "uint8" if dtype == "uint8" else "float"
        return f"resize {self.interpolation} {of}" + (" antialias" if self.antialias else "")

    def where(self, mask: Mask, sizes: I64) -> Op:
        # An image that is resized to its own size stays as it is, so no mask is needed.
        height = np.where(mask, self.height, sizes[:, 0]).astype(np.int32)
        width = np.where(mask, self.width, sizes[:, 1]).astype(np.int32)
        return replace(self, height=height, width=width)


@dataclass(frozen=True, eq=False, repr=False)
class Flip(HasMask):
    """Mirror the samples in the mask."""

    PROMISES = (Promise("flip", "flip", {CPU: Tolerance(EQUAL)}),)
    geometric = True

    axis: Literal["horizontal", "vertical"] = "horizontal"
