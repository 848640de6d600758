"""Ops to DALI operators, fused the way a DALI expert would write them by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ....transforms.ops import (
    JPEG,
    AutoContrast,
    Blur,
    Brightness,
    Contrast,
    Crop,
    Equalize,
    Flip,
    Gray,
    Invert,
    Mix,
    Normalize,
    Op,
    Perspective,
    Posterize,
    Resize,
    Saturation,
    Sharpness,
    Solarize,
    SolarizeAdd,
    ToDtype,
    Warp,
)
from .blur import blur
from .canvas import Canvas, Input, Path
from .color import brightness, contrast, gray, normalize, saturation, to_dtype
from .enhance import autocontrast, equalize, invert, jpeg, posterize, sharpness, solarize
from .geometry import crop, flip, resize
from .structure import mix
from .timm import solarize_add
from .warp import perspective, warp

__all__ = ["LOWERINGS", "ONLY_BYTES", "Canvas", "Input", "Path", "lacks"]

LOWERINGS: dict[type[Op], Callable[[Canvas, Path, Any], None]] = {
    Crop: crop,
    Resize: resize,
    Flip: flip,
    Gray: gray,
    Brightness: brightness,
    Contrast: contrast,
    Saturation: saturation,
    Sharpness: sharpness,
    Posterize: posterize,
    Solarize: solarize,
    Invert: invert,
    AutoContrast: autocontrast,
    Equalize: equalize,
    JPEG: jpeg,
    ToDtype: to_dtype,
    Normalize: normalize,
    SolarizeAdd: solarize_add,
    Blur: blur,
    Warp: warp,
    Perspective: perspective,
    Mix: mix,
}
"""What the graph does itself. What is not here, and everything after it, is done on the batch in torch."""

ONLY_BYTES: tuple[type[Op], ...] = (
    Gray,
    Brightness,
    Contrast,
    Saturation,
    Sharpness,
    Posterize,
    Solarize,
    Invert,
    AutoContrast,
    Equalize,
    JPEG,
    SolarizeAdd,
)
"""What the graph does to uint8 only; behind ``ToTensor`` torch does it."""


def lacks(op: Op, floats: bool) -> bool:
    """Whether DALI has no form of an op, or of one within it. ``floats``: whether the image is no longer uint8."""
    if type(op) not in LOWERINGS or (floats and isinstance(op, ONLY_BYTES)):
        return True
    if isinstance(op, (Warp, Perspective)) and op.interpolation == "bicubic":
        return True
    return any(lacks(inner, floats) for branch in getattr(op, "branches", ()) for inner in branch)
