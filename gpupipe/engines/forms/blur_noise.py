"""Gaussian blur and noise."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import conv2d, pad

from ...transforms.ops import Blur, Noise
from .device_random import normal, on
from .picture import Picture, array, chw, hwc

__all__ = ["blur", "blur_batch", "blur_by_axes", "noise_batch", "smooth"]


def _kernel(size: int, sigma: Any, dtype: torch.dtype, device: torch.device) -> Tensor:
    """[n, size]: torchvision's Gaussians of ``sigma`` [n]; its places are divided by the root of two, not by two."""
    end = (size - 1) / (2.0 * math.sqrt(2.0))
    x = torch.linspace(-end, end, steps=size, dtype=dtype, device=device)
    return torch.softmax(x.div(on(np.asarray(sigma, np.float64), device).to(dtype)[:, None]).pow(2).neg(), dim=1)


def blur(image: Picture, op: Blur, i: int) -> Picture:
    return hwc(_blurred(chw(image)[None], op.sigma[i : i + 1], op.kernel_size)[0]) if op.mask[i] else image


def _blurred(x: Tensor, sigma: Any, kernel_size: tuple[int, int]) -> Tensor:
    """torchvision's ``gaussian_blur`` of [n, C, H, W], each by its own ``sigma`` f64[n]."""
    n, channels, height, width = x.shape
    dtype = x.dtype if x.is_floating_point() else torch.float32
    across, down = (_kernel(size, sigma, dtype, x.device) for size in kernel_size)
    kernel = (down[:, :, None] * across[:, None]).repeat_interleave(channels, dim=0)[:, None]
    values = _reflected(x.to(dtype), kernel_size).reshape(1, n * channels, height + kernel_size[1] - 1, -1)
    values = conv2d(values, kernel, groups=n * channels).view(n, channels, height, width)
    return values if x.is_floating_point() else values.round_().to(x.dtype)


def _reflected(x: Tensor, kernel_size: tuple[int, int]) -> Tensor:
    right, bottom = kernel_size[0] // 2, kernel_size[1] // 2
    return pad(x, [right, right, bottom, bottom], mode="reflect")


def blur_by_axes(image: Picture, op: Blur, i: int) -> Picture:
    """:func:`blur` along one axis after the other: within one grey level of it, and thirty times faster."""
    if not op.mask[i]:
        return image
    values = array(image)
    kind = np.float32 if values.dtype == np.uint8 else values.dtype
    right, bottom = (n // 2 for n in op.kernel_size)
    x = np.pad(values, ((bottom, bottom), (right, right), (0, 0)), mode="reflect").astype(kind)
    for axis, size in ((1, op.kernel_size[0]), (0, op.kernel_size[1])):
        kernel = _kernel(size, op.sigma[i : i + 1], torch.float32, torch.device("cpu"))[0].numpy().astype(kind)
        count = x.shape[axis] - size + 1
        parts = (x[:, k : k + count] if axis else x[k : k + count] for k in range(size))
        total = next(parts) * kernel[0]
        for part, weight in zip(parts, kernel[1:], strict=True):
            total += part * weight
        x = total
    return np.rint(x).astype(np.uint8) if values.dtype == np.uint8 else x


def taps(x: Tensor, kernel: Tensor, axis: int) -> Tensor:
    """[n, C, H, W] filtered along an axis by kernels [n or 1, size], all within the image.

    For GPUs, where cuDNN's convolutions of float32 keep 10 bits of each number unless a script forbids it (TF32).
    """
    size = x.shape[axis] - kernel.shape[1] + 1
    total: Tensor | None = None
    for i in range(kernel.shape[1]):
        part, weight = x.narrow(axis, i, size), kernel[:, i].view(-1, 1, 1, 1)
        total = part * weight if total is None else total.addcmul_(part, weight)
    assert total is not None
    return total


def blur_batch(x: Tensor, op: Blur) -> Tensor:
    drawn = np.flatnonzero(op.mask)
    if x.device.type == "cpu":
        for i in drawn:
            x[i] = _blurred(x[i : i + 1], op.sigma[i : i + 1], op.kernel_size)[0]
    elif drawn.size:
        rows = on(drawn, x.device)
        x[rows] = _blurred(x[rows], op.sigma[drawn], op.kernel_size)
    return x


def smooth(x: Tensor, kernel_size: tuple[int, int], sigma: tuple[float, float]) -> Tensor:
    """f32[n, 1, H, W] blurred, one axis after the other: much cheaper than torchvision's way, and other last bits."""
    across, down = (_kernel(n, [s], x.dtype, x.device) for n, s in zip(kernel_size, sigma, strict=True))
    values = _reflected(x, kernel_size)
    if x.device.type == "cuda":
        return taps(taps(values, across, -1), down, -2)
    return conv2d(conv2d(values, across[:, None, None]), down[:, None, :, None])


def noise_batch(x: Tensor, op: Noise) -> Tensor:
    drawn = np.flatnonzero(op.mask)
    if not drawn.size:
        return x
    rows = on(drawn, x.device)
    values = normal(op.seed[drawn], x[0].numel(), x.device).view(-1, *x.shape[1:])
    if x.dtype == torch.uint8:
        out = x[rows] + values.mul_(op.sigma * 255).add_(op.mean * 255).to(torch.int16)
        x[rows] = (out.clamp_(0, 255) if op.clip else out).to(torch.uint8)
    else:
        out = x[rows] + values.to(x.dtype).mul_(op.sigma).add_(op.mean)
        x[rows] = out.clamp_(0, 1) if op.clip else out
    return x
