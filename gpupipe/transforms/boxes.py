"""Bounding boxes and keypoints through geometric ops, in numpy, for one image or a batch.

The rules are those of torchvision's v2 functionals, including the truncation of integers and the order of operations in
float32. ``at`` says which row of an op's arrays applies: one row number for all boxes, or i64[N] with the row of each
box. Heights and widths are numbers or arrays of the same form.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import numpy.typing as npt

from ..errors import PipelineError
from .ops import Crop, Flip, Op, Perspective, Resize, Warp
from .ops.op import Array

BoxFormat = Literal["XYXY", "XYWH", "CXCYWH"]
"""Corners; upper left corner and size; center and size. Names of torchvision's ``BoundingBoxFormat``."""

Clamping: TypeAlias = Literal["soft", "hard"] | None
"""torchvision's ``clamping_mode``. ``"soft"`` and ``"hard"`` are the same for boxes that are not rotated: crops,
padding and warps limit them to the image. ``None`` keeps what lies outside."""

Size: TypeAlias = tuple[Any, Any]
"""Height and width, as numbers or arrays."""

Rows: TypeAlias = int | npt.NDArray[np.int64]


def size_after(op: Op, at: Rows, before: Size) -> Size:
    """Return height and width of images after ``op``."""
    if not isinstance(op, (Crop, Resize, Warp)):
        return before
    if isinstance(at, int):
        return op.height.item(at), op.width.item(at)
    return op.height[at].astype(np.int64), op.width[at].astype(np.int64)


def check_boxes(boxes: Array, format: str, clamping: str | None = "soft") -> Array:
    """Check shape, data type and settings of boxes. Raises :class:`PipelineError`."""
    values = np.asarray(boxes)
    if values.ndim != 2 or values.shape[1] != 4:
        raise PipelineError(f"boxes must have shape [N, 4], not {list(values.shape)}; no boxes are [0, 4]")
    if values.dtype.kind not in "fi":
        raise PipelineError(f"boxes must be floats or signed integers, not {values.dtype}; convert them to float32")
    if format not in get_args(BoxFormat):
        raise PipelineError(f"format must be one of {', '.join(get_args(BoxFormat))}, not {format!r}")
    if clamping not in ("soft", "hard", None):
        raise PipelineError(f"clamping must be 'soft', 'hard' or None, not {clamping!r}")
    return values


def convert_boxes(boxes: Array, old: BoxFormat, new: BoxFormat) -> Array:
    """Convert boxes [N, 4] to another format, like torchvision's ``convert_bounding_box_format``.

    Keeps the data type. Integers are halved by rounding down, except from ``CXCYWH``, where they truncate.
    """
    if old == new:
        return boxes
    first, second = boxes[..., :2], boxes[..., 2:]
    integer = boxes.dtype.kind == "i"
    if old == "XYXY":
        extent = second - first
        # (2 * first + extent) / 2 is the center with one division, so integers round once.
        first = first if new == "XYWH" else _halved(first * 2 + extent, integer)
        return np.concatenate([first, extent], axis=-1)
    if old == "XYWH":
        parts = [first, second + first] if new == "XYXY" else [first + _halved(second, integer), second]
        return np.concatenate(parts, axis=-1)
    # Half a size may be a fraction. The corners are truncated, not the halves.
    if integer:
        first, second = first.astype(np.float32), second.astype(np.float32)
    low = first - second / 2
    high = second + low
    if integer:
        low, high = low.astype(boxes.dtype), high.astype(boxes.dtype)
        # The size must fit the truncated corners.
        second = high - low
    return np.concatenate([low, high if new == "XYXY" else second], axis=-1)


def _halved(values: Array, integer: bool) -> Array:
    halved: Array = values // 2 if integer else values / 2
    return halved


def clamp_boxes(boxes: Array, size: Size, format: BoxFormat) -> Array:
    """Limit boxes [N, 4] to the image, like torchvision's ``clamp_bounding_boxes``."""
    values = boxes.astype(np.float32) if boxes.dtype.kind == "i" else boxes
    limits = _four(size[1], size[0], values.dtype)
    inside = np.minimum(np.maximum(convert_boxes(values, format, "XYXY"), 0), limits)
    return convert_boxes(inside, "XYXY", format).astype(boxes.dtype)


