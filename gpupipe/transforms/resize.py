"""Resizing, with torchvision's rules for sizes, in numpy for a whole batch at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from ..errors import ConfigError
from .base import F64, I64, Images, Transform, interpolation_name, items, pair, resolves
from .geometry import below, filled, i32
from .ops import Crop, Op, Resize as ResizeOp

__all__ = ["RandomResizedCrop", "Resize", "resized"]


def resized(transform: Any, images: Images, height: I64, width: I64, u: F64 | None = None) -> tuple[Op, ...]:
    """Resize ops with the transform's ``interpolation`` and ``antialias``; where it has several interpolations, ``u``
    f64[B] chooses one for each image."""
    modes = items(transform.interpolation)
    antialias = transform.antialias or images.kind == "pil"  # PIL always filters when it reduces
    if images.kind == "tensor" and not {"box", "hamming"}.isdisjoint(modes):
        raise transform.refuse(f"interpolation {transform.interpolation!r} exists for PIL images only")
    ops: list[Op] = []
    choice = np.zeros(len(height), np.int64) if u is None else below(u, len(modes))
    for k, mode in enumerate(modes):
        op: Op = ResizeOp(i32(height), i32(width), interpolation=mode, antialias=antialias, kind=images.kind)
        if len(modes) > 1:
            op, mine = op.where(choice == k, images.sizes), choice == k
            images = images.sized(np.where(mine, height, images.height), np.where(mine, width, images.width))
        ops.append(op)
    return tuple(ops)


@dataclass(frozen=True, repr=False)
class Resize(Transform):
    """Resize to ``size``: (height, width), or one number for the shorter edge, keeping the shape.

    The longer edge is ``int(size * long / short)`` as in torchvision; with ``max_size`` it is at most that.
    ``size=None`` with ``max_size``
    makes the longer edge ``max_size``.
    """

    size: int | Sequence[int] | None
    interpolation: Any = "bilinear"
    max_size: int | None = None
    antialias: bool = True

    def __post_init__(self) -> None:
        size = self.size
        if size is None:
            if not isinstance(self.max_size, int) or self.max_size < 1:
                raise ConfigError(f"Resize(size=None) needs max_size, a positive integer, not {self.max_size!r}")
        elif len(items(size)) == 1:
            short = pair(size, "Resize: size")[0]
            if self.max_size is not None and self.max_size <= short:
                raise ConfigError(f"Resize: max_size={self.max_size} must be greater than size={short}")
            size = short
        else:
            size = pair(size, "Resize: size")
            if self.max_size is not None:
                raise ConfigError("Resize: max_size goes with one number as size, not with (height, width)")
        self.set(size=size, interpolation=interpolation_name(self.interpolation), antialias=self.antialias is not False)

    def resolve(self, u: F64, images: Images) -> tuple[tuple[Op, ...], Images]:
        h, w = images.height, images.width
        if isinstance(self.size, tuple):
            height, width = filled(len(h), self.size[0]), filled(len(w), self.size[1])
        else:
            short, long = np.minimum(h, w), np.maximum(h, w)
            if self.size is None:
                assert self.max_size is not None
                new_long = filled(len(h), self.max_size)
                new_short = (self.max_size * short / long).astype(np.int64)
            else:
                assert isinstance(self.size, int)
                new_short = filled(len(h), self.size)
                new_long = (self.size * long / short).astype(np.int64)
                if self.max_size is not None:
                    over = new_long > self.max_size
                    new_short = np.where(over, (self.max_size * new_short / new_long).astype(np.int64), new_short)
                    new_long = np.where(over, self.max_size, new_long)
            new_short = np.maximum(new_short, 1)
            height, width = np.where(w <= h, new_long, new_short), np.where(w <= h, new_short, new_long)
        return resolves(resized(self, images, height, width), images.sized(height, width))


@dataclass(frozen=True, repr=False)
class RandomResizedCrop(Transform):
    """A window of random area and shape, resized to ``size``: the training crop of Szegedy et al.,
    *Going deeper with convolutions* (2015), with torchvision's rule.

    Ten attempts draw an area uniform in ``scale`` and a shape log-uniform in ``ratio``; the first window that fits is
    taken at a uniform
    place. If none fits, the largest centred window within ``ratio`` is.

    Of several ``interpolation`` each image draws one, as timm's form of this transform does by default.
    """

    ATTEMPTS: ClassVar[int] = 10

    size: int | Sequence[int]
    scale: Sequence[float] = (0.08, 1.0)
    ratio: Sequence[float] = (3.0 / 4.0, 4.0 / 3.0)
    interpolation: Any = "bilinear"
    antialias: bool = True

    def __post_init__(self) -> None:
        for name in ("scale", "ratio"):
            bounds = items(getattr(self, name))
            if len(bounds) != 2 or not 0 < bounds[0] <= bounds[1]:
                raise ConfigError(
                    f"RandomResizedCrop: {name} must be (low, high) with 0 < low <= high, not {getattr(self, name)!r}"
                )
        several = tuple(interpolation_name(i) for i in items(self.interpolation))
        self.set(
            size=pair(self.size, "RandomResizedCrop: size"),
            scale=tuple(float(x) for x in self.scale),
            ratio=tuple(float(x) for x in self.ratio),
            interpolation=several[0] if len(several) == 1 else several,
            antialias=self.antialias is not False,
        )

    @property
    def draws(self) -> int:
        return 2 + 2 * self.ATTEMPTS + isinstance(self.interpolation, tuple)

    def resolve(self, u: F64, images: Images) -> tuple[tuple[Op, ...], Images]:
        assert isinstance(self.size, tuple)
        fits, height, width = self._attempts(u[:, 2 : 2 + 2 * self.ATTEMPTS], images)
        fallback_height, fallback_width = self._fallback(images)
        height = np.where(fits, height, fallback_height)
        width = np.where(fits, width, fallback_width)
        room_h, room_w = images.height - height, images.width - width
        top = np.where(fits, below(u[:, 0], room_h + 1), room_h // 2)
        left = np.where(fits, below(u[:, 1], room_w + 1), room_w // 2)
        crop = Crop(i32(top), i32(left), i32(height), i32(width))
        out_h, out_w = (filled(len(u), n) for n in self.size)
        ops = resized(self, images.sized(height, width), out_h, out_w, u[:, -1])
        return resolves((crop, *ops), images.sized(out_h, out_w))

    def _attempts(self, u: F64, images: Images) -> tuple[Any, I64, I64]:
        """The first of ten windows that fits: (whether there is one bool[B], height i64[B], width i64[B])."""
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
        """The largest window of an allowed shape: (height i64[B], width i64[B])."""
        narrowest, widest = self.ratio
        h, w = images.height, images.width
        shape = w / h
        height = np.where(shape < narrowest, np.rint(w / narrowest), h).astype(np.int64)
        width = np.where(shape > widest, np.rint(h * widest), w).astype(np.int64)
        return height, width
