"""Ops on values and histograms: sharpness, posterize, inversions, autocontrast, equalization."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..transforms import ops
from .color import Factor, largest, number, numbers
from .device_random import on
from .levels import sharpness as sharpened, sum_of_nine
from .picture import to_bytes
from .registry import batch_form


@batch_form(ops.Sharpness, together="pil")
def sharpness(x: Tensor, op: ops.Sharpness) -> Tensor:
    if op.kind == "pil":
        return to_bytes(sharpened(x.to(torch.float32), numbers(op.factor, x)))
    return tensor_sharpness(x, number(op.factor, x))


def tensor_sharpness(x: Tensor, factor: Factor) -> Tensor:
    """Compute torchvision's sharpness for tensors [..., C, H, W]. The outermost pixels do not change.

    ``factor * x + (1 - factor) * smooth`` is computed as ``x + (1 - factor) * (smooth - x)``, as in torchvision.
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
    """Apply the smoothing filter without a convolution, for which cuDNN may round to TF32."""
    return sum_of_nine(x).add_(x[..., 1:-1, 1:-1], alpha=4).div_(13)


@lru_cache(maxsize=16)
def _smooth(dtype: torch.dtype, device: torch.device) -> Tensor:
    a, b = 1.0 / 13.0, 5.0 / 13.0
    return torch.tensor([[a, a, a], [a, b, a], [a, a, a]], dtype=dtype, device=device)


@batch_form(ops.Posterize, together="always")
def posterize(x: Tensor, op: ops.Posterize) -> Tensor:
    if len(op.bits) == 1 or (op.bits == op.bits[0]).all():
        return _tensor_posterize(x, int(op.bits[0]))
    if not x.is_floating_point():
        return x.bitwise_and(on((256 - (1 << (8 - op.bits))).astype(np.uint8), x.device).view(-1, 1, 1, 1))
    # Floats have as many levels as the given number of bits.
    levels = on((1 << op.bits).astype(np.float32), x.device).view(-1, 1, 1, 1)
    return x.mul(levels).floor_().clamp_(min=0).minimum(levels - 1).div_(levels)  # powers of two: exact


def _tensor_posterize(x: Tensor, bits: int) -> Tensor:
    if x.is_floating_point():
        levels = 1 << bits
        return x.mul(levels).floor_().clamp_(0, levels - 1).mul_(1.0 / levels)
    return x.bitwise_and(256 - (1 << (8 - bits)))


@batch_form(ops.Solarize, together="always")
def solarize(x: Tensor, op: ops.Solarize) -> Tensor:
    if x.is_floating_point():
        return torch.where(x >= number(op.threshold, x), _inverse(x), x)
    bright = _reaches(x, np.clip(np.ceil(op.threshold), 0, 255).astype(np.uint8))
    # All bits are inverted, or none if no byte reaches the threshold.
    bits = on(np.where(op.threshold > 255, 0, 255).astype(np.uint8), x.device).view(-1, 1, 1, 1)
    return x.bitwise_xor_(bright.mul_(bits))


def _reaches(x: Tensor, least: np.ndarray[Any, np.dtype[np.uint8]]) -> Tensor:
    """Return u8[n, C, H, W], 1 for bytes that are at least ``least`` u8[n] of their image, else 0."""
    least = least[:, None, None, None]
    if x.device.type == "cpu":  # torch takes twenty times as long to compare bytes
        return torch.from_numpy(np.greater_equal(x.numpy(), least).view(np.uint8))
    return (x >= on(least, x.device)).view(torch.uint8)


@batch_form(ops.SolarizeAdd, together="always")
def solarize_add(x: Tensor, op: ops.SolarizeAdd) -> Tensor:
    dark = _reaches(x, np.full(len(x), 128, np.uint8)).bitwise_xor_(1)
    return x.add_(dark.mul_(on(op.addend.astype(np.uint8), x.device).view(-1, 1, 1, 1)))


@batch_form(ops.Invert, together="always")
def invert(x: Tensor, op: ops.Invert) -> Tensor:
    return _inverse(x)


def _inverse(x: Tensor) -> Tensor:
    return 1.0 - x if x.is_floating_point() else x.bitwise_not()


