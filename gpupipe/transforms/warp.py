"""Rotations, affine maps and perspective with torchvision's arguments and distributions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, TypeAlias

import numpy as np

from ..errors import ConfigError
from . import fields
from .fields import Converted, Flag, Interpolation, OptionalFill, Probability, frozen
from .matrices import affine_warp, rotation_warp
from .numbers import below, between, by_chance, everywhere
from .ops import Perspective
from .ops.op import F64
from .transform import Images, Ops, Transform

__all__ = ["RandomAffine", "RandomPerspective", "RandomRotation"]

Numbers = tuple[float, ...]
Point = tuple[float, float]

OptionalLimits: TypeAlias = Converted[float | Sequence[float] | None, Numbers | None]
OptionalPoint: TypeAlias = Converted[Sequence[float] | None, Point | None]

# Supported by Pillow's Image.transform and by torchvision's grid_sample.
MODES = {"pil": ("nearest", "nearest-exact", "bilinear", "bicubic"), "tensor": ("nearest", "bilinear")}


def _limits(*counts: int) -> Callable[[Any, str], Numbers]:
    """Return a converter of torchvision's angle arguments; one number d means (-d, d)."""

    def convert(value: Any, what: str) -> Numbers:
        values = fields.numbers(*counts)(value, what)
        if len(values) == 1:
            if values[0] < 0:
                raise ConfigError(f"{what} must not be negative as one number d, which means (-d, d); not {value!r}")
            return -values[0], values[0]
        if any(low > high for low, high in zip(values[::2], values[1::2], strict=True)):
            raise ConfigError(f"{what} must be (low, high) with low <= high, not {value!r}")
        return values

    return convert


def _angles(value: Any, what: str) -> Point:
    low, high = _limits(1, 2)(value, what)
    return low, high


def _point(value: Any, what: str) -> Point:
    x, y = fields.numbers(2)(value, what)
    return x, y


def _shares(value: Any, what: str) -> Point:
    shares = _point(value, what)
    if not all(0 <= t <= 1 for t in shares):
        raise ConfigError(f"{what} must be shares between 0 and 1, not {value!r}")
    return shares


def check_mode(transform: Transform, interpolation: str, images: Images) -> None:
    """Raise :class:`PipelineError` if the library of the images has no such interpolation."""
    if interpolation not in MODES[images.kind]:
        of = "PIL images" if images.kind == "pil" else "tensors"
        raise transform.refuse(
            f"{of} do not support interpolation {interpolation!r} here; use "
            f"{' or '.join(repr(m) for m in MODES[images.kind])}"
            + (", or put it before ToTensor or ToImage" if interpolation in MODES["pil"] else "")
        )


def _check(transform: Any, images: Images) -> None:
    """Check against the image: whether its library has the interpolation, and the number of channels."""
    check_mode(transform, transform.interpolation, images)
    if transform.fill is not None and len(transform.fill) not in (1, images.channels):
        raise transform.refuse(f"fill has {len(transform.fill)} numbers for an image of {images.channels} channel(s)")


@frozen
class RandomRotation(Transform):
    """Rotate by an angle uniform in ``degrees``.

    Args:
        degrees: (low, high) anticlockwise, or one number d for (-d, d).
        expand: enlarge the output to hold the whole rotated image.
        center: (x, y) in pixels from the upper left corner; the center of the image by default.
        interpolation: a member of torchvision's ``InterpolationMode`` or its name, such as ``"bilinear"``.
        fill: value of pixels outside the image: a number, or one per channel.

    >>> RandomRotation(30).degrees
    (-30.0, 30.0)
    """

    DRAWS: ClassVar[int] = 1

    degrees: Converted[float | Sequence[float], Point] = Converted(_angles)
    interpolation: Interpolation = Converted(fields.interpolation, default="nearest")
    expand: Flag = Converted(fields.flag, default=False)
    center: OptionalPoint = Converted(fields.optional(_point), default=None)
    fill: OptionalFill = Converted(fields.optional_fill, default=0)

    def resolve(self, u: F64, images: Images) -> tuple[Ops, Images]:
        _check(self, images)
        op = rotation_warp(
            images,
            everywhere(len(u)),
            angle=between(u[:, 0], *self.degrees),
            expand=self.expand,
            center=self.center,
            interpolation=self.interpolation,
            fill=self.fill,
            always=True,
        )
        return (op,), images.sized(op.height.astype(np.int64), op.width.astype(np.int64))


