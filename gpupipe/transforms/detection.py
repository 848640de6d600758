"""Crops for detection training. Numbers are float32 where torchvision's are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple, TypeAlias

import numpy as np

from ..errors import ConfigError
from ..rng import uniforms
from . import fields
from .boxes import BatchBoxes, centers_within, convert_boxes
from .fields import Converted, Fill, Pair, frozen, items
from .geometry import Mode, known_mode
from .numbers import below, filled, i32, seeds
from .ops import Crop
from .ops.op import F64, I64, Array, Mask
from .transform import Images, Ops, Transform

__all__ = ["FixedSizeCrop", "RandomIoUCrop"]

_ROUNDS = 200
"""How many options an image draws at most. With torchvision's options, one of seven leaves the image as it is, and one
of 10**13 images without a fitting window draws more."""

Options: TypeAlias = Converted[Sequence[float] | None, tuple[float, ...]]


def _options(value: Sequence[float] | None, what: str) -> tuple[float, ...]:
    options = (0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0) if value is None else items(value)
    if not options or not all(isinstance(x, (int, float)) and x >= 0 for x in options):
        raise ConfigError(f"{what} must be numbers of at least 0, not {value!r}")
    return tuple(float(x) for x in options)


@frozen
class RandomIoUCrop(Transform):
    """Crop a random window that contains the center of a box, and overlaps one such box by at least a drawn IoU.

    It needs a dataset with boxes (Liu et al., *SSD: Single Shot MultiBox Detector*, 2016). An option is drawn from
    ``sampler_options``; an option of 1 or more leaves the image as it is. Then up to ``trials`` windows are drawn. If
    none fits, another option is drawn. Boxes whose center lies outside the window become zero, until
    :class:`SanitizeBoundingBoxes` removes them with their labels, masks and other rows.

    An image without boxes has no fitting window. It stays as it is after 200 options, where torchvision would go on
    forever if no option is 1 or more.

    Args:
        min_scale, max_scale: limits of the window's sides, as a factor of the image's sides.
        min_aspect_ratio, max_aspect_ratio: limits of the window's width divided by its height.
        sampler_options: minimum IoUs; ``None`` for 0, 0.1, 0.3, 0.5, 0.7, 0.9 and 1.
        trials: number of windows per option.

    Raises:
        ConfigError: a limit is not positive or exceeds the other, or an option is negative.
        PipelineError: the dataset has no boxes, or boxes cannot follow the transforms before this one.

    >>> RandomIoUCrop(trials=20).sampler_options
    (0.0, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0)
    """

    DRAWS: ClassVar[int] = 1

    min_scale: float = 0.3
    max_scale: float = 1.0
    min_aspect_ratio: float = 0.5
    max_aspect_ratio: float = 2.0
    sampler_options: Options = Converted(_options, default=None)
    trials: Converted[int, int] = Converted(fields.whole(1), default=40)

    def __post_init__(self) -> None:
        for low, high in (("min_scale", "max_scale"), ("min_aspect_ratio", "max_aspect_ratio")):
            limits = fields.items((getattr(self, low), getattr(self, high)))
            if not all(isinstance(x, (int, float)) for x in limits) or not 0 < limits[0] <= limits[1]:
                raise ConfigError(f"RandomIoUCrop: it needs 0 < {low} <= {high}, not {limits[0]!r} and {limits[1]!r}")
        if self.max_scale > 1:
            raise ConfigError(f"RandomIoUCrop: max_scale must be at most 1, not {self.max_scale!r}")

    @property
    def draws_by_boxes(self) -> bool:
        return True

    def resolve(self, u: F64, images: Images) -> tuple[Ops, Images]:
        if images.boxes is None:
            raise self.refuse("it draws by boxes, and the images have none")
        open_, drawn = np.arange(len(u)), np.zeros(len(u), np.bool_)
        windows = np.concatenate([np.zeros_like(images.sizes), images.sizes], axis=1)
        # The number of rounds is not known beforehand, so one uniform number keys a stream for each image.
        keys, options = seeds(u[:, 0]), np.array(self.sampler_options)
        for number in range(_ROUNDS):
            # The round takes the place of a transform, so that every round has other numbers.
            numbers = uniforms(0, 0, number, keys[open_], 1 + 4 * self.trials)
            least = options[below(numbers[:, 0], len(options))]
            goes_on = least < 1
            open_, numbers, least = open_[goes_on], numbers[goes_on, 1:], least[goes_on]
            if not len(open_):
                break
            trials = self._windows(numbers.reshape(len(open_), -1, 4).astype(np.float32), images.sizes[open_])
            fits = self._possible(trials) & _fit(trials, least, _of(images.boxes, open_, len(u)))
            found, first = fits.any(axis=1), fits.argmax(axis=1)
            windows[open_[found]] = trials[found, first[found]]
            drawn[open_[found]] = True
            # Images without a fitting window draw another option.
            open_ = open_[~found]
        top, left, height, width = windows.T
        crop = Crop(i32(top), i32(left), i32(height), i32(width), mask=drawn, by_center=True)
        return (crop,), images.sized(height, width)

    def _windows(self, u: Array, sizes: I64) -> I64:
        """Return i64[B, trials, 4], top, left, height and width, from numbers f32[B, trials, 4]."""
        low, span = np.float32(self.min_scale), np.float32(self.max_scale - self.min_scale)
        sides = sizes[:, None, ::-1]  # torchvision draws widths first
        extent = (sides.astype(np.float32) * (low + span * u[..., :2])).astype(np.int64)
        start = ((sides - extent).astype(np.float32) * u[..., 2:]).astype(np.int64)
        return np.concatenate([start[..., ::-1], extent[..., ::-1]], axis=-1)

    def _possible(self, windows: I64) -> Mask:
        height, width = windows[..., 2], windows[..., 3]
        # An empty window has no ratio; the last condition excludes it.
        with np.errstate(divide="ignore", invalid="ignore"):
            ratio = width / height
        within = (self.min_aspect_ratio <= ratio) & (ratio <= self.max_aspect_ratio)
        possible: Mask = within & (width > 0) & (height > 0)
        return possible


class _Boxes(NamedTuple):
    values: Array
    """[M, 4] in XYXY"""
    at: I64
    """i64[M]: the image of each box"""


def _of(boxes: BatchBoxes, images: I64, count: int) -> _Boxes:
    """Return the boxes of some of ``count`` images, numbered as in ``images``."""
    # Boxes have rows of the whole batch. `place` translates these to numbers within `images`, or -1.
    place = filled(count, -1)
    place[images] = np.arange(len(images))
    at = place[boxes.rows]
    return _Boxes(convert_boxes(boxes.values[at >= 0], boxes.format, "XYXY"), at[at >= 0])


def _fit(windows: I64, least: F64, boxes: _Boxes) -> Mask:
    """Return bool[B, trials]: whether windows i64[B, trials, 4] contain the center of a box, and overlap one of those
    boxes by an IoU of at least ``least`` f64[B]."""
    fit = np.zeros(windows.shape[:2], np.bool_)
    # Boxes are sorted by image, so the first box of each image begins a segment for reduceat().
    images, first = np.unique(boxes.at, return_index=True)
    if not len(images):
        return fit
    # Windows are (top, left, height, width), boxes (x, y, x, y).
    low = windows[boxes.at, :, 1::-1]
    high = low + windows[boxes.at, :, :1:-1]
    values = boxes.values[:, None]
    within = centers_within(values, low, high)
    # A box whose center lies outside the window does not count, however large the overlap is.
    iou = np.where(within, _iou(values, low, high), -np.inf)
    best = np.maximum.reduceat(iou, first, axis=0)
    fit[images] = np.logical_or.reduceat(within, first, axis=0) & ~(best < least[images, None].astype(best.dtype))
    return fit


def _iou(boxes: Array, low: I64, high: I64) -> Array:
    """Return the IoU of XYXY boxes [M, 1, 4] and windows [M, trials], as torchvision computes it."""
    low, high = low.astype(boxes.dtype), high.astype(boxes.dtype)
    common = np.maximum(np.minimum(boxes[..., 2:], high) - np.maximum(boxes[..., :2], low), 0).prod(axis=-1)
    area = (boxes[..., 2:] - boxes[..., :2]).prod(axis=-1)
    union = area + (high - low).prod(axis=-1) - common
    # torch divides integers in float32.
    if boxes.dtype.kind == "i":
        common, union = common.astype(np.float32), union.astype(np.float32)
    with np.errstate(divide="ignore", invalid="ignore"):
        found: Array = common / union
    return found


@frozen
class FixedSizeCrop(Transform):
    """Crop a random window of ``size``, and pad smaller images on the right and at the bottom.

    One number places the window along both sides, as in torchvision's detection reference. Boxes outside the window
    stay, without area, until :class:`SanitizeBoundingBoxes` removes them; the reference removes them at once.

    Args:
        size: height and width of the result, or one number for both.
        fill: value of the new pixels, or one value per channel.
        padding_mode: ``"constant"``, ``"edge"``, ``"reflect"`` or ``"symmetric"``.

    >>> FixedSizeCrop(1024, fill=(123, 117, 104)).size
    (1024, 1024)
    """

    DRAWS: ClassVar[int] = 1

    size: Pair = Converted(fields.pair)
    fill: Fill = Converted(fields.fill, default=0)
    padding_mode: Mode = Converted(known_mode, default="constant")

    def resolve(self, u: F64, images: Images) -> tuple[Ops, Images]:
        sides: Any = np.array(self.size)
        room = np.maximum(images.sizes - sides, 0)
        start = (room.astype(np.float32) * u[:, :1].astype(np.float32)).astype(np.int64)
        inside = np.minimum(images.sizes, sides)
        height, width = (filled(len(u), n) for n in self.size)
        zero = i32(filled(len(u), 0))
        (top, left), (rows, columns) = map(i32, start.T), map(i32, inside.T)
        # An image may need a crop along one side and padding along the other, hence two ops.
        crop = Crop(top, left, rows, columns, mask=room.any(axis=1))
        smaller = (inside < sides).any(axis=1)
        padding: dict[str, Any] = {"padded": True, "fill": self.fill, "mode": self.padding_mode, "mask": smaller}
        return (crop, Crop(zero, zero, i32(height), i32(width), **padding)), images.sized(height, width)
