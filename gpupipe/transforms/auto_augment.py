"""Automatic augmentation: policies that choose an operation and its strength for each image.

The choice is made in the plan, so every engine does the same. An operation of a policy becomes one op for all images,
whose mask selects those that drew it; shears, translations and rotations share one, because they differ by their
matrix only.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import ConfigError
from .auto_augment_tables import AUGMIX, AUGMIX_PART, AUTO, POLICIES, RAND, WIDE, Space
from .base import F64, I64, Images, Transform, interpolation_name, items, resolves
from .geometry import below
from .matrices import affine_matrix, rotation_matrix
from .ops import (
    AutoContrast,
    Brightness,
    Contrast,
    Equalize,
    Invert,
    Mix,
    Op,
    Posterize,
    Saturation,
    Sharpness,
    Solarize,
    Warp,
)
from .quantiles import dirichlet
from .warp import MODES

__all__ = ["AugMix", "AutoAugment", "RandAugment", "TrivialAugmentWide"]

Mask = npt.NDArray[np.bool_]

GEOMETRIC = ("ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate")
_ADJUST = {"Brightness": Brightness, "Color": Saturation, "Contrast": Contrast, "Sharpness": Sharpness}


@dataclass(frozen=True, repr=False)
class _Policy(Transform):
    """What all policies have: a way to apply one operation each, with any interpolation and fill."""

    def _normalise(self, interpolation: Any, fill: Any) -> None:
        name = type(self).__name__
        values = None if fill is None else items(fill)
        if values is not None and (len(values) not in (1, 3) or not all(isinstance(v, (int, float)) for v in values)):
            raise ConfigError(f"{name}: fill must be None, a number or three of them, not {fill!r}")
        self.set(
            interpolation=interpolation_name(interpolation),
            fill=None if values is None else tuple(float(v) for v in values),
        )

    def _count(self, what: str, least: int, most: float = math.inf) -> None:
        value = getattr(self, what)
        if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or not least <= value <= most:
            limit = f"of at least {least}" if most == math.inf else f"from {least} to {most:.0f}"
            raise ConfigError(f"{type(self).__name__}: {what} must be an integer {limit}, not {value!r}")

    def _check(self, images: Images) -> None:
        if images.dtype != "uint8":
            raise self.refuse(f"the image is {images.dtype} at this place and must be uint8; put it before ToTensor")

    def _layer(
        self, space: Space, bins: int, choice: I64, which: I64, negative: Mask, images: Images
    ) -> tuple[Op, ...]:
        """One operation for each image.

        Args:
            space: the operations.
            bins: number of magnitudes.
            choice: i64[B], which operation of ``space``, or -1 for none.
            which: i64[B], which magnitude.
            negative: bool[B], whether the magnitude is negative, where it can be.
        """
        interpolation, fill = self.interpolation, self.fill  # type: ignore[attr-defined]
        if interpolation not in MODES[images.kind] and any(name in space for name in GEOMETRIC):
            what = "PIL images" if images.kind == "pil" else "tensors"
            raise self.refuse(f"{what} cannot be turned with it; use one of {', '.join(MODES[images.kind])}")
        magnitude = np.zeros(len(choice))
        for k, (ranges, signed) in enumerate(space.values()):
            drew = np.flatnonzero(choice == k)
            if ranges is not None and drew.size:
                table = ranges(bins, images.sizes[drew])
                values = table[np.arange(len(drew)) if len(table) > 1 else 0, which[drew]]
                magnitude[drew] = np.where(negative[drew], -values, values) if signed else values
        masks = {name: choice == k for k, name in enumerate(space)}
        made: list[Op] = []
        if any(name in masks for name in GEOMETRIC):
            made.append(_warp(masks, magnitude, images, interpolation, fill))
        made += [_color(name, mask, magnitude, images) for name, mask in masks.items() if name in _COLORS]
        return tuple(made)


def _warp(masks: dict[str, Mask], magnitude: F64, images: Images, interpolation: str, fill: Any) -> Warp:
    """As torchvision calls its ``affine``: shears around the upper left corner with the arctangent of the magnitude,
    and translations by whole pixels; and its ``rotate``."""
    n = len(magnitude)
    matrix, turns, mask = np.tile([1.0, 0, 0, 0, 1, 0], (n, 1)), np.full(n, -1, np.int32), np.zeros(n, np.bool_)
    for name in GEOMETRIC:
        if name not in masks:
            continue
        rows = np.flatnonzero(masks[name])
        mask |= masks[name]
        if not rows.size:
            continue
        values, sizes = magnitude[rows], images.sizes[rows]
        if name == "Rotate":
            matrix[rows], _, turns[rows] = rotation_matrix(values, False, None, sizes, images.kind)
            continue
        both = np.zeros((len(rows), 2))
        if name.startswith("Shear"):
            values = np.array([math.degrees(math.atan(v)) for v in values.tolist()])
        both[:, int(name.endswith("Y"))] = values if name.startswith("Shear") else np.trunc(values)
        none, zero, one = np.zeros((len(rows), 2)), np.zeros(len(rows)), np.ones(len(rows))
        if name.startswith("Shear"):
            matrix[rows] = affine_matrix(zero, none, one, both, (0.0, 0.0), sizes, images.kind)
        else:
            matrix[rows] = affine_matrix(zero, both, one, none, None, sizes, images.kind)
    source: npt.NDArray[np.int32] = images.sizes.astype(np.int32)
    return Warp(
        mask,
        matrix,
        source[:, 0],
        source[:, 1],
        source,
        turns,
        interpolation=interpolation,
        fill=fill,
        kind=images.kind,
    )


_COLORS = (*_ADJUST, "Posterize", "Solarize", "AutoContrast", "Equalize", "Invert")


def _color(name: str, mask: Mask, magnitude: F64, images: Images) -> Op:
    if name in _ADJUST:
        return _ADJUST[name](mask, np.where(mask, 1.0 + magnitude, 1.0), images.kind)
    if name == "Posterize":
        return Posterize(mask, np.where(mask, magnitude, 8).astype(np.int32))
    if name == "Solarize":
        threshold = 255.0 * np.where(mask, magnitude, 1.0)
        # torch compares in float32
        return Solarize(mask, threshold if images.kind == "pil" else threshold.astype(np.float32).astype(np.float64))
    if name == "Invert":
        return Invert(mask)
    return (AutoContrast if name == "AutoContrast" else Equalize)(mask, kind=images.kind)


@dataclass(frozen=True, repr=False)
class RandAugment(_Policy):
    """``num_ops`` operations one after another, each any of fourteen, all of the same ``magnitude`` of
    ``num_magnitude_bins`` (Cubuk et al., 2020)."""

    num_ops: int = 2
    magnitude: int = 9
    num_magnitude_bins: int = 31
    interpolation: Any = "nearest"
    fill: Any = None

    def __post_init__(self) -> None:
        self._count("num_ops", 0)
        self._count("num_magnitude_bins", 2)
        self._count("magnitude", 0, self.num_magnitude_bins - 1)
        self._normalise(self.interpolation, self.fill)

    @property
    def draws(self) -> int:
        return 2 * self.num_ops

    def resolve(self, u: F64, images: Images) -> tuple[tuple[Op, ...], Images]:
        self._check(images)
        which = np.full(len(u), self.magnitude, np.int64)
        ops: list[Op] = []
        for k in range(self.num_ops):
            choice, negative = below(u[:, 2 * k], len(RAND)), u[:, 2 * k + 1] < 0.5
            ops += self._layer(RAND, self.num_magnitude_bins, choice, which, negative, images)
        return resolves(tuple(ops), images)


@dataclass(frozen=True, repr=False)
class TrivialAugmentWide(_Policy):
    """One operation, any of fourteen, of any magnitude of ``num_magnitude_bins`` (Müller and Hutter, 2021)."""

    num_magnitude_bins: int = 31
    interpolation: Any = "nearest"
    fill: Any = None

    def __post_init__(self) -> None:
        self._count("num_magnitude_bins", 2)
        self._normalise(self.interpolation, self.fill)

    @property
    def draws(self) -> int:
        return 3

    def resolve(self, u: F64, images: Images) -> tuple[tuple[Op, ...], Images]:
        self._check(images)
        choice, which = below(u[:, 0], len(WIDE)), below(u[:, 1], self.num_magnitude_bins)
        return resolves(self._layer(WIDE, self.num_magnitude_bins, choice, which, u[:, 2] < 0.5, images), images)


@dataclass(frozen=True, repr=False)
class AutoAugment(_Policy):
    """One of 25 pairs of operations, each with a probability and a magnitude of its own, that were found by search on
    a data set: ``"imagenet"``, ``"cifar10"`` or ``"svhn"``, or torchvision's enum (Cubuk et al., 2019)."""

    policy: Any = "imagenet"
    interpolation: Any = "nearest"
    fill: Any = None

    def __post_init__(self) -> None:
        policy = getattr(self.policy, "value", self.policy)
        if policy not in POLICIES:
            raise ConfigError(f"AutoAugment: policy must be one of {', '.join(POLICIES)}, not {self.policy!r}")
        self.set(policy=policy)
        self._normalise(self.interpolation, self.fill)

    @property
    def draws(self) -> int:
        return 5

    def resolve(self, u: F64, images: Images) -> tuple[tuple[Op, ...], Images]:
        self._check(images)
        pairs = POLICIES[self.policy]
        pair = below(u[:, 0], len(pairs))
        ops: list[Op] = []
        for k in (0, 1):
            steps = [p[k] for p in pairs]
            # What never happens at this place needs no place in the graph.
            space = {name: how for name, how in AUTO.items() if any(n == name and p > 0 for n, p, _ in steps)}
            names = list(space)
            chosen = np.array([names.index(n) if p > 0 else -1 for n, p, _ in steps])[pair]
            choice = np.where(u[:, 1 + 2 * k] < np.array([p for _, p, _ in steps])[pair], chosen, -1)
            which = np.array([m or 0 for *_, m in steps])[pair]
            ops += self._layer(space, 10, choice, which, u[:, 2 + 2 * k] < 0.5, images)
        return resolves(tuple(ops), images)


