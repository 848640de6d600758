"""Ops that change colors: blends with a reduced version of an image, and gray.

For PIL images, torch computes Pillow's integers and floats plane by plane (:mod:`.levels`), which gives the same bytes
in a fraction of Pillow's time.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..transforms import ops
from . import levels
from .device_random import on
from .picture import to_bytes
from .registry import batch_form

Factor = float | Tensor
"""One number, or f[n, 1, 1, 1] with one number per image."""


def number(values: np.ndarray[Any, Any], x: Tensor) -> Factor:
    """Convert one number per image to the form that the arithmetic takes."""
    return float(values[0]) if len(values) == 1 else numbers(values, x)


def numbers(values: np.ndarray[Any, Any], x: Tensor) -> Tensor:
    """Convert one number per image to f32[n, 1, 1, 1]."""
    return on(values.astype(np.float32), x.device).view(-1, 1, 1, 1)


def largest(x: Tensor) -> int:
    """Return the largest value of an image of this type."""
    return 1 if x.is_floating_point() else 255


# ---- gray


@batch_form(ops.Gray, together="pil")
def gray(x: Tensor, op: ops.Gray) -> Tensor:
    if op.kind == "pil":
        found = to_bytes(levels.luma(levels.levels_of(x)))
    else:
        found = _back(luma(x), x)
    return found if op.channels == 1 else found.repeat(1, 3, 1, 1)  # not expanded, since it may be written to


def luma(x: Tensor) -> Tensor:
    """Convert a tensor [..., C, H, W] to gray [..., 1, H, W], in float32 for uint8. A single channel is returned as it
    is.

    The weights are those of ITU-R BT.601, with as many digits as in torchvision.
    """
    if x.shape[-3] == 1:
        return x
    red, green, blue = x.unbind(-3)
    return red.mul(0.2989).add_(green, alpha=0.587).add_(blue, alpha=0.114).unsqueeze(-3)


# ---- blends with a reduced image


def blend(x: Tensor, less: Tensor | None, factor: Factor) -> Tensor:
    """Blend tensors as torchvision does: ``factor * x + (1 - factor) * less``, clipped. ``less`` is black if
    ``None``."""
    out = x.mul(factor)
    if less is not None:
        out = torch.addcmul(out, less, 1.0 - factor) if isinstance(factor, Tensor) else out.add_(less, alpha=1 - factor)
    return _back(out.clamp_(0, largest(x)), x)


def _back(values: Tensor, x: Tensor) -> Tensor:
    """Convert to the type of ``x``."""
    return to_bytes(values) if x.dtype == torch.uint8 else values.to(x.dtype)


@batch_form(ops.Brightness, together="always")
def brightness(x: Tensor, op: ops.Brightness) -> Tensor:
    if op.kind == "pil":
        return to_bytes(levels.brightness(x.to(torch.float32), numbers(op.factor, x)))
    return blend(x, None, number(op.factor, x))


@batch_form(ops.Contrast, together="pil")
def contrast(x: Tensor, op: ops.Contrast) -> Tensor:
    if op.kind == "pil":
        return to_bytes(levels.contrast(x.to(torch.float32), numbers(op.factor, x)))
    return blend(x, _less_contrast(x), number(op.factor, x))


def _less_contrast(x: Tensor) -> Tensor:
    """Return the mean of the gray image, [..., 1, 1, 1]."""
    flat = luma(x)
    # torchvision truncates gray before it takes the mean.
    if not x.is_floating_point():
        flat = flat.floor_() if x.shape[-3] == 3 else flat.to(torch.float32)
    return flat.mean(dim=(-3, -2, -1), keepdim=True)


@batch_form(ops.Saturation, together="pil")
def saturation(x: Tensor, op: ops.Saturation) -> Tensor:
    if x.shape[1] == 1:
        return x
    if op.kind == "pil":
        return to_bytes(levels.saturation(x.to(torch.float32), numbers(op.factor, x)))
    return blend(x, _less_saturation(x), number(op.factor, x))


def _less_saturation(x: Tensor) -> Tensor:
    """Return the image in gray, [..., 1, H, W]."""
    flat = luma(x)
    return flat if x.is_floating_point() else flat.floor_()


# ---- channels


@batch_form(ops.ChannelPermutation, together="always")
def permute_channels(x: Tensor, op: ops.ChannelPermutation) -> Tensor:
    if len(x) == 1:
        return x[:, op.permutation[0].tolist()]
    return x.gather(1, on(op.permutation.astype(np.int64), x.device)[:, :, None, None].expand_as(x))
