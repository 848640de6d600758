"""Moves what belongs to an image (masks, boxes, keypoints) as the ops of a plan move its pixels.

Crops, resizes and flips of a mask compose into an index vector for rows and one for columns; a warp turns them into one
index for each pixel. A mask of any type, or many of them, is then gathered once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn.functional import grid_sample

from ..errors import PipelineError
from ..transforms.boxes import (
    BoxFormat,
    Clamping,
    cannot_follow,
    check_boxes,
    clamp_keypoints,
    move_boxes,
    move_keypoints,
    size_after,
)
from ..transforms.ops import Crop, Flip, Op, Perspective, Resize, Warp
from ..transforms.ops.op import I64, Array
from .geometry import reach
from .warp import affine_grid, perspective_grid

Nearest = Literal["floor", "center"]
"""Which pixel is the nearest: ``"floor"`` rounds positions down, as torch's ``nearest``, ``tv_tensors.Mask`` and
OpenCV's ``INTER_NEAREST`` do; ``"center"`` compares the centers of pixels, as Pillow and ``NEAREST_EXACT`` do."""

_Size: TypeAlias = tuple[int, int]


class _Step(NamedTuple):
    op: Op
    number: int
    """Place of the op in the sequence, which selects its fill."""
    before: _Size
    after: _Size


