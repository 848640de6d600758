"""Ops on values and histograms: sharpness, fewer levels, inversions, stretched and even histograms, JPEG."""

from __future__ import annotations

import io
from functools import lru_cache

import numpy as np
import torch
from PIL import Image, ImageEnhance, ImageOps
from torch import Tensor

from ...transforms import ops
from .color import Factor, adjusted, largest, number, pil_blend
from .device_random import on
from .picture import Picture, array, chw, hwc, pil
from .registry import batch_form, form

__all__ = ["tensor_sharpness"]


@form(ops.Sharpness)
def sharpness(image: Picture, op: ops.Sharpness, i: int) -> Picture:
    if op.kind == "pil":
        return adjusted(image, op, i, ImageEnhance.Sharpness)
    return hwc(tensor_sharpness(chw(image), float(op.factor[i])))


@batch_form(ops.Sharpness)
def sharpness_batch(x: Tensor, op: ops.Sharpness) -> Tensor:
    factor = number(op.factor, x)
    return pil_blend(x, _pil_less_sharpness(x), factor) if op.kind == "pil" else tensor_sharpness(x, factor)


def _pil_less_sharpness(x: Tensor) -> Tensor:
    less = x.to(torch.float32)
    if min(x.shape[-2:]) > 2:
        whole = x.to(torch.int32)
        rows = whole[..., :-2, :] + whole[..., 1:-1, :] + whole[..., 2:, :]
        total = rows[..., :-2] + rows[..., 1:-1] + rows[..., 2:] + 4 * whole[..., 1:-1, 1:-1]
        # Thirteenths are never half, so Pillow's floats round as these integers do.
        less[..., 1:-1, 1:-1] = total.add_(6).div_(13, rounding_mode="floor").to(torch.float32)
    return less


def tensor_sharpness(x: Tensor, factor: Factor) -> Tensor:
    """torchvision's, of tensors [..., C, H, W]. The outermost pixels stay.

    ``factor * x + (1 - factor) * smooth`` is computed as ``x + (1 - factor) * (smooth - x)``, as there.
    """
    if min(x.shape[-2:]) <= 2:
        return x
    channels = x.shape[-3]
    out = x.to(x.dtype if x.is_floating_point() else torch.float32, copy=True)
    if x.device.type == "cuda":
        smooth = _smooth_by_sums(out)
    else:
        smooth = torch.nn.functional.conv2d(
            out, _smooth(out.dtype, x.device).expand(channels, 1, 3, 3), groups=channels
        )
    if not x.is_floating_point():
        smooth.round_()
    inner = out[..., 1:-1, 1:-1]
    smooth.sub_(inner)
    if isinstance(factor, Tensor):
        inner.addcmul_(smooth, 1.0 - factor)
    else:
        inner.add_(smooth, alpha=1.0 - factor)
    return out.clamp_(0, largest(x)).to(x.dtype)


def _smooth_by_sums(x: Tensor) -> Tensor:
    """The same filter without a convolution, for which cuDNN may round to TF32."""
    rows = x[..., :-2, :] + x[..., 1:-1, :] + x[..., 2:, :]
    total = rows[..., :-2] + rows[..., 1:-1] + rows[..., 2:]
    return total.add_(x[..., 1:-1, 1:-1], alpha=4).div_(13)


@lru_cache(maxsize=16)
def _smooth(dtype: torch.dtype, device: torch.device) -> Tensor:
    a, b = 1.0 / 13.0, 5.0 / 13.0
    return torch.tensor([[a, a, a], [a, b, a], [a, a, a]], dtype=dtype, device=device)


def _point(image: Image.Image, table: list[int]) -> Image.Image:
    return image.point(table * len(image.getbands()))


@form(ops.Posterize)
def posterize(image: Picture, op: ops.Posterize, i: int) -> Picture:
    bits = int(op.bits[i])
    if isinstance(image, np.ndarray):
        return hwc(_tensor_posterize(chw(image), bits))
    return _point(image, [value & (256 - (1 << (8 - bits))) for value in range(256)])


@batch_form(ops.Posterize)
def posterize_batch(x: Tensor, op: ops.Posterize) -> Tensor:
    if len(op.bits) == 1 or (op.bits == op.bits[0]).all():
        return _tensor_posterize(x, int(op.bits[0]))
    if not x.is_floating_point():
        return x.bitwise_and(on((256 - (1 << (8 - op.bits))).astype(np.uint8), x.device).view(-1, 1, 1, 1))
    # Of floats: as many levels as so many bits have.
    levels = on((1 << op.bits).astype(np.float32), x.device).view(-1, 1, 1, 1)
    return x.mul(levels).floor_().clamp_(min=0).minimum(levels - 1).div_(levels)  # powers of two: exact


def _tensor_posterize(x: Tensor, bits: int) -> Tensor:
    if x.is_floating_point():
        levels = 1 << bits
        return x.mul(levels).floor_().clamp_(0, levels - 1).mul_(1.0 / levels)
    return x.bitwise_and(256 - (1 << (8 - bits)))


@form(ops.Solarize)
def solarize(image: Picture, op: ops.Solarize, i: int) -> Picture:
    threshold = float(op.threshold[i])
    if isinstance(image, np.ndarray):
        x = chw(image)
        return hwc(torch.where(x >= threshold, _inverse(x), x))
    return ImageOps.solarize(image, threshold)  # type: ignore[arg-type]