@dataclass(frozen=True, repr=False)
class AugMix(_Policy):
    """A weighted sum of the image and ``mixture_width`` chains of operations on it (Hendrycks et al., 2020).

    A chain has ``chain_depth`` operations, or where that is not positive 1 to 3 of them. Weights are of
    Dirichlet(``alpha``), and the share of the chains is of Beta(``alpha``, ``alpha``). As in torchvision, the
    operations of PIL images are those of tensors too.
    """

    severity: int = 3
    mixture_width: int = 3
    chain_depth: int = -1
    alpha: float = 1.0
    all_ops: bool = True
    interpolation: Any = "bilinear"
    fill: Any = None

    _BINS = 10

    def __post_init__(self) -> None:
        self._count("severity", 1, self._BINS)
        self._count("mixture_width", 1)
        self._count("chain_depth", -(10**9))
        alpha = self.alpha
        if isinstance(alpha, bool) or not isinstance(alpha, (int, float)) or not 0 < alpha < math.inf:
            raise ConfigError(f"AugMix: alpha must be a positive number, not {alpha!r}")
        self._normalise(self.interpolation, self.fill)

    @property
    def _depth(self) -> int:
        return self.chain_depth if self.chain_depth > 0 else 3

    @property
    def draws(self) -> int:
        return 2 + self.mixture_width * (2 + 3 * self._depth)

    def resolve(self, u: F64, images: Images) -> tuple[tuple[Op, ...], Images]:
        self._check(images)
        space, n = (AUGMIX if self.all_ops else AUGMIX_PART), self.mixture_width
        # In float32, as torchvision multiplies them.
        share = dirichlet(u[:, :2], self.alpha).astype(np.float32)
        weights = dirichlet(u[:, 2 : 2 + n], self.alpha).astype(np.float32) * share[:, 1:]
        depth = 1 + below(u[:, 2 + n : 2 + 2 * n], 3)
        if self.chain_depth > 0:
            depth[:] = self.chain_depth
        steps = u[:, 2 + 2 * n :].reshape(len(u), n, self._depth, 3)
        inside = replace(images, kind="tensor")
        branches: list[tuple[Op, ...]] = [()]
        for i in range(n):
            chain: list[Op] = []
            for k in range(self._depth):
                operation, which, sign = steps[:, i, k].T
                choice = np.where(k < depth[:, i], below(operation, len(space)), -1)
                chain += self._layer(space, self._BINS, choice, below(which, self.severity), sign < 0.5, inside)
            branches.append(tuple(chain))
        mask = np.ones(len(u), np.bool_)
        weights = np.concatenate([share[:, :1], weights], axis=1)
        mix = Mix(mask, weights, branches=tuple(branches), kind=images.kind, always=True)
        return resolves((mix,), images)