def clamp_keypoints(points: Array, size: Size) -> Array:
    """Limit points [..., 2] to the image's pixels, like torchvision's ``clamp_keypoints``."""
    values = points.astype(np.float32) if points.dtype.kind == "i" else points
    inside: Array = np.clip(values, 0, _two(size[1] - 1, size[0] - 1, values.dtype))
    return inside.astype(points.dtype)


def _two(x: Any, y: Any, dtype: Any) -> Array:
    if not np.ndim(x) and not np.ndim(y):  # one image, for which this takes a tenth of the time
        return np.array((x, y), dtype)
    return np.stack(np.broadcast_arrays(x, y), axis=-1).astype(dtype)


def _four(x: Any, y: Any, dtype: Any) -> Array:
    return np.concatenate([_two(x, y, dtype)] * 2, axis=-1)


def corners(boxes: Array) -> Array:
    """Return the corners [N, 4, 2] of XYXY boxes [N, 4], clockwise from the upper left."""
    return boxes[:, [0, 1, 2, 1, 2, 3, 0, 3]].reshape(-1, 4, 2)


def hull(points: Array) -> Array:
    """Return the XYXY boxes [N, 4] around points [N, n, 2]."""
    return np.concatenate([points.min(axis=1), points.max(axis=1)], axis=1)


def _where_drawn(
    op: Op, at: Rows, values: Array, before: Size, move: Callable[[Op, Rows, Array, Size], Array]
) -> Array:
    """Move the rows of ``values`` whose images are in the mask of ``op``, or all if it has none."""
    mask = getattr(op, "mask", None)
    if not len(values):
        return values
    moving = True if mask is None else mask[at]
    if np.all(moving):
        return move(op, at, values, before)
    out = values
    if np.any(moving):
        # For a row number, the mask is a single truth value, and one of the two conditions has decided.
        assert not isinstance(at, int)
        height, width = (side[moving] if np.ndim(side) else side for side in before)
        out = values.copy()
        out[moving] = move(op, at[moving], values[moving], (height, width))
    return out


def move_boxes(
    op: Op, at: Rows, boxes: Array, before: Size, format: BoxFormat = "XYXY", clamping: Clamping = "soft"
) -> Array:
    """Move boxes [N, 4] as ``op`` moves pixels.

    Args:
        before: height and width of the incoming images.

    Raises :class:`PipelineError` for an op that boxes cannot follow.
    """
    return _where_drawn(op, at, boxes, before, partial(_move_boxes, format=format, clamping=clamping))


def _move_boxes(op: Op, at: Rows, boxes: Array, before: Size, format: BoxFormat, clamping: Clamping) -> Array:
    after = size_after(op, at, before)
    dtype = boxes.dtype
    if isinstance(op, Crop):
        _check_padding(op, at, before, "boxes")
        shift = _four(op.left[at], op.top[at], dtype)
        if format != "XYXY":
            # Widths and heights do not move.
            shift[..., 2:] = 0
        moved = boxes - shift
        moved = moved if clamping is None else clamp_boxes(moved, after, format)
        if op.by_center:
            # The center of the whole box counts, not that of the part inside the window.
            low = _two(op.left[at], op.top[at], np.int64)
            within = centers_within(convert_boxes(boxes, format, "XYXY"), low, low + _two(after[1], after[0], np.int64))
            moved[~within] = 0
        return moved
    if isinstance(op, Resize):
        values = boxes.astype(np.float32) if dtype.kind == "i" else boxes
        return (values * _four(*_ratios(before, after), np.float32)).astype(dtype)
    if isinstance(op, Flip):
        return _flipped(boxes, 0 if op.axis == "horizontal" else 1, before, format)
    if isinstance(op, Warp):
        xyxy = convert_boxes(boxes.astype(np.float32) if dtype.kind == "i" else boxes, format, "XYXY")
        # A turned box is no longer upright, so take the upright box around its corners.
        moved = hull(_affine(op, at, corners(xyxy), before, after))
        moved = moved if clamping is None else clamp_boxes(moved, after, "XYXY")
        return convert_boxes(moved, "XYXY", format).astype(dtype)
    if isinstance(op, Perspective):
        moved = hull(_perspective(op, at, corners(convert_boxes(boxes, format, "XYXY"))))
        moved = moved if clamping is None else clamp_boxes(moved, after, "XYXY")
        return convert_boxes(moved, "XYXY", format).astype(dtype)
    raise cannot_follow(op, "boxes")