class Moves:
    """Geometric steps of one sample.

    >>> import numpy as np
    >>> from gpupipe.transforms.ops import Flip, Resize
    >>> half = Resize(np.array([2], np.int32), np.array([4], np.int32))
    >>> moves = Moves.of([half, Flip(np.array([True]))], row=0, size=(4, 8))
    >>> moves.mask(np.arange(32, dtype=np.uint8).reshape(4, 8))
    array([[ 6,  4,  2,  0],
           [22, 20, 18, 16]], dtype=uint8)
    >>> moves.boxes(np.array([[0.0, 0, 4, 2]], np.float32))
    array([[2., 0., 4., 1.]], dtype=float32)
    """

    def __init__(self, steps: Sequence[_Step], row: int, size: _Size, count: int):
        self._steps = tuple(steps)
        self._row = row
        self._count = count
        self.size = size
        """Height and width of the incoming image."""
        self.out_size = self._steps[-1].after if self._steps else size
        """Height and width of the outgoing image."""
        self._found: dict[tuple[Nearest, bool], _Index] = {}

    @classmethod
    def of(cls, ops: Sequence[Op], row: int, size: tuple[int, int]) -> Moves:
        """Collect the ops that move pixels.

        Args:
            ops: ops of a plan without views (see :func:`~gpupipe.transforms.ops.by_view`).
            row: row of their arrays.
            size: height and width of the incoming image.

        Raises :class:`PipelineError` for an op whose movement is unknown, such as a function of the user.
        """
        steps: list[_Step] = []
        start = size = int(size[0]), int(size[1])
        for number, op in enumerate(ops):
            if not op.geometric or op.passes(row) or getattr(op, "content", None) is not None:
                continue
            check_followed([op])
            height, width = size_after(op, row, size)
            after = int(height), int(width)
            if not (isinstance(op, Resize) and after == size):  # which leaves all as it is
                steps.append(_Step(op, number, size, after))
            size = after
        return cls(steps, row, start, len(ops))

    def mask(self, mask: Array, nearest: Nearest = "floor", fill: float | Sequence[float] = 0) -> Array:
        """Move masks.

        Args:
            mask: [..., H, W] of any data type, as large as the incoming image.
            nearest: which pixel resizes and warps read.
            fill: value of pixels outside the image: one number, or one for each op given to :meth:`of`.

        Returns:
            [..., H', W'] of the same data type, a copy. Raises :class:`PipelineError` if the size differs from the
            image's, or if ``fill`` does not fit the data type.
        """
        if nearest not in ("floor", "center"):
            raise PipelineError(f"nearest must be 'floor' or 'center', not {nearest!r}")
        mask = np.asarray(mask)
        if mask.shape[-2:] != self.size:
            raise PipelineError(
                f"a mask of shape {list(mask.shape)} does not fit its image of {self.size[0]}x{self.size[1]} pixels; "
                "masks are [..., height, width] of the image"
            )
        # Compose the steps as indices, and read the mask once at the end: a chain of resizes and flips costs one
        # gather, and no value is ever interpolated.
        index = self._index(nearest, mask.dtype == np.float64)
        if isinstance(index, tuple):
            rows, columns = index
            out = _taken(_taken(mask, rows, -2), columns, -1)
            outside = np.minimum.outer(rows, columns) if min(rows.min(), columns.min()) < 0 else None
        else:
            out = mask.reshape(*mask.shape[:-2], -1).take(np.maximum(index, 0), axis=-1)
            outside = index
        if outside is not None:
            self._fill(out, outside, fill)
        return np.ascontiguousarray(out) if out.base is None else out.copy()

    def _fill(self, out: Array, index: I64, fill: float | Sequence[float]) -> None:
        """Write the fill where ``index`` is negative: -1 - the number of the op that looked outside last."""
        values = [fill] * self._count if isinstance(fill, (int, float)) else list(fill)
        if len(values) != self._count:
            raise PipelineError(
                f"fill has {len(values)} numbers for {self._count} ops; give one number, or one for each"
            )
        for number in {step.number for step in self._steps}:
            if (at := index == -1 - number).any():
                out[..., at] = _fitting(values[number], out.dtype)

    def _index(self, nearest: Nearest, wide: bool) -> _Index:
        """Return which incoming pixel each outgoing pixel shows."""
        if (found := self._found.get((nearest, wide))) is not None:
            return found
        height, width = self.size
        rows, columns = np.arange(height), np.arange(width)
        pixels: I64 | None = None
        for step in self._steps:
            outside = -1 - step.number
            axes = _axes(step, self._row, nearest, wide)
            # As long as every step treats rows and columns separately, two vectors describe the movement. From the
            # first warp on, every pixel needs an index.
            if axes is not None:
                if pixels is None:
                    rows, columns = _chained(rows, axes[0], outside), _chained(columns, axes[1], outside)
                else:
                    pixels = _joined(*axes, pixels, outside)
                continue
            if pixels is None:
                pixels = rows[:, None] * width + columns
                negative = np.minimum.outer(rows, columns)
                pixels = np.where(negative < 0, negative, pixels)
            pixels = _chained(pixels.ravel(), self._warped(step, nearest, wide), outside)
        self._found[nearest, wide] = found = (rows, columns) if pixels is None else pixels
        return found

    def _warped(self, step: _Step, nearest: Nearest, wide: bool) -> I64:
        """Return i64[H', W']: the incoming pixel that each outgoing pixel shows, -1 outside the image."""
        op, row = step.op, self._row
        height, width = step.before
        if isinstance(op, Warp) and op.turns[row] >= 0:
            return np.rot90(np.arange(height * width).reshape(height, width), int(op.turns[row]))
        x = torch.empty(1, 1, height, width, dtype=torch.float64 if wide else torch.float32)
        if isinstance(op, Warp):
            matrix = _matrix_for(op, row, step, "pil" if nearest == "center" else "tensor")
            if nearest == "center":
                return _by_pillow(Image.Transform.AFFINE, matrix.tolist(), step)
            return _by_grid(affine_grid(matrix[None], step.after, x), x)
        assert isinstance(op, Perspective)
        if nearest == "center":
            return _by_pillow(Image.Transform.PERSPECTIVE, op.coefficients[row].tolist(), step)
        return _by_grid(perspective_grid(op.coefficients[row : row + 1], x), x)

    def boxes(self, boxes: Array, format: BoxFormat = "XYXY", clamping: Clamping = "soft") -> Array:
        """Move bounding boxes like torchvision's v2 functionals.

        Args:
            boxes: [N, 4], floats or signed integers, in pixels of the incoming image.
            format: ``"XYXY"``, ``"XYWH"`` or ``"CXCYWH"``.
            clamping: torchvision's ``clamping_mode``: ``"soft"`` or ``"hard"`` limit boxes to the image after crops,
                padding and warps; ``None`` does not.

        Returns:
            [N, 4] of the same data type and format. Integers truncate after each step. A warped box is the hull of its
            corners. Boxes that have left the image remain, without area.
        """
        boxes = check_boxes(boxes, format, clamping)
        for step in self._steps:
            boxes = move_boxes(step.op, self._row, boxes, step.before, format, clamping)
        return boxes

    def keypoints(self, points: Array, clamping: Clamping = None) -> Array:
        """Move keypoints like torchvision's v2 functionals.

        Args:
            points: [..., 2], x and y in pixels of the incoming image, floats or signed integers.
            clamping: ``None`` keeps points that have left the image; ``"soft"`` or ``"hard"`` limit them to its pixels
                at the end, like torchvision's ``ClampKeyPoints``.

        Returns:
            [..., 2] of the same data type.
        """
        points = np.asarray(points)
        if points.shape[-1:] != (2,) or points.dtype.kind not in "fi":
            raise PipelineError(
                f"keypoints must be floats or signed integers [..., 2], not {points.dtype}{list(points.shape)}"
            )
        flat = points.reshape(-1, 2)
        for step in self._steps:
            flat = move_keypoints(step.op, self._row, flat, step.before)
        if clamping is not None:
            flat = clamp_keypoints(flat, self.out_size)
        return flat.reshape(points.shape)


def check_followed(ops: Sequence[Op], what: str = "masks, boxes and keypoints") -> None:
    """Raise :class:`PipelineError` for an op whose movement of pixels is unknown."""
    for op in ops:
        if op.geometric and not isinstance(op, _FOLLOWED):
            raise cannot_follow(op, what)


_Index: TypeAlias = "tuple[I64, I64] | I64"
"""Rows and columns, or one flat index for each pixel; negative outside the image."""

_FOLLOWED = (Crop, Resize, Flip, Warp, Perspective)


