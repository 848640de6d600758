"""Ops that change colours: blends with a picture that has less of something, and gray.

If the op is of PIL images, Pillow does it to single images, and on batches Pillow's own integers and floats are
computed in torch, so that both give the same bytes.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from PIL import Image, ImageEnhance
from torch import Tensor

from ...transforms import ops
from ...transforms.ops.base import Array
from .device_random import on
from .picture import Picture, array, chw, hwc, pil
from .registry import batch_form, form

__all__ = ["Factor", "adjusted", "blend", "largest", "number", "pil_blend"]

Factor = float | Tensor
"""One number, or f[n, 1, 1, 1]: one for each image."""


def number(values: np.ndarray[Any, Any], x: Tensor) -> Factor:
    """One number per image, as the arithmetic takes it."""
    if len(values) == 1:
        return float(values[0])
    return on(values.astype(np.float32), x.device).view(-1, 1, 1, 1)


def largest(x: Tensor) -> int:
    """Of the values that an image of this type can have."""
    return 1 if x.is_floating_point() else 255


# ---- gray


@form(ops.Gray)
def gray(image: Picture, op: ops.Gray, i: int) -> Picture:
    if op.kind == "pil":
        found: Array = array(pil(image).convert("L"))
    else:
        x = chw(image)
        found = hwc(luma(x).to(x.dtype))
    return found if op.channels == 1 else np.repeat(found, 3, axis=2)


@batch_form(ops.Gray)
def gray_batch(x: Tensor, op: ops.Gray) -> Tensor:
    found = (_pil_luma(x) if op.kind == "pil" else luma(x)).to(x.dtype)
    return found if op.channels == 1 else found.repeat(1, 3, 1, 1)  # not expanded: it may be written to


def luma(x: Tensor) -> Tensor:
    """Of a tensor [..., C, H, W]: [..., 1, H, W], in float32 of uint8. One channel is its own.

    The weights are those of ITU-R BT.601, with as many digits as torchvision has.
    """
    if x.shape[-3] == 1:
        return x
    red, green, blue = x.unbind(-3)
    return red.mul(0.2989).add_(green, alpha=0.587).add_(blue, alpha=0.114).unsqueeze(-3)


def _pil_luma(x: Tensor) -> Tensor:
    """i32[n, 1, H, W], as ``convert("L")``: the weights of ITU-R BT.601 in fixed point of 16 bits, rounded."""
    if x.shape[1] == 1:
        return x.to(torch.int32)
    red, green, blue = (x[:, c].to(torch.int32) for c in range(3))
    total = red.mul_(19595).add_(green.mul_(38470)).add_(blue.mul_(7471)).add_(0x8000)
    return total.bitwise_right_shift_(16).unsqueeze_(1)


# ---- blends with less of something


def blend(x: Tensor, less: Tensor | None, factor: Factor) -> Tensor:
    """torchvision's: ``factor * x + (1 - factor) * less`` of tensors, clipped. ``less`` is black if ``None``."""
    out = x.mul(factor)
    if less is not None:
        out = torch.addcmul(out, less, 1.0 - factor) if isinstance(factor, Tensor) else out.add_(less, alpha=1 - factor)
    return out.clamp_(0, largest(x)).to(x.dtype)


def pil_blend(x: Tensor, less: Tensor | None, factor: Factor) -> Tensor:
    """``Image.blend`` of bytes, in float32: each step rounded by itself, the fraction cut off at the end."""
    values = x.to(torch.float32)
    if less is None:
        values.mul_(factor)
    else:
        values.sub_(less).mul_(factor).add_(less)
    return values.clamp_(0, 255).to(torch.uint8)


def adjusted(image: Picture, op: Any, i: int, enhance: Any) -> Picture:
    """Row ``i`` of a blend on a PIL image, by one of the classes in ``ImageEnhance``."""
    made: Image.Image = enhance(pil(image)).enhance(float(op.factor[i]))
    return made


@form(ops.Brightness)
def brightness(image: Picture, op: ops.Brightness, i: int) -> Picture:
    if op.kind == "pil":
        return adjusted(image, op, i, ImageEnhance.Brightness)
    return hwc(blend(chw(image), None, float(op.factor[i])))


@batch_form(ops.Brightness)
def brightness_batch(x: Tensor, op: ops.Brightness) -> Tensor:
    return (pil_blend if op.kind == "pil" else blend)(x, None, number(op.factor, x))


@form(ops.Contrast)
def contrast(image: Picture, op: ops.Contrast, i: int) -> Picture:
    if op.kind == "pil":
        return adjusted(image, op, i, ImageEnhance.Contrast)
    x = chw(image)
    return hwc(blend(x, _less_contrast(x), float(op.factor[i])))


@batch_form(ops.Contrast)
def contrast_batch(x: Tensor, op: ops.Contrast) -> Tensor:
    factor = number(op.factor, x)
    if op.kind == "pil":
        return pil_blend(x, _pil_less_contrast(x), factor)
    return blend(x, _less_contrast(x), factor)


def _less_contrast(x: Tensor) -> Tensor:
    """The mean in gray, [..., 1, 1, 1]."""
    flat = luma(x)
    # torchvision cuts the fraction of gray off before it takes the mean.
    if not x.is_floating_point():
        flat = flat.floor_() if x.shape[-3] == 3 else flat.to(torch.float32)
    return flat.mean(dim=(-3, -2, -1), keepdim=True)


def _pil_less_contrast(x: Tensor) -> Tensor:
    """The same as Pillow has it: of whole numbers, and rounded."""
    flat = _pil_luma(x)
    mean = flat.sum((1, 2, 3), keepdim=True).to(torch.float64).div_(flat[0].numel())
    return mean.add_(0.5).floor_().to(torch.float32)


@form(ops.Saturation)
def saturation(image: Picture, op: ops.Saturation, i: int) -> Picture:
    if array(image).shape[2] == 1:
        return image
    if op.kind == "pil":
        return adjusted(image, op, i, ImageEnhance.Color)
    x = chw(image)
    return hwc(blend(x, _less_saturation(x), float(op.factor[i])))


@batch_form(ops.Saturation)
def saturation_batch(x: Tensor, op: ops.Saturation) -> Tensor:
    if x.shape[1] == 1:
        return x
    factor = number(op.factor, x)
    if op.kind == "pil":
        return pil_blend(x, _pil_luma(x).to(torch.float32), factor)
    return blend(x, _less_saturation(x), factor)


def _less_saturation(x: Tensor) -> Tensor:
    """The image in gray, [..., 1, H, W]."""
    flat = luma(x)
    return flat if x.is_floating_point() else flat.floor_()


# ---- channels


@form(ops.ChannelPermutation)
def permute_channels(image: Picture, op: ops.ChannelPermutation, i: int) -> Picture:
    return np.ascontiguousarray(array(image)[:, :, op.permutation[i]])


@batch_form(ops.ChannelPermutation)
def permute_channels_batch(x: Tensor, op: ops.ChannelPermutation) -> Tensor:
    return x.gather(1, on(op.permutation.astype(np.int64), x.device)[:, :, None, None].expand_as(x))
