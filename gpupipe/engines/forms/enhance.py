"""Ops on values and histograms: sharpness, fewer levels, inversions, stretched and even histograms, JPEG."""

from __future__ import annotations

import io
from functools import lru_cache

import numpy as np
import torch
from PIL import Image, ImageEnhance, ImageOps
from torch import Tensor

from ...transforms.ops import JPEG, AutoContrast, Equalize, Invert, Posterize, Sharpness, Solarize
from .color import Factor, largest
from .picture import Picture, chw, hwc, pil

__all__ = [
    "autocontrast",
    "equalize",
    "inverse",
    "invert",
    "jpeg",
    "posterize",
    "sharpness",
    "solarize",
    "tensor_autocontrast",
    "tensor_equalize",
    "tensor_posterize",
    "tensor_sharpness",
]


def sharpness(image: Picture, op: Sharpness, i: int) -> Picture:
    if not op.mask[i]:
        return image
    factor = float(op.factor[i])
    if op.kind == "pil":
        return ImageEnhance.Sharpness(pil(image)).enhance(factor)
    return hwc(tensor_sharpness(chw(image), factor))


def tensor_sharpness(x: Tensor, factor: Factor) -> Tensor:
    """torchvision's, of tensors [..., C, H, W]. The outermost pixels stay."""
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


def posterize(image: Picture, op: Posterize, i: int) -> Picture:
    bits = int(op.bits[i])
    if not op.mask[i]:
        return image
    if isinstance(image, np.ndarray):
        return hwc(tensor_posterize(chw(image), bits))
    return _point(image, [value & (256 - (1 << (8 - bits))) for value in range(256)])


def tensor_posterize(x: Tensor, bits: int) -> Tensor:
    if x.is_floating_point():
        levels = 1 << bits
        return x.mul(levels).floor_().clamp_(0, levels - 1).mul_(1.0 / levels)
    return x.bitwise_and(256 - (1 << (8 - bits)))


def solarize(image: Picture, op: Solarize, i: int) -> Picture:
    if not op.mask[i]:
        return image
    threshold = float(op.threshold[i])
    if isinstance(image, np.ndarray):
        x = chw(image)
        return hwc(torch.where(x >= threshold, inverse(x), x))
    return ImageOps.solarize(image, threshold)  # type: ignore[arg-type]


def invert(image: Picture, op: Invert, i: int) -> Picture:
    if not op.mask[i]:
        return image
    return hwc(inverse(chw(image))) if isinstance(image, np.ndarray) else ImageOps.invert(image)


def inverse(x: Tensor) -> Tensor:
    return 1.0 - x if x.is_floating_point() else x.bitwise_not()


def autocontrast(image: Picture, op: AutoContrast, i: int) -> Picture:
    if not op.mask[i]:
        return image
    return ImageOps.autocontrast(pil(image)) if op.kind == "pil" else hwc(tensor_autocontrast(chw(image)))


def tensor_autocontrast(x: Tensor) -> Tensor:
    """torchvision's, of tensors [..., C, H, W]."""
    values = x if x.is_floating_point() else x.to(torch.float32)
    low, high = values.amin(dim=(-2, -1), keepdim=True), values.amax(dim=(-2, -1), keepdim=True)
    flat = high == low
    step = high.sub_(low).mul_(1.0 / largest(x)).masked_fill_(flat, 1.0)
    return values.sub(low.masked_fill_(flat, 0.0)).div_(step).clamp_(0, largest(x)).to(x.dtype)


def equalize(image: Picture, op: Equalize, i: int) -> Picture:
    if not op.mask[i]:
        return image
    return ImageOps.equalize(pil(image)) if op.kind == "pil" else hwc(tensor_equalize(chw(image)))


def tensor_equalize(x: Tensor) -> Tensor:
    """Pillow's ``ImageOps.equalize`` of tensors [..., C, H, W], and torchvision's. Floats go through uint8."""
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


def jpeg(image: Picture, op: JPEG, i: int) -> Picture:
    if not op.mask[i]:
        return image
    file = io.BytesIO()
    pil(image).save(file, format="JPEG", quality=int(op.quality[i]), subsampling=2)
    return Image.open(file).copy()
