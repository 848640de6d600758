"""Operations of torchvision's policies, as ops.

An operation becomes one op for all images, with a mask that selects the images that drew it. Shears, translations and
rotations share one op, because only their matrices differ.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from .auto_augment_tables import Space
from .fields import Color
from .matrices import affine_matrix, rotation_matrix
from .numbers import i32
from .ops import (
    AutoContrast,
    Brightness,
    Contrast,
    Equalize,
    Invert,
    Op,
    Posterize,
    Saturation,
    Sharpness,
    Solarize,
    Warp,
)
from .ops.op import F64, I64, Mask
from .transform import Images, Ops

GEOMETRIC = ("ShearX", "ShearY", "TranslateX", "TranslateY", "Rotate")
_ADJUST = {"Brightness": Brightness, "Color": Saturation, "Contrast": Contrast, "Sharpness": Sharpness}
_COLORS = (*_ADJUST, "Posterize", "Solarize", "AutoContrast", "Equalize", "Invert")


class Draw(NamedTuple):
    """Draws of every image for one step of a policy."""

    choice: I64
    """i64[B]: index of the operation in its space, or -1 for none."""
    which: I64
    """i64[B]: index of the magnitude."""
    negative: Mask
    """bool[B]: whether to negate the magnitude, for operations that allow it."""


def layer(space: Space, bins: int, draw: Draw, images: Images, interpolation: str, fill: Color | None) -> Ops:
    """Apply one operation to each image.

    Args:
        space: the operations.
        bins: number of magnitudes.
        interpolation, fill: for operations that move pixels.
    """
    choice, which, negative = draw
    # Compute magnitudes only for the images that drew an operation, because some depend on the image's size.
    magnitude = np.zeros(len(choice))
    for k, (ranges, signed) in enumerate(space.values()):
        drew = np.flatnonzero(choice == k)
        if ranges is not None and drew.size:
            table = ranges(bins, images.sizes[drew])
            # A table has one row per image if magnitudes depend on its size, otherwise one row for all.
            values = table[np.arange(len(drew)) if len(table) > 1 else 0, which[drew]]
            magnitude[drew] = np.where(negative[drew], -values, values) if signed else values
    masks = {name: choice == k for k, name in enumerate(space)}
    made: list[Op] = []
    if any(name in masks for name in GEOMETRIC):
        made.append(_warp(masks, magnitude, images, interpolation, fill))
    made += [_color(name, mask, magnitude, images) for name, mask in masks.items() if name in _COLORS]
    return tuple(made)


def _warp(masks: dict[str, Mask], magnitude: F64, images: Images, interpolation: str, fill: Color | None) -> Warp:
    """Return shears, translations and rotations as torchvision's ``affine`` and ``rotate`` perform them.

    Shears take the arctangent of the magnitude, around the upper left corner. Translations are whole pixels.
    """
    n = len(magnitude)
    # Start with the identity. turns = -1 means that the matrix is used; multiples of 90 degrees are exact turns.
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
            # The magnitude is the tangent, and affine() takes degrees.
            values = np.array([math.degrees(math.atan(v)) for v in values.tolist()])
        both[:, int(name.endswith("Y"))] = values if name.startswith("Shear") else np.trunc(values)
        none, zero, one = np.zeros((len(rows), 2)), np.zeros(len(rows)), np.ones(len(rows))
        if name.startswith("Shear"):
            matrix[rows] = affine_matrix(zero, none, one, both, (0.0, 0.0), sizes, images.kind)
        else:
            matrix[rows] = affine_matrix(zero, both, one, none, None, sizes, images.kind)
    source = i32(images.sizes)
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


def _color(name: str, mask: Mask, magnitude: F64, images: Images) -> Op:
    # For images outside the mask, magnitude belongs to another operation, so a harmless value replaces it.
    if name in _ADJUST:
        return _ADJUST[name](mask, np.where(mask, 1.0 + magnitude, 1.0), images.kind)
    if name == "Posterize":
        return Posterize(mask, i32(np.where(mask, magnitude, 8)))
    if name == "Solarize":
        threshold = 255.0 * np.where(mask, magnitude, 1.0)
        # torch compares in float32
        return Solarize(mask, threshold if images.kind == "pil" else threshold.astype(np.float32).astype(np.float64))
    if name == "Invert":
        return Invert(mask)
    return (AutoContrast if name == "AutoContrast" else Equalize)(mask, kind=images.kind)
