"""Difference between two batches of the same plan, in gray levels of 0 to 255.

The border counts separately: where a resize filter reaches over the edge of the image, DALI repeats the edge pixel,
while Pillow and torch truncate the filter. The plan determines these pixels, even after later crops and flips.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor

from ..errors import ConfigError
from ..kernels import FORMS
from ..transforms.ops import Blur, Crop, Flip, Normalize, Op, Perspective, Resize, ToDtype, Warp
from ..transforms.ops.op import F64, Mask

_SUPPORT = {"bilinear": 1.0, "box": 0.5, "hamming": 1.0, "bicubic": 2.0, "lanczos": 3.0}
"""Half width of each filter, in output pixels when shrinking, in input pixels when enlarging."""
_HARMLESS = ("nearest", "nearest-exact", "box", "hamming")
_ROUNDING = 0.01
"""Slack for float images, so that a difference of one level counts as one despite rounding."""


@dataclass(frozen=True)
class Spread:
    """Statistics of absolute differences of many values."""

    values: int = 0
    max: float = 0.0
    total: float = 0.0
    over_1_count: int = 0
    """Number of values that differ by more than one gray level."""

    @property
    def mean(self) -> float:
        return self.total / self.values if self.values else 0.0

    @property
    def over_1(self) -> float:
        """Share of the values, 0 to 1."""
        return self.over_1_count / self.values if self.values else 0.0

    @classmethod
    def of(cls, absolute: F64) -> Spread:
        if not absolute.size:
            return cls()
        over = int(np.count_nonzero(absolute > 1 + _ROUNDING))
        return cls(absolute.size, float(absolute.max()), float(absolute.sum()), over)

    def __add__(self, other: Spread) -> Spread:
        return Spread(
            self.values + other.values,
            max(self.max, other.max),
            self.total + other.total,
            self.over_1_count + other.over_1_count,
        )


@dataclass(frozen=True)
class Difference:
    """Difference in gray levels. Add several with ``+``, starting with ``Difference()``."""

    images: int = 0
    equal_images: int = 0
    """Number of images with all values equal."""
    interior: Spread = Spread()
    border: Spread = Spread()
    """Pixels whose resize filter reached over the edge; empty if there are none."""

    @property
    def whole(self) -> Spread:
        return self.interior + self.border

    @property
    def max(self) -> float:
        return self.whole.max

    @property
    def mean(self) -> float:
        return self.whole.mean

    @property
    def over_1(self) -> float:
        return self.whole.over_1

    @property
    def equal(self) -> float:
        """Share of images with all values equal, 0 to 1."""
        return self.equal_images / self.images if self.images else 0.0

    def __add__(self, other: Difference) -> Difference:
        return Difference(
            self.images + other.images,
            self.equal_images + other.equal_images,
            self.interior + other.interior,
            self.border + other.border,
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the difference as JSON values."""
        parts = {"interior": self.interior, "border": self.border}
        return {
            "images": self.images,
            "equal": self.equal,
            "max": self.max,
            "mean": self.mean,
            "over_1": self.over_1,
            **{
                name: {"values": s.values, "max": s.max, "mean": s.mean, "over_1": s.over_1}
                for name, s in parts.items()
            },
        }


def gray_levels(ops: Sequence[Op]) -> tuple[F64, F64]:
    """Return (factor, offset), each f64[C or 1], so that ``factor * output + offset`` are gray levels for the output of
    ``ops``."""
    factor, offset = np.ones(1), np.zeros(1)
    dtype = "uint8"
    for op in ops:
        if isinstance(op, ToDtype):
            if dtype == "uint8" and op.scale and op.dtype != "uint8":
                factor = factor * 255.0
            dtype = op.dtype
        elif isinstance(op, Normalize):
            mean, std = np.array(op.mean), np.array(op.std)
            # y = (x - mean) / std, so factor * x + offset = (factor * std) * y + (factor * mean + offset).
            factor, offset = factor * std, factor * mean + offset
    return factor, offset


