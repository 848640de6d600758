"""Resizes: torchvision's rules for sizes in numpy, for a whole batch at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from ..errors import ConfigError
from . import fields
from .fields import Converted, Flag, Interpolation, Names, Pair, Range, frozen, items
from .numbers import below, filled, i32
from .ops import Crop, Op, Resize as ResizeOp
from .ops.op import F64, I64, Mask
from .transform import Images, Ops, Transform

__all__ = ["RandomResizedCrop", "Resize"]


def resized(transform: Any, images: Images, height: I64, width: I64, u: F64 | None = None) -> Ops:
    """Return resize ops with the transform's ``interpolation`` and ``antialias``.

    If there are several interpolations, ``u`` f64[B] selects one for each image.
    """
    modes = items(transform.interpolation)
    antialias = transform.antialias or images.kind == "pil"  # PIL always filters when it shrinks
    if images.kind == "tensor" and not {"box", "hamming"}.isdisjoint(modes):
        raise transform.refuse(f"interpolation {transform.interpolation!r} exists for PIL images only")
    ops: list[Op] = []
    choice = np.zeros(len(height), np.int64) if u is None else below(u, len(modes))
    for k, mode in enumerate(modes):
        op: Op = ResizeOp(i32(height), i32(width), interpolation=mode, antialias=antialias, kind=images.kind)
        if len(modes) > 1:
            # Every filter is a separate op. An image that drew another filter passes it with its current size.
            op, mine = op.where(choice == k, images.sizes), choice == k
            images = images.sized(np.where(mine, height, images.height), np.where(mine, width, images.width))
        ops.append(op)
    return tuple(ops)


def _size(value: int | Sequence[int] | None, what: str) -> int | tuple[int, int] | None:
    """Convert to (height, width); a single number, for the shorter edge, stays one."""
    if value is None:
        return None
    size = fields.pair(value, what)
    return size[0] if len(items(value)) == 1 else size


@frozen
class Resize(Transform):
    """Resize to ``size``: (height, width), or one number for the shorter edge, keeping the aspect ratio.

    The longer edge is ``int(size * long / short)`` as in torchvision, at most ``max_size``. ``size=None`` resizes the
    longer edge to ``max_size``.

    Args:
        size: (height, width), or one number for the shorter edge. ``None``: ``max_size`` for the longer edge.
        interpolation: a member of torchvision's ``InterpolationMode`` or its name, such as ``"bilinear"``.
        max_size: limit of the longer edge, if ``size`` is one number.
        antialias: ``False`` shrinks tensors without a filter. PIL images are always filtered.

    >>> Resize((480, 640), "bicubic")
    Resize(size=(480, 640), interpolation='bicubic', max_size=None, antialias=True)
    """

    size: Converted[int | Sequence[int] | None, int | tuple[int, int] | None] = Converted(_size)
    interpolation: Interpolation = Converted(fields.interpolation, default="bilinear")
    max_size: int | None = None
    antialias: Flag = Converted(fields.antialias, default=True)

    def __post_init__(self) -> None:
        if self.size is None:
            if not isinstance(self.max_size, int) or self.max_size < 1:
                raise ConfigError(f"Resize(size=None) needs max_size, a positive integer, not {self.max_size!r}")
        elif self.max_size is not None:
            if isinstance(self.size, tuple):
                raise ConfigError("Resize: max_size needs a single number as size, not (height, width)")
            if self.max_size <= self.size:
                raise ConfigError(f"Resize: max_size={self.max_size} must be greater than size={self.size}")

    def resolve(self, u: F64, images: Images) -> tuple[Ops, Images]:
        h, w = images.height, images.width
        if isinstance(self.size, tuple):
            height, width = filled(len(h), self.size[0]), filled(len(w), self.size[1])
        else:
            short, long = np.minimum(h, w), np.maximum(h, w)
            new_short, new_long = short, long
            if self.size is not None:
                new_short, new_long = filled(len(h), self.size), (self.size * long / short).astype(np.int64)
            if self.max_size is not None:
                # The longer edge becomes max_size if it is too long or if size is None; the shorter one follows.
                over = (new_long > self.max_size) | (self.size is None)
                new_short = np.where(over, (self.max_size * new_short / new_long).astype(np.int64), new_short)
                new_long = np.where(over, self.max_size, new_long)
            # The shorter edge of a very flat image may truncate to 0.
            new_short = np.maximum(new_short, 1)
            height, width = np.where(w <= h, new_long, new_short), np.where(w <= h, new_short, new_long)
        return resized(self, images, height, width), images.sized(height, width)


@frozen
class RandomResizedCrop(Transform):
    """Crop a window of random area and aspect ratio, and resize it to ``size``, with torchvision's rule.

    This is the training crop of Szegedy et al., *Going deeper with convolutions* (2015). Each of ten attempts draws an
    area uniform in ``scale`` and an aspect ratio log-uniform in ``ratio``. The first window that fits is placed
    uniformly; if none fits, the largest centered window within ``ratio`` is used.

    If ``interpolation`` names several filters, each image draws one, as timm's version does by default.

    Args:
        size: height and width, or one number for both.
        scale: (low, high) area of the window, as a share of the image.
        ratio: (low, high) width over height.
        interpolation: a member of torchvision's ``InterpolationMode`` or its name, or several of these.
        antialias: ``False`` shrinks tensors without a filter. PIL images are always filtered.

    >>> RandomResizedCrop(224, scale=(0.35, 1)).scale
    (0.35, 1.0)
    """

    ATTEMPTS: ClassVar[int] = 10

    size: Pair = Converted(fields.pair)
    scale: Range = Converted(fields.interval(above=0), default=(0.08, 1.0))
    ratio: Range = Converted(fields.interval(above=0), default=(3.0 / 4.0, 4.0 / 3.0))
    interpolation: Names = Converted(fields.interpolations, default="bilinear")
    antialias: Flag = Converted(fields.antialias, default=True)

    @property
    def draws(self) -> int:
        return 2 + 2 * self.ATTEMPTS + isinstance(self.interpolation, tuple)

    def resolve(self, u: F64, images: Images) -> tuple[Ops, Images]:
        # Uniform numbers: two for the position, ten for areas, ten for ratios, and one to choose among several filters.
        # A loop that stops at the first window that fits would draw different counts of numbers per image. All attempts
        # draw, and the first one that fits counts.
        fits, height, width = self._attempts(u[:, 2 : 2 + 2 * self.ATTEMPTS], images)
        fallback_height, fallback_width = self._fallback(images)
        height = np.where(fits, height, fallback_height)
        width = np.where(fits, width, fallback_width)
        room_h, room_w = images.height - height, images.width - width
        top = np.where(fits, below(u[:, 0], room_h + 1), room_h // 2)
        left = np.where(fits, below(u[:, 1], room_w + 1), room_w // 2)
        crop = Crop(i32(top), i32(left), i32(height), i32(width))
        out_h, out_w = (filled(len(u), n) for n in self.size)
        # With a single filter, the last number is one of the ratios', and the choice is 0 in any case.
        ops = resized(self, images.sized(height, width), out_h, out_w, u[:, -1])
        return (crop, *ops), images.sized(out_h, out_w)

    def _attempts(self, u: F64, images: Images) -> tuple[Mask, I64, I64]:
        """Return the first of ten windows that fits: (found, height, width), each [B].

        A window of area ``a`` and aspect ratio ``s`` = width / height is ``sqrt(a s)`` wide and ``sqrt(a / s)`` high.
        Ratios are log-uniform, so that twice as wide is as likely as twice as high.
        """
        (low, high), (ratio_low, ratio_high) = self.scale, np.log(self.ratio)
        h, w = images.height[:, None], images.width[:, None]
        area = h * w * (low + (high - low) * u[:, : self.ATTEMPTS])
        shape = np.exp(ratio_low + (ratio_high - ratio_low) * u[:, self.ATTEMPTS :])
        width = np.rint(np.sqrt(area * shape)).astype(np.int64)
        height = np.rint(np.sqrt(area / shape)).astype(np.int64)
        fits = (width > 0) & (width <= w) & (height > 0) & (height <= h)
        rows, first = np.arange(len(u)), fits.argmax(axis=1)
        return fits[rows, first], height[rows, first], width[rows, first]

    def _fallback(self, images: Images) -> tuple[I64, I64]:
        """Return the largest window of an allowed aspect ratio: (height i64[B], width i64[B])."""
        # Keep the axis that is too short for the ratio, and cut the other.
        narrowest, widest = self.ratio
        h, w = images.height, images.width
        shape = w / h
        height = np.where(shape < narrowest, np.rint(w / narrowest), h).astype(np.int64)
        width = np.where(shape > widest, np.rint(h * widest), w).astype(np.int64)
        return height, width
