"""Operations of timm's policies as ops, and their strengths by level.

Levels are those of timm's ``auto_augment``, which follows the TPU implementation of EfficientNet.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from . import fields
from .fields import Color, Converted, interpolation, items
from .matrices import rotation_warp
from .numbers import i32
from .ops import (
    AutoContrast,
    BoxBlur,
    Brightness,
    Contrast,
    Equalize,
    Invert,
    Op,
    Posterize,
    Saturation,
    Sharpness,
    Solarize,
    SolarizeAdd,
    Warp,
)
from .ops.op import F64, I64, Mask
from .transform import Images


def _names(value: Any, what: str) -> tuple[str, ...]:
    return tuple(interpolation(v, what) for v in items(value))


class Step(NamedTuple):
    """One step of a policy: timm's ``AugmentOp``."""

    name: str
    prob: float = 0.5
    magnitude: float = 10.0


@dataclass(frozen=True)
class Levels:
    """Settings that all steps of a policy share: timm's ``hparams``.

    >>> Levels(magnitude_std=0.5, fill=(124, 116, 104)).fill
    (124.0, 116.0, 104.0)
    """

    magnitude_std: float = 0.0
    """Standard deviation of normal noise on the magnitude. Infinity draws the magnitude uniformly from 0 to the given
    one."""
    magnitude_max: float = 10.0
    translate_const: float = 250.0
    """Pixels that ``TranslateX`` and ``TranslateY`` move at magnitude 10."""
    translate_pct: float = 0.45
    """Share of the image that ``TranslateXRel`` and ``TranslateYRel`` move at magnitude 10."""
    fill: Converted[float | Sequence[float], Color] = Converted(fields.floats, default=(128.0, 128.0, 128.0))
    interpolation: Converted[Any, tuple[str, ...]] = Converted(_names, default=("bilinear", "bicubic"))
    """Each step draws one of these."""


DRAWS = 6
"""Uniform numbers of a step: probability, two for the magnitude, sign, interpolation, one for the operation's own draw.
"""


class Drawn(NamedTuple):
    """Draws of one operation in one step."""

    mask: Mask
    level: F64
    """Magnitude / 10."""
    sign: F64
    extra: F64


# Arguments of each operation by level, about 0 to 1: timm's functions whose names end in level_to_arg.


def _increasing(d: Drawn) -> F64:
    return np.maximum(0.1, 1.0 + d.sign * d.level * 0.9)


def _enhance(d: Drawn) -> F64:
    return d.level * 1.8 + 0.1


_FACTORS: dict[str, tuple[type[Any], Callable[[Drawn], F64]]] = {
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
_RADII: dict[str, Callable[[Drawn], F64]] = {
    "GaussianBlur": lambda d: np.clip(0.1 + 1.9 * d.level, 0.1, 2.0),
    "GaussianBlurRand": lambda d: 0.1 + (2.0 * np.clip(d.level, 0.0, 1.0) - 0.1) * d.extra,
}
_PLAIN: dict[str, type[Any]] = {"AutoContrast": AutoContrast, "Equalize": Equalize, "Invert": Invert}
_MOVES = ("ShearX", "ShearY", "TranslateX", "TranslateY", "TranslateXRel", "TranslateYRel")
NAMES = (*_FACTORS, *_BITS, *_THRESHOLDS, *_RADII, *_PLAIN, *_MOVES, "Rotate", "SolarizeAdd")


def operation(name: str, d: Drawn, modes: I64, images: Images, levels: Levels) -> list[Op]:
    """Return one operation on the samples that drew it. ``modes`` i64[B] holds the index of each sample's
    interpolation."""
    if name in _PLAIN:
        return [_PLAIN[name](d.mask)]
    if name in _FACTORS:
        op, factor = _FACTORS[name]
        return [op(d.mask, np.where(d.mask, factor(d), 1.0), images.kind)]
    if name in _BITS:
        return [Posterize(d.mask, i32(np.where(d.mask, _BITS[name](d.level), 8)))]
    if name in _THRESHOLDS:
        return [Solarize(d.mask, np.where(d.mask, _THRESHOLDS[name](d.level), 256.0))]
    if name in _RADII:
        return [BoxBlur(d.mask, np.where(d.mask, _RADII[name](d), 0.0))]
    if name == "SolarizeAdd":
        return [SolarizeAdd(d.mask, i32(np.minimum(128, np.trunc(d.level * 110))))]
    # One op for each interpolation; every image drew one of them.
    masks = [d.mask & (modes == k) for k in range(len(levels.interpolation))]
    return [
        _move(name, d._replace(mask=mask), images, mode, levels)
        for mask, mode in zip(masks, levels.interpolation, strict=True)
    ]


def _move(name: str, d: Drawn, images: Images, mode: str, levels: Levels) -> Warp:
    # Pillow's matrices map the output to the input, and so do timm's arguments.
    signed = d.sign * d.level
    if name == "Rotate":
        return rotation_warp(images, d.mask, angle=30.0 * signed, interpolation=mode, fill=levels.fill)
    # Entry 1 shears x by y, entry 3 y by x. Entries 2 and 5 are the shifts along x and y.
    matrix = np.tile([1.0, 0, 0, 0, 1, 0], (len(signed), 1))
    along = 0 if "X" in name else 1
    if name.startswith("Shear"):
        matrix[:, 1 if along == 0 else 3] = 0.3 * signed
    elif name.endswith("Rel"):
        matrix[:, 2 if along == 0 else 5] = levels.translate_pct * signed * (images.height if along else images.width)
    else:
        matrix[:, 2 if along == 0 else 5] = levels.translate_const * signed
    size = i32(images.sizes)
    turns = np.full(len(signed), -1, np.int32)
    return Warp(
        d.mask, matrix, size[:, 0], size[:, 1], size, turns, interpolation=mode, fill=levels.fill, kind=images.kind
    )