@frozen
class RandomAffine(Transform):
    """Rotate, shear, scale and translate, each by an amount uniform in its range.

    Args:
        degrees: (low, high) clockwise, or one number d for (-d, d).
        translate: largest shift along x and y, as fractions of width and height.
        scale: (low, high).
        shear: degrees along x, as d or (low, high), or along x and y, as (low, high, low, high).
        center: (x, y) in pixels from the upper left corner; the center of the image by default.
        interpolation: a member of torchvision's ``InterpolationMode`` or its name, such as ``"bilinear"``.
        fill: value of pixels outside the image: a number, or one per channel.

    >>> RandomAffine(15, translate=(0.1, 0.1), shear=(-5, 5, -9, 9)).shear
    (-5.0, 5.0, -9.0, 9.0)
    """

    DRAWS: ClassVar[int] = 6

    degrees: Converted[float | Sequence[float], Point] = Converted(_angles)
    translate: OptionalPoint = Converted(fields.optional(_shares), default=None)
    scale: OptionalPoint = Converted(fields.optional(fields.interval(above=0)), default=None)
    shear: OptionalLimits = Converted(fields.optional(_limits(1, 2, 4)), default=None)
    interpolation: Interpolation = Converted(fields.interpolation, default="nearest")
    fill: OptionalFill = Converted(fields.optional_fill, default=0)
    center: OptionalPoint = Converted(fields.optional(_point), default=None)

    def resolve(self, u: F64, images: Images) -> tuple[Ops, Images]:
        _check(self, images)
        shift, shear = np.zeros((len(u), 2)), np.zeros((len(u), 2))
        if self.translate is not None:
            for axis, length in enumerate((images.width, images.height)):
                # Shifts are whole pixels, uniform between the largest shifts in both directions.
                most = self.translate[axis] * length
                shift[:, axis] = np.rint(-most + 2 * most * u[:, 1 + axis])
        limits = self.shear or ()
        for axis, (low, high) in enumerate(zip(limits[::2], limits[1::2], strict=True)):
            shear[:, axis] = between(u[:, 4 + axis], low, high)
        op = affine_warp(
            images,
            everywhere(len(u)),
            angle=between(u[:, 0], *self.degrees),
            translate=shift,
            scale=1.0 if self.scale is None else between(u[:, 3], *self.scale),
            shear=shear,
            center=self.center,
            interpolation=self.interpolation,
            fill=self.fill,
            always=True,
        )
        return (op,), images


def _coefficients(corners: F64, images: Images) -> F64:
    """Return f64[B, 8], in float32 precision like torchvision's: plane maps from ``corners`` to the image's corners.

    ``corners`` f64[B, 4, 2] lie in the output, (x, y) clockwise from the upper left. With ``x' = (a x + b y + c) / (g x
    + h y + 1)`` and ``y' = (d x + e y + f) / (g x + h y + 1)`` every corner gives two equations that are linear in the
    eight numbers: ``a x + b y + c - x' (g x + h y) = x'``, and likewise for y'.
    """
    n, right, bottom = len(corners), images.width - 1.0, images.height - 1.0
    zero = np.zeros(n)
    to = np.array([[zero, zero], [right, zero], [right, bottom], [zero, bottom]]).transpose(2, 0, 1)
    place = np.concatenate([corners, np.ones((n, 4, 1))], axis=2)
    system = np.zeros((n, 4, 2, 8))
    for axis in range(2):
        system[:, :, axis, 3 * axis : 3 * axis + 3] = place
        system[:, :, axis, 6:] = -to[:, :, axis, None] * corners
    equations, target = system.reshape(n, 8, 8), to.reshape(n, 8, 1)
    try:
        found = np.linalg.solve(equations, target)
    except np.linalg.LinAlgError:  # an image of one row or column has no unique answer
        found = np.stack([np.linalg.lstsq(a, b, rcond=None)[0] for a, b in zip(equations, target, strict=True)])
    return np.asarray(found[:, :, 0].astype(np.float32).astype(np.float64))


@frozen
class RandomPerspective(Transform):
    """Move every corner inwards with probability ``p``, by up to ``distortion_scale`` of half the sides.

    Args:
        distortion_scale: largest movement of a corner, as a share of half the sides, 0 to 1.
        p: probability of the change, 0 to 1.
        interpolation: a member of torchvision's ``InterpolationMode`` or its name, such as ``"bilinear"``.
        fill: value of pixels outside the image: a number, or one per channel.

    >>> RandomPerspective(0.3, p=1)
    RandomPerspective(distortion_scale=0.3, p=1.0, interpolation='bilinear', fill=(0.0,))
    """

    DRAWS: ClassVar[int] = 9

    distortion_scale: Probability = Converted(fields.probability, default=0.5)
    p: Probability = Converted(fields.probability, default=0.5)
    interpolation: Interpolation = Converted(fields.interpolation, default="bilinear")
    fill: OptionalFill = Converted(fields.optional_fill, default=0)

    def resolve(self, u: F64, images: Images) -> tuple[Ops, Images]:
        _check(self, images)
        corners = np.empty((len(u), 4, 2))
        for axis, length in enumerate((images.width, images.height)):
            # Number of positions from each corner inwards, including the corner. For far corners torchvision counts
            # from the inside.
            room = (self.distortion_scale * (length // 2)).astype(np.int64) + 1
            for corner in range(4):
                far = corner in ((1, 2), (2, 3))[axis]  # on the right; at the bottom
                inwards = below(u[:, 1 + 2 * corner + axis], room)
                corners[:, corner, axis] = np.where(far, length - room + inwards, inwards)
        mask, always = by_chance(u[:, 0], self.p)
        op = Perspective(
            mask,
            _coefficients(corners, images),
            interpolation=self.interpolation,
            fill=self.fill,
            kind=images.kind,
            always=always,
        )
        return (op,), images