@batch_form(ops.Solarize)
def solarize_batch(x: Tensor, op: ops.Solarize) -> Tensor:
    return torch.where(x >= number(op.threshold, x), _inverse(x), x)


@form(ops.SolarizeAdd)
def solarize_add(image: Picture, op: ops.SolarizeAdd, i: int) -> Picture:
    values = array(image)
    return np.asarray(np.where(values < 128, values + np.uint8(op.addend[i]), values).astype(np.uint8))


@batch_form(ops.SolarizeAdd)
def solarize_add_batch(x: Tensor, op: ops.SolarizeAdd) -> Tensor:
    return torch.where(x < 128, x + on(op.addend.astype(np.uint8), x.device).view(-1, 1, 1, 1), x)


@form(ops.Invert)
def invert(image: Picture, op: ops.Invert, i: int) -> Picture:
    return hwc(_inverse(chw(image))) if isinstance(image, np.ndarray) else ImageOps.invert(image)


@batch_form(ops.Invert)
def invert_batch(x: Tensor, op: ops.Invert) -> Tensor:
    return _inverse(x)


def _inverse(x: Tensor) -> Tensor:
    return 1.0 - x if x.is_floating_point() else x.bitwise_not()


@form(ops.AutoContrast)
def autocontrast(image: Picture, op: ops.AutoContrast, i: int) -> Picture:
    return ImageOps.autocontrast(pil(image)) if op.kind == "pil" else hwc(_tensor_autocontrast(chw(image)))


@batch_form(ops.AutoContrast)
def autocontrast_batch(x: Tensor, op: ops.AutoContrast) -> Tensor:
    if op.kind == "tensor":
        return _tensor_autocontrast(x)
    # Pillow makes a table of 256 levels in float64, and cuts its entries off.
    low, high = (f(x.flatten(2), -1).to(torch.float64)[..., None] for f in (torch.amin, torch.amax))
    scale = torch.full_like(high, 255.0).div_(high - low)  # 255.0 / x would multiply by the reciprocal
    table = (_levels(x.device) * scale).add_(-low * scale).clamp_(0, 255)
    table = torch.where(high > low, table, _levels(x.device)).to(torch.uint8)
    return table.gather(-1, x.flatten(2).long()).view_as(x)


@lru_cache(maxsize=16)
def _levels(device: torch.device) -> Tensor:
    # From the host, which waits for it: what is kept may be read from other streams.
    return torch.arange(256, dtype=torch.float64, device="cpu").to(device)


def _tensor_autocontrast(x: Tensor) -> Tensor:
    """torchvision's, of tensors [..., C, H, W]."""
    values = x if x.is_floating_point() else x.to(torch.float32)
    low, high = values.amin(dim=(-2, -1), keepdim=True), values.amax(dim=(-2, -1), keepdim=True)
    flat = high == low  # there is nothing to stretch, and nothing to divide by
    step = high.sub_(low).mul_(1.0 / largest(x)).masked_fill_(flat, 1.0)
    return values.sub(low.masked_fill_(flat, 0.0)).div_(step).clamp_(0, largest(x)).to(x.dtype)


@form(ops.Equalize)
def equalize(image: Picture, op: ops.Equalize, i: int) -> Picture:
    return ImageOps.equalize(pil(image)) if op.kind == "pil" else hwc(_tensor_equalize(chw(image)))


@batch_form(ops.Equalize)
def equalize_batch(x: Tensor, op: ops.Equalize) -> Tensor:
    return _tensor_equalize(x)


def _tensor_equalize(x: Tensor) -> Tensor:
    """Pillow's ``ImageOps.equalize`` of tensors [..., C, H, W], and torchvision's. Floats go through uint8.

    A level becomes the number of values below it, in steps of a 255th of all but the highest ones, rounded.
    """
    levels = x.mul(256.0 - 1e-3).to(torch.uint8) if x.is_floating_point() else x
    flat = levels.flatten(-2).long()
    counts = torch.zeros((*flat.shape[:-1], 256), dtype=torch.int64, device=x.device)
    counts.scatter_add_(-1, flat, torch.ones((), dtype=torch.int64, device=x.device).expand_as(flat))
    up_to = counts.cumsum(-1)
    last = counts.gather(-1, up_to.argmax(-1, keepdim=True))  # how many have the highest value that there is
    step = (flat.shape[-1] - last).div_(255, rounding_mode="floor")
    below = up_to.sub_(counts)
    table = below.add_(step.div(2, rounding_mode="floor")).div_(step.clamp(min=1), rounding_mode="floor")
    table = torch.where(step == 0, torch.arange(256, device=x.device), table.clamp_(0, 255)).to(torch.uint8)
    out = table.gather(-1, flat).view_as(levels)
    return out.to(x.dtype).mul_(1.0 / 255) if x.is_floating_point() else out


@form(ops.JPEG)
def jpeg(image: Picture, op: ops.JPEG, i: int) -> Picture:
    file = io.BytesIO()
    pil(image).save(file, format="JPEG", quality=int(op.quality[i]), subsampling=2)
    return Image.open(file).copy()