def difference(a: Tensor, b: Tensor, ops: Sequence[Op], sizes: npt.NDArray[np.integer[Any]]) -> Difference:
    """Compare two batches [B, C, H, W] of the same plan.

    Args:
        a, b: of one shape and dtype, on any device.
        ops: the plan's ops.
        sizes: int[B, 2], height and width of the decoded images.

    Raises:
        ConfigError: shape or dtype differ.
    """
    if a.shape != b.shape or a.dtype != b.dtype:
        raise ConfigError(
            f"cannot compare batches of different type or shape: {a.dtype}{list(a.shape)}, {b.dtype}{list(b.shape)}"
        )
    factor = gray_levels(ops)[0][:, None, None]
    left, right = (x.cpu().to(torch.float64).numpy() for x in (a, b))
    found = Difference()
    masks = border_masks(ops, sizes)
    for i in range(len(left)):
        absolute = np.abs((left[i] - right[i]) * factor)
        equal = int(np.array_equal(left[i], right[i]))
        mask = masks[i]
        if mask is None:
            found += Difference(1, equal, Spread.of(absolute))
        else:
            found += Difference(1, equal, Spread.of(absolute[:, ~mask]), Spread.of(absolute[:, mask]))
    return found


def border_masks(ops: Sequence[Op], sizes: npt.NDArray[np.integer[Any]]) -> list[Mask | None]:
    """Return bool[H, W] for every output image: pixels for which an antialiased resize reached over the edge.

    ``None`` stands for an image without such pixels.
    """
    return [_border(ops, i, (int(h), int(w))) for i, (h, w) in enumerate(sizes)]


def _border(ops: Sequence[Op], i: int, size: tuple[int, int]) -> Mask | None:
    mask: npt.NDArray[np.uint8] | None = None  # u8[H, W, 1], 0 or 255
    for op in ops:
        if isinstance(op, Crop):
            if mask is not None:
                # New pixels outside the image are no border of a resize.
                mask = _array(FORMS[Crop](mask, replace(op, fill=(0.0,)), i))
            size = int(op.height[i]), int(op.width[i])
        elif isinstance(op, Flip) and mask is not None:
            mask = _array(FORMS[Flip](mask, op, i))
        elif isinstance(op, (Warp, Perspective, Blur)):
            if mask is not None:
                black = op if isinstance(op, Blur) else replace(op, fill=None)
                # Whatever takes a part of its value from the border belongs to it.
                mask = np.where(_array(FORMS[type(op)](mask, black, i)) > 0, 255, 0).astype(np.uint8)
                mask = mask.reshape(*mask.shape[:2], 1)
            if isinstance(op, Warp) and op.mask[i]:
                size = int(op.height[i]), int(op.width[i])
        elif isinstance(op, Resize):
            new = int(op.height[i]), int(op.width[i])
            if mask is not None:
                resized = Image.fromarray(mask[:, :, 0]).resize(new[::-1], Image.Resampling.BILINEAR)
                mask = np.where(np.asarray(resized) > 0, 255, 0).astype(np.uint8)[:, :, None]
            frame = [_reach(have, want, op) for have, want in zip(size, new, strict=True)]
            if any(frame):
                mask = np.zeros((*new, 1), np.uint8) if mask is None else mask.copy()
                for axis, n in enumerate(frame):
                    along = mask if axis == 0 else mask.swapaxes(0, 1)
                    along[:n] = 255
                    along[max(len(along) - n, 0) :] = 255
            size = new
    return mask[:, :, 0] > 0 if mask is not None and mask.any() else None


def _array(picture: Any) -> npt.NDArray[np.uint8]:
    return np.ascontiguousarray(picture)


def _reach(have: int, want: int, op: Resize) -> int:
    """Return the number of output pixels from each edge whose filter reaches over it."""
    if have == want or op.interpolation in _HARMLESS:
        return 0
    # The filter of output pixel k is centered at (k + 0.5) * ratio in the input and extends this far to both sides.
    ratio = have / want
    support = _SUPPORT[op.interpolation] * (max(ratio, 1.0) if op.antialias else 1.0)
    if (
        support <= 1.0
    ):  # a triangle reaches half a pixel over the edge, where repeating and omitting the pixel are equal
        return 0
    # This is the number of pixels k with (k + 0.5) * ratio < support.
    return min(max(math.ceil(support / ratio - 0.5), 0), want)


def to_pixels(image: Tensor, ops: Sequence[Op]) -> npt.NDArray[np.uint8]:
    """Return u8[H, W, 3] for display of one image [C, H, W] that ``ops`` produced."""
    factor, offset = (x[:, None, None] for x in gray_levels(ops))
    levels = image.detach().cpu().to(torch.float64).numpy() * factor + offset
    pixels = np.clip(np.rint(levels), 0, 255).astype(np.uint8).transpose(1, 2, 0)
    return np.repeat(pixels, 3, axis=2) if pixels.shape[2] == 1 else pixels
