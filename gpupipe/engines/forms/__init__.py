"""The torch form of every op, bit by bit as torchvision does it where the numbers are the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...transforms.ops import (
    JPEG,
    AutoContrast,
    Blur,
    BoxBlur,
    Brightness,
    Call,
    Contrast,
    Crop,
    Elastic,
    Equalize,
    Flip,
    Gray,
    Hue,
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
from .batch import BATCH_FORMS, arithmetic
from .blur_noise import blur
from .color import brightness, contrast, gray, hue, saturation
from .enhance import autocontrast, equalize, invert, jpeg, posterize, sharpness, solarize
from .geometry import crop, flip, resize
from .lambda_ import call
from .picture import Picture
from .structure import mix
from .timm import box_blur, solarize_add
from .warp import elastic, perspective, warp

__all__ = ["BATCH_FORMS", "FORMS", "POINTWISE", "arithmetic"]

POINTWISE: tuple[type[Op], ...] = (ToDtype, Normalize)
"""What :func:`arithmetic` does, to single images and to batches."""

FORMS: dict[type[Op], Callable[[Picture, Any, int], Picture]] = {
    Crop: crop,
    Resize: resize,
    Flip: flip,
    Gray: gray,
    Brightness: brightness,
    Contrast: contrast,
    Saturation: saturation,
    Hue: hue,
    Sharpness: sharpness,
    Posterize: posterize,
    Solarize: solarize,
    Invert: invert,
    AutoContrast: autocontrast,
    Equalize: equalize,
    JPEG: jpeg,
    Blur: blur,
    Warp: warp,
    Perspective: perspective,
    Elastic: elastic,
    Mix: mix,
    SolarizeAdd: solarize_add,
    BoxBlur: box_blur,
    Call: call,
}
"""``form(image, op, i)``: row ``i`` of the op on one image. What the mask leaves out must come out as it came in."""