def centers_within(boxes: Array, low: Array, high: Array) -> Array:
    """Return bool[...]: whether the centers of XYXY boxes [..., 4] lie between ``low`` and ``high``, both [..., 2]."""
    half = np.asarray(0.5, np.float32 if boxes.dtype.kind == "i" else boxes.dtype)
    center = half * (boxes[..., :2] + boxes[..., 2:]).astype(half.dtype)
    within: Array = ((low < center) & (center < high)).all(axis=-1)
    return within


@dataclass(frozen=True, eq=False)
class BatchBoxes:
    """Boxes of all images of a batch, by which a transform draws."""

    values: Array
    """[M, 4]"""
    rows: npt.NDArray[np.int64]
    """i64[M]: the row of each box's image in the batch, never falling."""
    format: BoxFormat = "XYXY"
    clamping: Clamping = "soft"

    def moved(self, ops: Sequence[Op], sizes: npt.NDArray[np.int64]) -> BatchBoxes:
        """Return the boxes after ``ops``. ``sizes`` i64[B, 2] are height and width of the images before them.

        Raises :class:`PipelineError` for an op that they cannot follow.
        """
        boxes, size = self.values, (sizes[self.rows, 0], sizes[self.rows, 1])
        for op in ops:
            if op.geometric:
                boxes = move_boxes(op, self.rows, boxes, size, self.format, self.clamping)
                size = size_after(op, self.rows, size)
        return self if boxes is self.values else replace(self, values=boxes)


def cannot_follow(op: Op, what: str) -> PipelineError:
    """Return the error for an op whose effect on targets is unknown."""
    name = getattr(op, "name", "") or type(op).__name__
    return PipelineError(
        f"{what} cannot follow {name}, because gpupipe does not know where it moves pixels; leave it out, or use a "
        "transform of gpupipe instead"
    )


def _check_padding(op: Crop, at: Rows, before: Size, what: str) -> None:
    """Raise if the padding repeats parts of the image, for which torchvision has no rule either."""
    if op.mode == "constant" or not op.padded:
        return
    outside = (op.top[at] < 0) | (op.left[at] < 0)
    outside |= (op.top[at] + op.height[at] > before[0]) | (op.left[at] + op.width[at] > before[1])
    if np.any(outside):
        raise PipelineError(
            f'padding_mode={op.mode!r} repeats parts of the image, which {what} cannot follow; use "constant"'
        )


def _ratios(before: Size, after: Size) -> Size:
    """Return the ratios of widths and heights, as torchvision computes them."""
    return after[1] / before[1], after[0] / before[0]


def _flipped(boxes: Array, axis: int, before: Size, format: BoxFormat) -> Array:
    # -(x - w) as in torchvision: it makes -0.0 where w - x makes 0.0.
    length = np.asarray(before[1 - axis]).astype(boxes.dtype)
    out = boxes.copy()
    if format == "XYXY":
        out[:, axis], out[:, axis + 2] = -(boxes[:, axis + 2] - length), -(boxes[:, axis] - length)
    elif format == "XYWH":
        out[:, axis] = -(boxes[:, axis] + boxes[:, axis + 2] - length)
    else:
        out[:, axis] = -(boxes[:, axis] - length)
    return out


