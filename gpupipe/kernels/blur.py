"""Blurs."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from PIL import ImageFilter
from torch import Tensor
from torch.nn.functional import conv2d, pad

from ..transforms import ops
from .device_random import on
from .levels import blur as blur_rows
from .picture import Picture, array, chw, hwc, pil, planes, to_bytes
from .registry import batch_form, form


def _kernel(size: int, sigma: Any, dtype: torch.dtype, device: torch.device) -> Tensor:
    """[n, size]: torchvision's Gaussians of ``sigma`` [n]; its positions are divided by the root of two, not by two."""
    end = (size - 1) / (2.0 * math.sqrt(2.0))
    x = torch.linspace(-end, end, steps=size, dtype=dtype, device=device)
    return torch.softmax(x.div(on(np.asarray(sigma, np.float64), device).to(dtype)[:, None]).pow(2).neg(), dim=1)


@form(ops.Blur)
def blur(image: Picture, op: ops.Blur, i: int) -> Picture:
    return hwc(blur_batch(chw(image)[None], op.take(slice(i, i + 1)))[0])


@batch_form(ops.Blur)
def blur_batch(x: Tensor, op: ops.Blur) -> Tensor:
    """Compute torchvision's ``gaussian_blur``: one two-dimensional convolution."""
    sigma, kernel_size = op.sigma, op.kernel_size
    n, channels, height, width = x.shape
    dtype = x.dtype if x.is_floating_point() else torch.float32
    across, down = (_kernel(size, sigma, dtype, x.device) for size in kernel_size)
    # All channels of all images become channels of one image, each with its own kernel.
    kernel = (down[:, :, None] * across[:, None]).repeat_interleave(channels, dim=0)[:, None]
    values = _reflected(x.to(dtype), kernel_size).reshape(1, n * channels, height + kernel_size[1] - 1, -1)
    values = conv2d(values, kernel, groups=n * channels).view(n, channels, height, width)
    return values if x.is_floating_point() else values.round_().to(x.dtype)


def _reflected(x: Tensor, kernel_size: tuple[int, int]) -> Tensor:
    right, bottom = kernel_size[0] // 2, kernel_size[1] // 2
    return pad(x, [right, right, bottom, bottom], mode="reflect")


@form(ops.Blur, exact=False)
def blur_by_axes(image: Picture, op: ops.Blur, i: int) -> Picture:
    """Compute :func:`blur` along one axis after the other: within one gray level, and a hundred times faster."""
    pixels, kernel_size = array(image), op.kernel_size
    if pixels.shape[1] <= kernel_size[0] // 2 or pixels.shape[0] <= kernel_size[1] // 2:
        return blur(image, op, i)  # raises torch's error
    # Scripts may allow torch to multiply float32 with fewer bits, which some CPUs do, but not float64.
    dtype = torch.float32 if torch.get_float32_matmul_precision() == "highest" else torch.float64
    values = blur_rows(planes(image).to(dtype), *kernel_size, float(op.sigma[i]))
    filtered = to_bytes(values.round_()) if pixels.dtype == np.uint8 else values.to(torch.from_numpy(pixels[:0]).dtype)
    return hwc(filtered)


# ---- Pillow's box blur


@form(ops.BoxBlur)
def box_blur(image: Picture, op: ops.BoxBlur, i: int) -> Picture:
    return pil(image).filter(ImageFilter.GaussianBlur(float(op.radius[i])))


@batch_form(ops.BoxBlur, rows="each")
def box_blur_batch(x: Tensor, op: ops.BoxBlur) -> Tensor:
    radius = _box_radius(float(op.radius[0]))
    values = x.to(torch.int64)
    for _ in range(2):  # along the width, then along the height
        for _ in range(_PASSES):
            values = _boxed(values, radius)
        values = values.transpose(-1, -2)
    return values.to(torch.uint8)


_PASSES = 3


def _box_radius(radius: float) -> np.float32:
    """Radius of a box that, applied three times, has the variance of a Gaussian.

    See Gwosdek et al., *Theoretical foundations of Gaussian convolution by extended box filtering*, 2011. Computed in
    single precision, as in Pillow.
    """
    # A box of length L has the variance (L² - 1) / 12, and three of them three times that. The length with the required
    # variance is not an integer, so the outermost pixels have a fractional weight.
    variance = np.float32(np.float32(radius) * np.float32(radius) / _PASSES)
    length = np.float32(np.sqrt(12.0 * float(variance) + 1.0))
    whole = np.float32(np.floor((float(length) - 1.0) / 2.0))
    part = (2 * whole + 1) * (whole * (whole + 1) - 3 * variance)
    part /= 6 * (variance - (whole + 1) * (whole + 1))
    return np.float32(whole + part)


def _boxed(x: Tensor, radius: np.float32) -> Tensor:
    """Apply one box filter along the last axis of an i64 tensor, in 24-bit fixed point; the edge is repeated."""
    whole, size = int(radius), x.shape[-1]
    weight = int(np.float32(1 << 24) / (radius * 2 + 1))
    edge = ((1 << 24) - (whole * 2 + 1) * weight) // 2
    reach = torch.arange(-whole - 1, size + whole + 1, device=x.device).clamp_(0, size - 1)
    # Sums over windows are differences of a running sum. The pixel beyond the window on each side has the fractional
    # weight.
    wide = x[..., reach]
    sums = torch.nn.functional.pad(wide.cumsum(-1), (1, 0))
    inner = sums[..., 2 * whole + 2 : -1] - sums[..., 1 : size + 1]
    outer = wide[..., :size] + wide[..., 2 * whole + 2 :]
    return (inner * weight + outer * edge + (1 << 23)) >> 24
