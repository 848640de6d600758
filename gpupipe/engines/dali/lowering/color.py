"""Ops that change values."""

from __future__ import annotations

import numpy as np
from nvidia.dali import fn, types

from ....transforms.ops import Gray, Normalize, ToDtype
from .canvas import Canvas, Path, refuse

__all__ = ["gray", "normalize", "to_dtype"]


def gray(canvas: Canvas, path: Path, op: Gray) -> None:
    if canvas.dtype != "uint8":
        raise refuse(op, "it needs a uint8 image; put it before ToTensor or ToDtype")
    image = canvas.pixels()
    gray = image
    if canvas.channels == 3:
        gray = fn.color_space_conversion(image, image_type=types.RGB, output_type=types.GRAY)
    if op.channels == 1:
        canvas.image, canvas.channels = gray, 1
    elif op.always:
        canvas.image, canvas.channels = fn.color_space_conversion(gray, image_type=types.GRAY, output_type=types.RGB), 3
    else:
        mask = canvas.feed(path, "mask", types.UINT8, 0, lambda op: op.mask.astype(np.uint8))
        keep = canvas.feed(path, "keep", types.UINT8, 0, lambda op: (~op.mask).astype(np.uint8))
        canvas.image = image * keep + gray * mask  # uint8 throughout; gray is broadcast over the channels


def to_dtype(canvas: Canvas, path: Path, op: ToDtype) -> None:
    if canvas.dtype == "uint8":
        canvas.arithmetic(np.zeros(1), np.full(1, 255.0 if op.scale else 1.0))
    canvas.dtype = op.dtype


def normalize(canvas: Canvas, path: Path, op: Normalize) -> None:
    canvas.arithmetic(np.array(op.mean), np.array(op.std))
