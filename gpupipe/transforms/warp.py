"""Rotations, affine maps, perspective and elastic fields, with torchvision's arguments and distributions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from ..errors import ConfigError
from .base import F64, Images, Transform, check_probability, interpolation_name, items, resolves
from .geometry import below
from .matrices import affine_warp, rotation_warp
from .ops import Elastic, Op, Perspective
from .ops.base import U64

__all__ = ["MODES", "ElasticTransform", "RandomAffine", "RandomPerspective", "RandomRotation", "seeds"]

Numbers = tuple[float, ...]

MODES = {"pil": ("nearest", "nearest-exact", "bilinear", "bicubic"), "tensor": ("nearest", "bilinear")}


def seeds(u: F64) -> U64:
    """u64[B] of uniform numbers f64[B]: their 53 random bits."""
    return (u * 2.0**53).astype(np.uint64)


def _numbers(value: Any, what: str, counts: tuple[int, ...]) -> Numbers:
    values = items(value)
    if len(values) not in counts or not all(isinstance(v, (int, float, np.number)) for v in values):
        raise ConfigError(f"{what} must be {' or '.join(map(str, counts))} number(s), not {value!r}")
    return tuple(float(v) for v in values)


def _range(value: Any, what: str, counts: tuple[int, ...] = (1, 2)) -> Numbers:
    """torchvision's angle arguments: one number means from minus it to it."""
    values = _numbers(value, what, counts)
    if len(values) == 1:
        if values[0] < 0:
            raise ConfigError(f"{what} must not be negative as a single number, which means (-d, d); not {value!r}")
        return -values[0], values[0]
    if any(low > high for low, high in zip(values[::2], values[1::2], strict=True)):
        raise ConfigError(f"{what} must be (low, high) with low <= high, not {value!r}")
    return values


def _fill(fill: Any, what: str) -> Numbers | None:
    return None if fill is None else _numbers(fill, f"{what}: fill", (1, 3))


def _center(center: Any, what: str) -> tuple[float, float] | None:
    if center is None:
        return None
    x, y = _numbers(center, f"{what}: center", (2,))
    return x, y


def _check(transform: Any, images: Images) -> None:
    """What can only be known with the image: whether its library has the interpolation, and its channels."""
    if transform.interpolation not in MODES[images.kind]:
        of = "PIL images" if images.kind == "pil" else "tensors"
        raise transform.refuse(
            f"interpolation {transform.interpolation!r} does not exist for this on {of}; use "
            f"{' or '.join(repr(m) for m in MODES[images.kind])}"
            + (", or put it before ToTensor or ToImage" if transform.interpolation in MODES["pil"] else "")
        )
    if transform.fill is not None and len(transform.fill) not in (1, images.channels):
        raise transform.refuse(f"fill has {len(transform.fill)} numbers for an image of {images.channels} channel(s)")


def _between(u: F64, low: float, high: float) -> F64:
    return low + (high - low) * u


@dataclass(frozen=True, repr=False)
class RandomRotation(Transform):
    """Rotate anticlockwise by an angle uniform in ``degrees``: (low, high), or one number for (-d, d).

    ``expand`` makes the output large enough for the whole image. ``center`` is (x, y) from the upper left corner.
    """

    DRAWS: ClassVar[int] = 1

    degrees: float | Sequence[float]
    interpolation: Any = "nearest"
    expand: bool = False
    center: Sequence[float] | None = None
    fill: float | Sequence[float] | None = 0

    def __post_init__(self) -> None:
        self.set(
            degrees=_range(self.degrees, "RandomRotation: degrees"),
            interpolation=interpolation_name(self.interpolation),
            expand=bool(self.expand),
            center=_center(self.center, "RandomRotation"),
            fill=_fill(self.fill, "RandomRotation"),
        )

    def resolve(self, u: F64, images: Images) -> tuple[tuple[Op, ...], Images]:
        _check(self, images)
        op = rotation_warp(
            images,
            np.ones(len(u), np.bool_),
            angle=_between(u[:, 0], *self.degrees),  # type: ignore[misc]
            expand=self.expand,
            center=self.center,  # type: ignore[arg-type]
            interpolation=self.interpolation,
            fill=self.fill,  # type: ignore[arg-type]
            always=True,
        )
        return resolves((op,), images.sized(op.height.astype(np.int64), op.width.astype(np.int64)))


