"""What timm's ``create_transform`` builds and torchvision has not: its policies, with their own operations and levels.

The levels are those of timm's ``auto_augment``, which follows the TPU implementation of EfficientNet. Colours and
choices are drawn as there; where it calls Pillow, so does the reference.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ..errors import ConfigError
from .base import F64, I64, Images, Transform, interpolation_name, items, resolves
from .geometry import below
from .matrices import rotation_warp
from .ops import (
    AutoContrast,
    BoxBlur,
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
    SolarizeAdd,
    Warp,
)
from .ops.base import Mask
from .quantiles import beta_quantile, dirichlet

__all__ = ["Levels", "Step", "TimmAugMix", "TimmAutoAugment", "TimmRandAugment"]


class Step(NamedTuple):
    """timm's ``AugmentOp``."""

    name: str
    prob: float = 0.5
    magnitude: float = 10.0


@dataclass(frozen=True)
class Levels:
    """What all steps of a policy share: timm's ``hparams``."""

    magnitude_std: float = 0.0
    """Of normal noise on the magnitude; infinity means uniform from 0 to it."""
    magnitude_max: float = 10.0
    translate_const: float = 250.0
    """Pixels of ``TranslateX`` and ``TranslateY`` at magnitude 10."""
    translate_pct: float = 0.45
    """Share of the image of ``TranslateXRel`` and ``TranslateYRel`` at magnitude 10."""
    fill: tuple[float, ...] = (128.0, 128.0, 128.0)
    interpolation: tuple[str, ...] = ("bilinear", "bicubic")
    """One of them for each step, at random."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "fill", tuple(float(v) for v in items(self.fill)))
        object.__setattr__(self, "interpolation", tuple(map(interpolation_name, items(self.interpolation))))


_DRAWS = 6
"""Of a step: whether, two for the magnitude, the sign, which interpolation, one more for what draws itself."""


class _Drawn(NamedTuple):
    """Rows of one operation in one step."""

    mask: Mask
    level: F64
    """Magnitude over 10."""
    sign: F64
    extra: F64


def _increasing(d: _Drawn) -> F64:
    return np.maximum(0.1, 1.0 + d.sign * d.level * 0.9)


def _enhance(d: _Drawn) -> F64:
    return d.level * 1.8 + 0.1


_FACTORS: dict[str, tuple[type[Any], Callable[[_Drawn], F64]]] = {
    "Color": (Saturation, _enhance),
    "Contrast": (Contrast, _enhance),
    "Brightness": (Brightness, _enhance),
    "Sharpness": (Sharpness, _enhance),
    "ColorIncreasing": (Saturation, _increasing),
    "ContrastIncreasing": (Contrast, _increasing),
    "BrightnessIncreasing": (Brightness, _increasing),
    "SharpnessIncreasing": (Sharpness, _increasing),
    "Desaturate": (Saturation, lambda d: np.clip(1.0 - np.clip(0.5 + 0.5 * d.level, 0.5, 1.0), 0.0, 1.0)),
}
_BITS: dict[str, Callable[[F64], F64]] = {
    "Posterize": lambda level: np.trunc(level * 4),
    "PosterizeIncreasing": lambda level: 4 - np.trunc(level * 4),
    "PosterizeOriginal": lambda level: np.trunc(level * 4) + 4,
}
_THRESHOLDS: dict[str, Callable[[F64], F64]] = {
    "Solarize": lambda level: np.minimum(256, np.trunc(level * 256)),
    "SolarizeIncreasing": lambda level: 256 - np.minimum(256, np.trunc(level * 256)),
}
_RADII: dict[str, Callable[[_Drawn], F64]] = {
    "GaussianBlur": lambda d: np.clip(0.1 + 1.9 * d.level, 0.1, 2.0),
    "GaussianBlurRand": lambda d: 0.1 + (2.0 * np.clip(d.level, 0.0, 1.0) - 0.1) * d.extra,
}
_PLAIN: dict[str, type[Any]] = {"AutoContrast": AutoContrast, "Equalize": Equalize, "Invert": Invert}
_MOVES = ("ShearX", "ShearY", "TranslateX", "TranslateY", "TranslateXRel", "TranslateYRel")
_NAMES = (*_FACTORS, *_BITS, *_THRESHOLDS, *_RADII, *_PLAIN, *_MOVES, "Rotate", "SolarizeAdd")


def _apply(name: str, d: _Drawn, modes: I64, images: Images, levels: Levels) -> list[Op]:
    """One operation on the samples that drew it; ``modes`` i64[B] tells which interpolation."""
    if name in _PLAIN:
        return [_PLAIN[name](d.mask)]
    if name in _FACTORS:
        op, factor = _FACTORS[name]
        return [op(d.mask, np.where(d.mask, factor(d), 1.0), images.kind)]
    if name in _BITS:
        return [Posterize(d.mask, np.where(d.mask, _BITS[name](d.level), 8).astype(np.int32))]
    if name in _THRESHOLDS:
        return [Solarize(d.mask, np.where(d.mask, _THRESHOLDS[name](d.level), 256.0))]
    if name in _RADII:
        return [BoxBlur(d.mask, np.where(d.mask, _RADII[name](d), 0.0))]
    if name == "SolarizeAdd":
        return [SolarizeAdd(d.mask, np.minimum(128, np.trunc(d.level * 110)).astype(np.int32))]
    masks = [d.mask & (modes == k) for k in range(len(levels.interpolation))]
    return [
        _move(name, d._replace(mask=mask), images, mode, levels)
        for mask, mode in zip(masks, levels.interpolation, strict=True)
    ]


def _move(name: str, d: _Drawn, images: Images, mode: str, levels: Levels) -> Warp:
    signed = d.sign * d.level
    if name == "Rotate":
        return rotation_warp(images, d.mask, angle=30.0 * signed, interpolation=mode, fill=levels.fill)
    matrix = np.tile([1.0, 0, 0, 0, 1, 0], (len(signed), 1))
    along = 0 if "X" in name else 1
    if name.startswith("Shear"):
        matrix[:, 1 if along == 0 else 3] = 0.3 * signed
    elif name.endswith("Rel"):
        matrix[:, 2 if along == 0 else 5] = levels.translate_pct * signed * (images.height if along else images.width)
    else:
        matrix[:, 2 if along == 0 else 5] = levels.translate_const * signed
    size = images.sizes.astype(np.int32)
    turns = np.full(len(signed), -1, np.int32)
    return Warp(
        d.mask, matrix, size[:, 0], size[:, 1], size, turns, interpolation=mode, fill=levels.fill, kind=images.kind
    )


@dataclass(frozen=True, repr=False)
class _Timm(Transform):
    """What the policies have in common."""

    def _check_steps(self, steps: Sequence[Any]) -> tuple[Step, ...]:
        found = tuple(Step(*step) for step in steps)
        for step in found:
            if step.name not in _NAMES:
                raise ConfigError(f"{type(self).__name__}: no operation {step.name!r}; there are {', '.join(_NAMES)}")
            if not 0 <= step.prob <= 1:
                raise ConfigError(f"{type(self).__name__}: {step}: prob must be between 0 and 1")
        return found

    def _check_images(self, images: Images) -> None:
        if images.kind != "pil" or images.dtype != "uint8":
            raise self.refuse("it takes PIL images; put it before ToTensor")

    def _step(self, u: F64, options: Sequence[Step], choice: I64, images: Images, levels: Levels) -> list[Op]:
        """One step for each image: ``choice`` i64[B] is an index into ``options``, or -1; u f64[B, 6]."""
        prob, magnitude = (np.array([getattr(s, k) for s in options])[choice] for k in ("prob", "magnitude"))
        if math.isinf(levels.magnitude_std):
            magnitude = magnitude * u[:, 1]
        elif levels.magnitude_std > 0:  # Box and Muller, 1958
            normal = np.sqrt(-2.0 * np.log1p(-u[:, 1])) * np.cos(2.0 * np.pi * u[:, 2])
            magnitude = magnitude + levels.magnitude_std * normal
        level = np.clip(magnitude, 0.0, levels.magnitude_max) / 10.0
        happens = (choice >= 0) & (u[:, 0] <= prob)
        sign = np.where(u[:, 3] > 0.5, -1.0, 1.0)
        modes = below(u[:, 4], len(levels.interpolation))
        ops: list[Op] = []
        for name in dict.fromkeys(s.name for s in options):
            mine = np.isin(choice, [k for k, s in enumerate(options) if s.name == name])
            ops += _apply(name, _Drawn(happens & mine, level, sign, u[:, 5]), modes, images, levels)
        return ops


@dataclass(frozen=True, repr=False)
class TimmRandAugment(_Timm):
    """``num_layers`` steps one after another, chosen among ``steps``: with ``weights`` no step twice."""

    steps: Sequence[Any]
    num_layers: int = 2
    weights: Sequence[float] | None = None
    levels: Levels = Levels()

    def __post_init__(self) -> None:
        self.set(steps=self._check_steps(self.steps))
        if self.weights is not None:
            weights = tuple(float(w) for w in self.weights)
            if len(weights) != len(self.steps) or min(weights) < 0 or sum(w > 0 for w in weights) < self.num_layers:
                raise ConfigError(
                    f"TimmRandAugment: weights must be one number per step, none negative, at least {self.num_layers} "
                    f"of them above zero, not {self.weights!r}"
                )
            self.set(weights=tuple(w / sum(weights) for w in weights))

    @property
    def draws(self) -> int:
        return self.num_layers * (1 + _DRAWS)

    def resolve(self, u: F64, images: Images) -> tuple[tuple[Op, ...], Images]:
        self._check_images(images)
        left = None if self.weights is None else np.tile(np.array(self.weights), (len(u), 1))
        ops: list[Op] = []
        for k in range(self.num_layers):
            v = u[:, k * (1 + _DRAWS) : (k + 1) * (1 + _DRAWS)]
            if left is None:
                choice = below(v[:, 0], len(self.steps))
            else:
                cumulative = np.cumsum(left, axis=1)
                at = v[:, :1] * cumulative[:, -1:]
                choice = np.minimum((cumulative <= at).sum(axis=1), len(self.steps) - 1)
                left[np.arange(len(u)), choice] = 0.0
            ops += self._step(v[:, 1:], self.steps, choice, images, self.levels)
        return resolves(tuple(ops), images)


@dataclass(frozen=True, repr=False)
class TimmAutoAugment(_Timm):
    """One of several sequences of steps."""

    policy: Sequence[Sequence[Any]]
    levels: Levels = Levels()

    def __post_init__(self) -> None:
        self.set(policy=tuple(self._check_steps(steps) for steps in self.policy))
        if not self.policy:
            raise ConfigError("TimmAutoAugment: policy is empty")

    @property
    def draws(self) -> int:
        return 1 + _DRAWS * max(map(len, self.policy))

    def resolve(self, u: F64, images: Images) -> tuple[tuple[Op, ...], Images]:
        self._check_images(images)
        chosen = below(u[:, 0], len(self.policy))
        ops: list[Op] = []
        for k in range(max(map(len, self.policy))):
            options = [steps[k] for steps in self.policy if len(steps) > k]
            number = np.cumsum([len(steps) > k for steps in self.policy]) - 1
            has = np.array([len(steps) > k for steps in self.policy])
            choice = np.where(has, number, -1)[chosen]
            v = u[:, 1 + k * _DRAWS : 1 + (k + 1) * _DRAWS]
            ops += self._step(v, options, choice, images, self.levels)
        return resolves(tuple(ops), images)


@dataclass(frozen=True, repr=False)
class TimmAugMix(_Timm):
    """A weighted sum of chains of steps, and a weighted sum of that and the image (Hendrycks et al., 2020).

    The second sum is Pillow's ``blend`` in timm, and a sum in float32 here: at most one grey level apart.
    """

    steps: Sequence[Any]
    alpha: float = 1.0
    width: int = 3
    depth: int = -1
    """Steps of a chain; where it is not positive, 1 to 3 of them."""
    levels: Levels = Levels()

    def __post_init__(self) -> None:
        self.set(steps=self._check_steps(self.steps))

    @property
    def _depth(self) -> int:
        return self.depth if self.depth > 0 else 3

    @property
    def draws(self) -> int:
        return 1 + self.width * (2 + self._depth * (1 + _DRAWS))

    def resolve(self, u: F64, images: Images) -> tuple[tuple[Op, ...], Images]:
        self._check_images(images)
        n, w = len(u), self.width
        weights = dirichlet(u[:, 1 : 1 + w], self.alpha).astype(np.float32)
        share = beta_quantile(u[:, 0], self.alpha, self.alpha).astype(np.float32)
        lengths = 1 + below(u[:, 1 + w : 1 + 2 * w], 3) if self.depth <= 0 else np.full((n, w), self.depth)
        steps = u[:, 1 + 2 * w :].reshape(n, w, self._depth, 1 + _DRAWS)
        chains = []
        for i in range(w):
            ops: list[Op] = []
            for k in range(self._depth):
                v = steps[:, i, k]
                choice = np.where(k < lengths[:, i], below(v[:, 0], len(self.steps)), -1)
                ops += self._step(v[:, 1:], self.steps, choice, images, self.levels)
            chains.append(tuple(ops))
        every = np.ones(n, np.bool_)
        inner = Mix(every, weights, branches=tuple(chains), kind=images.kind, always=True)
        both = np.stack([np.float32(1) - share, share], axis=1)
        outer = Mix(every, both, branches=((), (inner,)), kind=images.kind, always=True)
        return resolves((outer,), images)
