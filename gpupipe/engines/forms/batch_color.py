"""Colour ops on a batch [B, C, H, W] on any device, and what may stand behind them: gray, flips, windows.

Where the op is of PIL images, Pillow's own integers and floats are computed here in torch, so that both give the same
bytes. On the CPU one image at a time is worked on, because it fits into the cache; on a GPU all that drew the op are.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...errors import PipelineError
from ...transforms.ops import (
    AutoContrast,
    Brightness,
    Contrast,
    Crop,
    Equalize,
    Flip,
    Gray,
    Hue,
    Invert,
    Op,
    Posterize,
    Saturation,
    Sharpness,
    Solarize,
)
from .batch_hue import pil_hue
from .color import Factor, blend, less_contrast, less_saturation, luma, tensor_hue
from .device_random import on
from .enhance import inverse, tensor_autocontrast, tensor_equalize, tensor_posterize, tensor_sharpness

__all__ = ["COLOR_BATCH_FORMS", "per_row"]

Form = Callable[[Tensor, Any], Tensor]


def per_row(change: Form) -> Form:
    """A form that works on the rows whose mask is set: ``change(x [n, C, H, W], op of these rows)``."""

    def form(x: Tensor, op: Any) -> Tensor:
        rows = np.flatnonzero(op.mask)
        if x.device.type == "cpu":
            for i in rows:
                x[i] = change(x[i : i + 1], op.take(slice(i, i + 1)))[0]
        elif len(rows) == len(x):
            x = change(x, op)
        elif len(rows):
            at = on(rows, x.device)
            x.index_copy_(0, at, change(x.index_select(0, at), op.take(rows)))
        return x

    return form


def number(values: np.ndarray[Any, Any], x: Tensor) -> Factor:
    """One number per image, as the arithmetic takes it."""
    if len(values) == 1:
        return float(values[0])
    return on(values.astype(np.float32), x.device).view(-1, 1, 1, 1)


def _pil_luma(x: Tensor) -> Tensor:
    """i32[n, 1, H, W], as ``convert("L")``."""
    if x.shape[1] == 1:
        return x.to(torch.int32)
    red, green, blue = (x[:, c].to(torch.int32) for c in range(3))
    total = red.mul_(19595).add_(green.mul_(38470)).add_(blue.mul_(7471)).add_(0x8000)
    return total.bitwise_right_shift_(16).unsqueeze_(1)


def _pil_blend(x: Tensor, less: Tensor | None, factor: Factor) -> Tensor:
    """``Image.blend`` of bytes, in float32: each step rounded by itself, the fraction cut off at the end."""
    values = x.to(torch.float32)
    if less is None:
        values.mul_(factor)
    else:
        values.sub_(less).mul_(factor).add_(less)
    return values.clamp_(0, 255).to(torch.uint8)


def _pil_less_contrast(x: Tensor) -> Tensor:
    flat = _pil_luma(x)
    mean = flat.sum((1, 2, 3), keepdim=True).to(torch.float64).div_(flat[0].numel())
    return mean.add_(0.5).floor_().to(torch.float32)


def _pil_less_sharpness(x: Tensor) -> Tensor:
    less = x.to(torch.float32)
    if min(x.shape[-2:]) > 2:
        whole = x.to(torch.int32)
        rows = whole[..., :-2, :] + whole[..., 1:-1, :] + whole[..., 2:, :]
        total = rows[..., :-2] + rows[..., 1:-1] + rows[..., 2:] + 4 * whole[..., 1:-1, 1:-1]
        # Thirteenths are never half, so Pillow's floats round as these integers do.
        less[..., 1:-1, 1:-1] = total.add_(6).div_(13, rounding_mode="floor").to(torch.float32)
    return less


def _brightness(x: Tensor, op: Any) -> Tensor:
    return (_pil_blend if op.kind == "pil" else blend)(x, None, number(op.factor, x))


def _contrast(x: Tensor, op: Any) -> Tensor:
    factor = number(op.factor, x)
    if op.kind == "pil":
        return _pil_blend(x, _pil_less_contrast(x), factor)
    return blend(x, less_contrast(x), factor)


def _saturation(x: Tensor, op: Any) -> Tensor:
    if x.shape[1] == 1:
        return x
    factor = number(op.factor, x)
    if op.kind == "pil":
        return _pil_blend(x, _pil_luma(x).to(torch.float32), factor)
    return blend(x, less_saturation(x), factor)


def _hue(x: Tensor, op: Any) -> Tensor:
    if x.shape[1] == 1:
        return x
    if op.kind == "tensor":
        return tensor_hue(x, number(op.factor, x))
    return pil_hue(x, on((op.factor * 255).astype(np.int32).astype(np.uint8), x.device))


def _sharpness(x: Tensor, op: Any) -> Tensor:
    factor = number(op.factor, x)
    return _pil_blend(x, _pil_less_sharpness(x), factor) if op.kind == "pil" else tensor_sharpness(x, factor)


def _posterize(x: Tensor, op: Any) -> Tensor:
    if len(op.bits) == 1 or (op.bits == op.bits[0]).all():
        return tensor_posterize(x, int(op.bits[0]))
    if not x.is_floating_point():
        return x.bitwise_and(on((256 - (1 << (8 - op.bits))).astype(np.uint8), x.device).view(-1, 1, 1, 1))
    levels = on((1 << op.bits).astype(np.float32), x.device).view(-1, 1, 1, 1)
    return x.mul(levels).floor_().clamp_(min=0).minimum(levels - 1).div_(levels)  # powers of two: exact


def _solarize(x: Tensor, op: Any) -> Tensor:
    return torch.where(x >= number(op.threshold, x), inverse(x), x)


def _autocontrast(x: Tensor, op: Any) -> Tensor:
    if op.kind == "tensor":
        return tensor_autocontrast(x)
    low, high = (f(x.flatten(2), -1).to(torch.float64)[..., None] for f in (torch.amin, torch.amax))
    scale = torch.full_like(high, 255.0).div_(high - low)  # 255.0 / x would multiply by the reciprocal
    table = (_levels(x.device) * scale).add_(-low * scale).clamp_(0, 255)
    table = torch.where(high > low, table, _levels(x.device)).to(torch.uint8)
    return table.gather(-1, x.flatten(2).long()).view_as(x)


@lru_cache(maxsize=16)
def _levels(device: torch.device) -> Tensor:
    # From the host, which waits for it: what is kept may be read from other streams.
    return torch.arange(256, dtype=torch.float64, device="cpu").to(device)


def gray_batch(x: Tensor, op: Gray) -> Tensor:
    if op.channels == 1:
        return _gray(x, op)
    if x.shape[1] == 1:
        return x.expand(-1, 3, -1, -1).contiguous()
    return _gray_rows(x, op)


def _gray(x: Tensor, op: Gray) -> Tensor:
    return (_pil_luma(x) if op.kind == "pil" else luma(x)).to(x.dtype)


_gray_rows = per_row(lambda x, op: _gray(x, op).expand_as(x))


def flip_batch(x: Tensor, op: Flip) -> Tensor:
    return _FLIPS[op.axis](x, op)


_FLIPS = {
    "horizontal": per_row(lambda x, op: x.flip(-1)),
    "vertical": per_row(lambda x, op: x.flip(-2)),
}


def crop_batch(x: Tensor, op: Crop) -> Tensor:
    """A window of each image; outside of it one colour. Raises :class:`PipelineError` for other modes."""
    have = x.shape[2:]
    boxes = np.stack([op.top, op.left, op.height, op.width], axis=1).tolist()
    height, width = boxes[0][2:]
    if any(box[2:] != [height, width] for box in boxes):
        raise PipelineError("the images of a batch are cropped to different sizes; put a Resize((h, w)) before this")
    inside = all(
        top >= 0 and left >= 0 and top + height <= have[0] and left + width <= have[1] for top, left, *_ in boxes
    )
    if inside and all(box == boxes[0] for box in boxes):
        top, left = boxes[0][:2]
        return x[:, :, top : top + height, left : left + width]
    if not inside and op.mode != "constant":
        raise PipelineError(f'padding_mode={op.mode!r} has no form for a whole batch; use "constant"')
    out = x.new_empty((len(x), x.shape[1], height, width))
    for c in range(x.shape[1]):
        out[:, c] = int(op.fill[c % len(op.fill)]) if x.dtype == torch.uint8 else op.fill[c % len(op.fill)]
    for i, (top, left, *_) in enumerate(boxes):
        y0, x0, y1, x1 = max(top, 0), max(left, 0), min(top + height, have[0]), min(left + width, have[1])
        if y1 > y0 and x1 > x0:
            out[i, :, y0 - top : y1 - top, x0 - left : x1 - left] = x[i, :, y0:y1, x0:x1]
    return out


COLOR_BATCH_FORMS: dict[type[Op], Form] = {
    Crop: crop_batch,
    Flip: flip_batch,
    Gray: gray_batch,
    Brightness: per_row(_brightness),
    Contrast: per_row(_contrast),
    Saturation: per_row(_saturation),
    Hue: per_row(_hue),
    Sharpness: per_row(_sharpness),
    Posterize: per_row(_posterize),
    Solarize: per_row(_solarize),
    Invert: per_row(lambda x, op: inverse(x)),
    AutoContrast: per_row(_autocontrast),
    Equalize: per_row(lambda x, op: tensor_equalize(x)),
}
"""JPEG has none: torch has no codec that works on any device."""