@dataclass(frozen=True, repr=False)
class RandomAffine(Transform):
    """Rotate clockwise, shear, scale and shift about ``center``, each uniform in its range.

    ``translate`` are the largest shares of width and height, ``scale`` is (low, high), ``shear`` in degrees along x,
    or along x and y: d, (low, high) or (low, high, low, high).
    """

    DRAWS: ClassVar[int] = 6

    degrees: float | Sequence[float]
    translate: Sequence[float] | None = None
    scale: Sequence[float] | None = None
    shear: float | Sequence[float] | None = None
    interpolation: Any = "nearest"
    fill: float | Sequence[float] | None = 0
    center: Sequence[float] | None = None

    def __post_init__(self) -> None:
        translate = None if self.translate is None else _numbers(self.translate, "RandomAffine: translate", (2,))
        if translate is not None and not all(0 <= t <= 1 for t in translate):
            raise ConfigError(f"RandomAffine: translate must be shares between 0 and 1, not {self.translate!r}")
        scale = None if self.scale is None else _numbers(self.scale, "RandomAffine: scale", (2,))
        if scale is not None and not 0 < scale[0] <= scale[1]:
            raise ConfigError(f"RandomAffine: scale must be (low, high) with 0 < low <= high, not {self.scale!r}")
        self.set(
            degrees=_range(self.degrees, "RandomAffine: degrees"),
            translate=translate,
            scale=scale,
            shear=None if self.shear is None else _range(self.shear, "RandomAffine: shear", (1, 2, 4)),
            interpolation=interpolation_name(self.interpolation),
            fill=_fill(self.fill, "RandomAffine"),
            center=_center(self.center, "RandomAffine"),
        )

    def resolve(self, u: F64, images: Images) -> tuple[tuple[Op, ...], Images]:
        _check(self, images)
        shift, shear = np.zeros((len(u), 2)), np.zeros((len(u), 2))
        if self.translate is not None:
            for axis, length in enumerate((images.width, images.height)):
                most = self.translate[axis] * length
                shift[:, axis] = np.rint(-most + 2 * most * u[:, 1 + axis])
        limits = self.shear or ()
        for axis in range(len(limits) // 2):  # type: ignore[arg-type]
            shear[:, axis] = _between(u[:, 4 + axis], *limits[2 * axis : 2 * axis + 2])  # type: ignore[index]
        op = affine_warp(
            images,
            np.ones(len(u), np.bool_),
            angle=_between(u[:, 0], *self.degrees),  # type: ignore[misc]
            translate=shift,
            scale=1.0 if self.scale is None else _between(u[:, 3], *self.scale),
            shear=shear,
            center=self.center,  # type: ignore[arg-type]
            interpolation=self.interpolation,
            fill=self.fill,  # type: ignore[arg-type]
            always=True,
        )
        return resolves((op,), images)


def _coefficients(corners: F64, images: Images) -> F64:
    """f64[B, 8] with the precision of float32, as torchvision's: the plane map that leads from ``corners`` f64[B, 4, 2]
    of the output, (x, y) clockwise from the upper left, to the corners of the image."""
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


@dataclass(frozen=True, repr=False)
class RandomPerspective(Transform):
    """With probability ``p`` move every corner inwards by up to ``distortion_scale`` of half the sides."""

    DRAWS: ClassVar[int] = 9

    distortion_scale: float = 0.5
    p: float = 0.5
    interpolation: Any = "bilinear"
    fill: float | Sequence[float] | None = 0

    def __post_init__(self) -> None:
        self.set(
            distortion_scale=check_probability(self.distortion_scale, "RandomPerspective: distortion_scale"),
            p=check_probability(self.p, "RandomPerspective: p"),
            interpolation=interpolation_name(self.interpolation),
            fill=_fill(self.fill, "RandomPerspective"),
        )

    def resolve(self, u: F64, images: Images) -> tuple[tuple[Op, ...], Images]:
        _check(self, images)
        corners = np.empty((len(u), 4, 2))
        for axis, length in enumerate((images.width, images.height)):
            room = (self.distortion_scale * (length // 2)).astype(np.int64) + 1
            for corner in range(4):
                far = corner in ((1, 2), (2, 3))[axis]
                inwards = below(u[:, 1 + 2 * corner + axis], room)
                corners[:, corner, axis] = np.where(far, length - room + inwards, inwards)
        mask = u[:, 0] < self.p
        op = Perspective(
            mask,
            _coefficients(corners, images),
            interpolation=self.interpolation,
            fill=self.fill,  # type: ignore[arg-type]
            kind=images.kind,
            always=self.p == 1,
        )
        return resolves((op,), images)


@dataclass(frozen=True, repr=False)
class ElasticTransform(Transform):
    """Move every pixel by a random field: uniform noise, smoothed by a Gaussian of ``sigma`` pixels, times ``alpha``
    half pixels, along x and y (Simard et al., *Best practices for convolutional neural networks*, 2003)."""

    DRAWS: ClassVar[int] = 1

    alpha: float | Sequence[float] = 50.0
    sigma: float | Sequence[float] = 5.0
    interpolation: Any = "bilinear"
    fill: float | Sequence[float] | None = 0

    def __post_init__(self) -> None:
        alpha, sigma = (_numbers(getattr(self, n), f"ElasticTransform: {n}", (1, 2)) for n in ("alpha", "sigma"))
        if min(sigma) < 0 or (max(sigma) > 0 and min(sigma) == 0):
            raise ConfigError(f"ElasticTransform: sigma must be positive, or zero for both axes, not {self.sigma!r}")
        self.set(
            alpha=(alpha * 2)[:2] if len(alpha) == 1 else alpha,
            sigma=(sigma * 2)[:2] if len(sigma) == 1 else sigma,
            interpolation=interpolation_name(self.interpolation),
            fill=_fill(self.fill, "ElasticTransform"),
        )

    def resolve(self, u: F64, images: Images) -> tuple[tuple[Op, ...], Images]:
        if self.interpolation not in MODES["tensor"]:
            raise self.refuse("torchvision moves pixels as tensors; use interpolation 'nearest' or 'bilinear'")
        _check(self, images)
        reach = (int(8 * max(self.sigma)) + 1 | 1) // 2 if max(self.sigma) else 0  # type: ignore[arg-type]
        if (images.sizes <= reach).any():
            h, w = images.sizes[int(np.argmin(images.sizes.min(axis=1)))]
            raise self.refuse(f"an image of {h}x{w} pixels is smaller than the {reach} pixels that sigma reaches")
        op = Elastic(
            np.ones(len(u), np.bool_),
            seeds(u[:, 0]),
            alpha=self.alpha,  # type: ignore[arg-type]
            sigma=self.sigma,  # type: ignore[arg-type]
            interpolation=self.interpolation,
            fill=self.fill,  # type: ignore[arg-type]
            kind=images.kind,
            always=True,
        )
        return resolves((op,), images)