def _affine(op: Warp, at: Rows, points: Array, before: Size, after: Size) -> Array:
    """Move points [N, n, 2]. ``op.matrix`` maps output positions to input positions, so it is inverted."""
    a, b, c, d, e, f = np.moveaxis(op.matrix[at], -1, 0)
    scale = a * e - b * d
    # Points are rows, so the inverse [e, -b; -d, a] / scale is transposed.
    linear = np.stack([e, -d, -b, a], axis=-1).reshape(*np.shape(a), 2, 2) / scale[..., None, None]  # transposed
    shift = np.stack([c, f], axis=-1)
    height, width = before
    half_in, half_out = _two(width, height, np.float64) / 2, _two(after[1], after[0], np.float64) / 2
    # Positions in tensors count from the center, so the origin moves there before and back afterwards.
    offset = -_product((shift + half_in if op.kind == "tensor" else shift)[..., None, :], linear)[..., 0, :]
    if op.kind == "tensor":
        offset = offset + half_out
    # torchvision moves the points of an enlarged canvas to its edge, not by whole pixels as it moves the image.
    frame = np.zeros((*half_in.shape[:-1], 4, 2))
    frame[..., 1:3, 0], frame[..., 2:, 1] = 2 * half_in[..., None, 0], 2 * half_in[..., None, 1]
    expanded = -_product(frame, linear).min(axis=-2)
    # A warp changes the size only if it expands the canvas.
    larger = np.asarray((after[0] != height) | (after[1] != width))
    offset = np.where(larger[..., None], expanded, offset)
    dtype = points.dtype
    moved: Array = _product(points, linear.astype(dtype)) + offset.astype(dtype)[..., None, :]
    return moved


def _product(points: Array, linear: Array) -> Array:
    """Multiply points [..., n, 2] by [..., 2, 2]."""
    made: Array = np.matmul(points, linear)
    return made


def _perspective(op: Perspective, at: Rows, points: Array) -> Array:
    """Move points [N, n, 2]. ``op.coefficients`` map output positions to input positions, so they are inverted."""
    c = np.moveaxis(op.coefficients[at], -1, 0)
    # The adjugate of [c0 c1 c2; c3 c4 c5; c6 c7 1], divided by its last entry, so that this entry is 1 again.
    scale = c[0] * c[4] - c[1] * c[3]
    if np.any(scale == 0):
        raise PipelineError("a perspective map has no inverse, so boxes and keypoints cannot follow it")
    inverse = [
        c[4] - c[5] * c[7], c[2] * c[7] - c[1], c[1] * c[5] - c[2] * c[4],
        c[5] * c[6] - c[3], c[0] - c[2] * c[6], c[2] * c[3] - c[0] * c[5],
        c[3] * c[7] - c[4] * c[6], c[1] * c[6] - c[0] * c[7],
    ]  # fmt: skip
    dtype = np.float32 if points.dtype.kind == "i" else points.dtype
    i = [(value / scale).astype(dtype)[..., None] for value in inverse]
    x, y = points[..., 0].astype(dtype), points[..., 1].astype(dtype)
    below = i[6] * x + i[7] * y + np.asarray(1, dtype)
    return np.stack([(i[0] * x + i[1] * y + i[2]) / below, (i[3] * x + i[4] * y + i[5]) / below], axis=-1)


def move_keypoints(op: Op, at: Rows, points: Array, before: Size) -> Array:
    """Move points [N, 2] as ``op`` moves pixels.

    Raises :class:`PipelineError` for an op that keypoints cannot follow.
    """
    return _where_drawn(op, at, points, before, _move_keypoints)


def _move_keypoints(op: Op, at: Rows, points: Array, before: Size) -> Array:
    after = size_after(op, at, before)
    dtype = points.dtype
    if isinstance(op, Crop):
        _check_padding(op, at, before, "keypoints")
        return points - _two(op.left[at], op.top[at], dtype)
    if isinstance(op, Resize):
        values = points.astype(np.float32) if dtype.kind == "i" else points
        return (values * _two(*_ratios(before, after), np.float32)).astype(dtype)
    if isinstance(op, Flip):
        axis = 0 if op.axis == "horizontal" else 1
        out = points.copy()
        # A point is a pixel, and the last one is at length - 1. Boxes are edges, which end at length.
        out[:, axis] = -(points[:, axis] - np.asarray(before[1 - axis] - 1).astype(dtype))
        return out
    values = points[:, None, :]
    if isinstance(op, Warp):
        values = values.astype(np.float32) if dtype.kind == "i" else values
        return _affine(op, at, values, before, after)[:, 0].astype(dtype)
    if isinstance(op, Perspective):
        return _perspective(op, at, values)[:, 0].astype(dtype)
    raise cannot_follow(op, "keypoints")
