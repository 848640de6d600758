"""Two operations of timm's policies: values below the middle raised, and Pillow's blur by boxes."""

from __future__ import annotations

import numpy as np
import torch
from PIL import ImageFilter
from torch import Tensor

from ...transforms.ops import BoxBlur, SolarizeAdd
from .picture import Picture, array, pil

__all__ = ["box_blur", "box_blur_batch", "solarize_add", "solarize_add_batch"]


def solarize_add(image: Picture, op: SolarizeAdd, i: int) -> Picture:
    if not op.mask[i]:
        return image
    values = array(image)
    return np.asarray(np.where(values < 128, values + np.uint8(op.addend[i]), values).astype(np.uint8))


def solarize_add_batch(x: Tensor, op: SolarizeAdd) -> Tensor:
    for i in np.flatnonzero(op.mask).tolist():
        x[i] += (x[i] < 128) * int(op.addend[i])
    return x


def box_blur(image: Picture, op: BoxBlur, i: int) -> Picture:
    if not op.mask[i]:
        return image
    return pil(image).filter(ImageFilter.GaussianBlur(float(op.radius[i])))


def box_blur_batch(x: Tensor, op: BoxBlur) -> Tensor:
    for i in np.flatnonzero(op.mask).tolist():
        radius = _box_radius(float(op.radius[i]))
        one = x[i].to(torch.int64)
        for _ in range(2):  # along the width, then along the height
            for _ in range(_PASSES):
                one = _boxed(one, radius)
            one = one.transpose(-1, -2)
        x[i] = one.to(torch.uint8)
    return x


_PASSES = 3


def _box_radius(radius: float) -> np.float32:
    """Of a box that, used three times, has the variance of a Gaussian (Gwosdek et al., *Theoretical foundations of
    Gaussian convolution by extended box filtering*, 2011); in single precision, as Pillow has it."""
    variance = np.float32(np.float32(radius) * np.float32(radius) / _PASSES)
    length = np.float32(np.sqrt(12.0 * float(variance) + 1.0))
    whole = np.float32(np.floor((float(length) - 1.0) / 2.0))
    part = (2 * whole + 1) * (whole * (whole + 1) - 3 * variance)
    part /= 6 * (variance - (whole + 1) * (whole + 1))
    return np.float32(whole + part)


def _boxed(x: Tensor, radius: np.float32) -> Tensor:
    """One box along the last axis of an i64 tensor, in fixed point of 24 bits; the edge is repeated."""
    whole, size = int(radius), x.shape[-1]
    weight = int(np.float32(1 << 24) / (radius * 2 + 1))
    edge = ((1 << 24) - (whole * 2 + 1) * weight) // 2
    reach = torch.arange(-whole - 1, size + whole + 1, device=x.device).clamp_(0, size - 1)
    wide = x[..., reach]
    sums = torch.nn.functional.pad(wide.cumsum(-1), (1, 0))
    inner = sums[..., 2 * whole + 2 : -1] - sums[..., 1 : size + 1]
    outer = wide[..., :size] + wide[..., 2 * whole + 2 :]
    return (inner * weight + outer * edge + (1 << 23)) >> 24