def _axes(step: _Step, row: int, nearest: Nearest, wide: bool) -> tuple[I64, I64] | None:
    """Return the rows and columns that a step reads, -1 outside; ``None`` if it does not treat them separately."""
    op, (height, width), (rows, columns) = step.op, step.before, step.after
    if isinstance(op, Crop):
        return _window(int(op.top[row]), rows, height, op.mode), _window(int(op.left[row]), columns, width, op.mode)
    if isinstance(op, Resize):
        return _resized(height, rows, nearest, wide), _resized(width, columns, nearest, wide)
    if isinstance(op, Flip):
        ways = (1, -1) if op.axis == "horizontal" else (-1, 1)
        return np.arange(height)[:: ways[0]], np.arange(width)[:: ways[1]]
    return None


def _window(start: int, length: int, have: int, mode: str) -> I64:
    if mode != "constant":
        return reach(start, length, have, mode)
    at = np.arange(start, start + length)
    return at if start >= 0 and start + length <= have else np.where((at < 0) | (at >= have), -1, at)


def _resized(old: int, new: int, nearest: Nearest, wide: bool) -> I64:
    if old == new:
        return np.arange(new)
    if nearest == "floor":
        real = np.dtype(np.float64 if wide else np.float32)  # as torch computes
        scale = np.array(old, real) / np.array(new, real)
        return np.minimum((np.arange(new).astype(real) * scale).astype(np.int64), old - 1)
    # Pillow starts at half a step and adds the step again and again, so its rounding errors accumulate. A product
    # would differ from it at some pixels of large images.
    step = old / new
    steps = np.full(new, step)
    steps[0] = step * 0.5
    return np.cumsum(steps).astype(np.int64)


def _chained(old: I64, new: I64, outside: int) -> I64:
    """Return ``old[new]``, and ``outside`` where ``new`` is negative."""
    made = old[new]
    return np.where(new < 0, outside, made) if new.min() < 0 else made


def _joined(rows: I64, columns: I64, pixels: I64, outside: int) -> I64:
    made = pixels[rows[:, None], columns]
    if min(rows.min(), columns.min()) < 0:
        made[rows < 0] = outside
        made[:, columns < 0] = outside
    return made


def _taken(mask: Array, at: I64, axis: int) -> Array:
    """Take rows or columns. A run of neighbors is a view."""
    first, count = int(at[0]), len(at)
    if first >= 0 and int(at[-1]) - first == count - 1 and (np.diff(at) == 1).all():
        part = slice(first, first + count)
        return mask[..., part, :] if axis == -2 else mask[..., part]
    found: Array = mask.take(np.maximum(at, 0), axis=axis)
    return found


def _fitting(fill: float, dtype: Any) -> Any:
    value = np.asarray(fill)
    if dtype.kind in "iub" and value.astype(dtype) != value:
        raise PipelineError(
            f"fill={fill!r} does not fit masks of {dtype}; use a value that they can hold, or convert the masks first"
        )
    return dtype.type(value)


def _matrix_for(op: Warp, row: int, step: _Step, kind: str) -> Array:
    """Return f64[6] for positions as ``kind`` measures them: from the upper left corner, or from the center."""
    matrix: Array = op.matrix[row].copy()
    if op.kind == kind:
        return matrix
    (height, width), (rows, columns) = step.before, step.after
    # With c_in and c_out the centers of both images, y = A x + b from the corners is y - c_in = A (x - c_out) + b' from
    # the centers, with b' = b + A c_out - c_in.
    sign = 1 if kind == "tensor" else -1
    for at, half in ((0, width / 2), (3, height / 2)):
        shift = matrix[at + 2] + sign * (matrix[at] * columns / 2 + matrix[at + 1] * rows / 2 - half)
        matrix[at + 2] = 0.0 if abs(shift) < 1e-9 else shift
    return matrix


def _by_grid(grid: Tensor, x: Tensor) -> I64:
    """Return the pixels that torch's ``grid_sample`` finds nearest."""
    height, width = x.shape[-2:]
    # Sample an image of coordinates, so that torch itself decides which pixel is the nearest. Coordinates below 2**24
    # are exact in float32.
    places = torch.empty(1, 2, height, width, dtype=grid.dtype)  # 1 + row, 1 + column; 0 outside
    places[0, 0] = torch.arange(1, height + 1)[:, None]
    places[0, 1] = torch.arange(1, width + 1)
    found = grid_sample(places, grid, mode="nearest", padding_mode="zeros", align_corners=False)[0].numpy()
    rows, columns = found.astype(np.int64) - 1
    return np.where(rows < 0, -1, rows * width + columns)


def _by_pillow(method: Image.Transform, data: Sequence[float], step: _Step) -> I64:
    """Return the pixels that Pillow's ``Image.transform`` finds nearest."""
    height, width = step.before
    places = Image.fromarray(np.arange(1, height * width + 1, dtype=np.int32).reshape(height, width))
    made = places.transform(step.after[::-1], method, tuple(data), Image.Resampling.NEAREST, fillcolor=0)
    return np.asarray(made).astype(np.int64) - 1
