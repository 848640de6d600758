"""Ops that change colours: blends with a picture that has less of something, gray, and hue."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageEnhance
from torch import Tensor

from ...transforms.ops import Gray, Hue
from .picture import Array, Picture, array, chw, hwc, pil

__all__ = [
    "Factor",
    "blend",
    "brightness",
    "contrast",
    "gray",
    "hue",
    "largest",
    "less_contrast",
    "less_saturation",
    "luma",
    "saturation",
    "tensor_hue",
]

Factor = float | Tensor
"""One number, or f[n, 1, 1, 1]: one for each image."""


def gray(image: Picture, op: Gray, i: int) -> Picture:
    if not op.mask[i]:
        return image
    if op.kind == "pil":
        found: Array = array(pil(image).convert("L"))
    else:
        x = chw(image)
        found = hwc(luma(x).to(x.dtype))
    return found if op.channels == 1 else np.repeat(found, 3, axis=2)


def luma(x: Tensor) -> Tensor:
    """Of a tensor [..., C, H, W]: [..., 1, H, W], in float32 of uint8. One channel is its own."""
    if x.shape[-3] == 1:
        return x
    red, green, blue = x.unbind(-3)
    return red.mul(0.2989).add_(green, alpha=0.587).add_(blue, alpha=0.114).unsqueeze(-3)


def largest(x: Tensor) -> int:
    return 1 if x.is_floating_point() else 255


def blend(x: Tensor, less: Tensor | None, factor: Factor) -> Tensor:
    """torchvision's: ``factor * x + (1 - factor) * less`` of tensors, clipped. ``less`` is black where ``None``."""
    out = x.mul(factor)
    if less is not None:
        out = torch.addcmul(out, less, 1.0 - factor) if isinstance(factor, Tensor) else out.add_(less, alpha=1 - factor)
    return out.clamp_(0, largest(x)).to(x.dtype)


def less_contrast(x: Tensor) -> Tensor:
    """The mean in gray, [..., 1, 1, 1]."""
    flat = luma(x)
    if not x.is_floating_point():
        flat = flat.floor_() if x.shape[-3] == 3 else flat.to(torch.float32)
    return flat.mean(dim=(-3, -2, -1), keepdim=True)


def less_saturation(x: Tensor) -> Tensor:
    """The image in gray, [..., 1, H, W]."""
    flat = luma(x)
    return flat if x.is_floating_point() else flat.floor_()


def _blending(enhance: Any, less: Callable[[Tensor], Tensor] | None) -> Callable[[Picture, Any, int], Picture]:
    def form(image: Picture, op: Any, i: int) -> Picture:
        if not op.mask[i]:
            return image
        factor = float(op.factor[i])
        if op.kind == "pil":
            made: Image.Image = enhance(pil(image)).enhance(factor)
            return made
        x = chw(image)
        return hwc(blend(x, None if less is None else less(x), factor))

    return form


brightness = _blending(ImageEnhance.Brightness, None)
contrast = _blending(ImageEnhance.Contrast, less_contrast)
_saturation = _blending(ImageEnhance.Color, less_saturation)


def saturation(image: Picture, op: Any, i: int) -> Picture:
    return image if array(image).shape[2] == 1 else _saturation(image, op, i)


def hue(image: Picture, op: Hue, i: int) -> Picture:
    if not op.mask[i] or array(image).shape[2] == 1:
        return image
    factor = float(op.factor[i])
    if op.kind == "tensor":
        return hwc(tensor_hue(chw(image), factor))
    h, s, v = pil(image).convert("HSV").split()
    turned = Image.fromarray(np.asarray(h) + np.int32(factor * 255).astype(np.uint8))
    return Image.merge("HSV", (turned, s, v)).convert("RGB")


def tensor_hue(x: Tensor, factor: Factor) -> Tensor:
    """torchvision's, of tensors [..., 3, H, W]: the formulas of HSV in float32, without rounding between."""
    image = x if x.dtype == torch.float32 else x.to(torch.float32)
    if x.dtype == torch.uint8:
        image = image.mul_(1.0 / 255)
    red, green, blue = image.unbind(-3)
    value, lowest = torch.maximum(torch.maximum(red, green), blue), torch.minimum(torch.minimum(red, green), blue)
    spread = value - lowest
    no_colour = spread == 0
    sat = spread / value.masked_fill(no_colour, 1.0)
    spread.masked_fill_(no_colour, 1.0)
    r, g, b = ((value - channel).div_(spread) for channel in (red, green, blue))
    is_red = value == red
    is_green = (value == green) & ~is_red
    h = (b - g).mul_(is_red)
    h.add_((r + 2.0).sub_(b).mul_(is_green)).add_((g + 4.0).sub_(r).mul_(~(is_red | is_green)))
    h = h.mul_(1.0 / 6.0).add_(1.0).fmod_(1.0)
    h = h.add_(factor.squeeze(-3) if isinstance(factor, Tensor) else factor).remainder_(1.0).mul_(6)
    sector = h.floor()
    part = h.sub_(sector)
    sector.remainder_(6)
    down = sat * part
    rest = 1.0 - sat
    falling = (1.0 - down).mul_(value).clamp_(0.0, 1.0)
    rising = down.add_(rest).mul_(value).clamp_(0.0, 1.0)
    low = rest.mul_(value).clamp_(0.0, 1.0)
    # By sector: red is value, falling, low, low, rising, value; green and blue follow two sectors later each.
    at = _sectors(x.device)[:, sector.to(torch.int32)].movedim(0, -3)
    out = torch.stack((value, low, falling, rising), dim=-3).gather(-3, at)
    return _back(out, x.dtype)


@lru_cache(maxsize=16)
def _sectors(device: torch.device) -> Tensor:
    """i64[3, 6], kept: making one on a GPU waits for the stream."""
    return torch.tensor([[0, 2, 1, 1, 3, 0], [3, 0, 0, 2, 1, 1], [1, 1, 3, 0, 0, 2]], device=device)


def _back(x: Tensor, dtype: torch.dtype) -> Tensor:
    """float32 in 0..1 to ``dtype``, as torchvision's ``to_dtype`` does."""
    return x.mul_(256.0 - 1e-3).to(dtype) if dtype == torch.uint8 else x.to(dtype)