@batch_form(ops.AutoContrast, together="always")
def autocontrast(x: Tensor, op: ops.AutoContrast) -> Tensor:
    if op.kind == "tensor":
        return _tensor_autocontrast(x)
    # Pillow computes a table of 256 levels in float64, and truncates its entries.
    low, high = (f(x.flatten(2), -1).to(torch.float64)[..., None] for f in (torch.amin, torch.amax))
    scale = torch.full_like(high, 255.0).div_(high - low)  # 255.0 / x would multiply by the reciprocal
    table = (_levels(x.device) * scale).add_(-low * scale).clamp_(0, 255)
    table = torch.where(high > low, table, _levels(x.device)).to(torch.uint8)
    return _looked_up(x, table)


def _looked_up(x: Tensor, table: Tensor) -> Tensor:
    """Return ``table[..., level]`` for bytes [..., C, H, W]; table u8[..., C, 256]."""
    if x.device.type != "cpu":
        return table.gather(-1, x.flatten(-2).long()).view_as(x)
    out = torch.empty(x.shape, dtype=torch.uint8, device="cpu")
    for at in np.ndindex(*x.shape[:-2]):
        np.take(table[at].numpy(), x[at].numpy(), out=out[at].numpy(), mode="wrap")  # "raise" would copy first
    return out


@lru_cache(maxsize=16)
def _levels(device: torch.device) -> Tensor:
    # Copied from the host, which waits for it: a cached tensor may be read from other streams.
    return torch.arange(256, dtype=torch.float64, device="cpu").to(device)


def _tensor_autocontrast(x: Tensor) -> Tensor:
    """Compute torchvision's autocontrast for tensors [..., C, H, W]."""
    values = x if x.is_floating_point() else x.to(torch.float32)
    low, high = values.amin(dim=(-2, -1), keepdim=True), values.amax(dim=(-2, -1), keepdim=True)
    flat = high == low  # nothing to stretch, and a division by zero
    step = high.sub_(low).mul_(1.0 / largest(x)).masked_fill_(flat, 1.0)
    return values.sub(low.masked_fill_(flat, 0.0)).div_(step).clamp_(0, largest(x)).to(x.dtype)


@batch_form(ops.Equalize, together="always")
def equalize(x: Tensor, op: ops.Equalize) -> Tensor:
    return _tensor_equalize(x)


def _tensor_equalize(x: Tensor) -> Tensor:
    """Compute ``equalize`` of Pillow and torchvision for tensors [..., C, H, W]. Floats are converted to uint8 in
    between.

    A level becomes the number of values below it, in steps of a 255th of all but the highest ones, rounded.
    """
    levels = x.mul(256.0 - 1e-3).to(torch.uint8) if x.is_floating_point() else x
    counts = _histograms(levels)
    up_to = counts.cumsum(-1)
    last = counts.gather(-1, up_to.argmax(-1, keepdim=True))  # number of pixels with the highest value
    step = (x.shape[-2] * x.shape[-1] - last).div_(255, rounding_mode="floor")
    below = up_to.sub_(counts)
    table = below.add_(step.div(2, rounding_mode="floor")).div_(step.clamp(min=1), rounding_mode="floor")
    table = torch.where(step == 0, torch.arange(256, device=x.device), table.clamp_(0, 255)).to(torch.uint8)
    out = _looked_up(levels, table)
    return out.to(x.dtype).mul_(1.0 / 255) if x.is_floating_point() else out


def _histograms(x: Tensor) -> Tensor:
    """Compute i64[..., C, 256] of bytes [..., C, H, W]."""
    flat = x.flatten(-2)
    if x.device.type == "cpu":
        counts = [torch.bincount(plane, minlength=256) for plane in flat.flatten(0, -2)]
        return torch.stack(counts).view(*flat.shape[:-1], 256)
    made = torch.zeros((*flat.shape[:-1], 256), dtype=torch.int64, device=x.device)
    one = torch.ones((), dtype=torch.int64, device=x.device)
    return made.scatter_add_(-1, flat.long(), one.expand(flat.shape))
