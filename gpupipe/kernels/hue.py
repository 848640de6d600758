"""Hue adjustment for images and batches.

For tensors it is HSV arithmetic in float32. For PIL images it is Pillow's HSV in bytes, which converts RGB to HSV with
one byte each, changes the hue byte, and converts HSV back to RGB (``Convert.c``: ``rgb2hsv_row``, ``hsv2rgb``). Here
tables and whole planes do that in a third of Pillow's time: the order of the channels, the spread of their values and
the distance from the highest to the middle one determine the hue byte, which determines how much of
``value * saturation`` each channel lacks. All 2^24 triples agree with Pillow in both directions; a test checks a fifth
of them.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..transforms import ops
from .color import Factor, number
from .device_random import on
from .registry import batch_form


@batch_form(ops.Hue, together="always")
def hue(x: Tensor, op: ops.Hue) -> Tensor:
    if x.shape[1] == 1:
        return x
    if op.kind == "tensor":
        return tensor_hue(x, number(op.factor, x))
    return pil_hue(x, on((op.factor * 255).astype(np.int32).astype(np.uint8), x.device))


def tensor_hue(x: Tensor, factor: Factor) -> Tensor:
    """Adjust the hue of tensors [..., 3, H, W] as torchvision does: HSV formulas in float32, without
    intermediate rounding."""
    image = x if x.dtype == torch.float32 else x.to(torch.float32)
    if x.dtype == torch.uint8:
        image = image.mul_(1.0 / 255)
    red, green, blue = image.unbind(-3)
    # The hexcone of A. R. Smith, *Color gamut transform pairs*, 1978: the highest channel selects two of six sectors of
    # the circle of hues, and the distances of the two others from it give the position there.
    value, lowest = torch.maximum(torch.maximum(red, green), blue), torch.minimum(torch.minimum(red, green), blue)
    spread = value - lowest
    no_color = spread == 0
    sat = spread / value.masked_fill(no_color, 1.0)
    spread.masked_fill_(no_color, 1.0)
    r, g, b = ((value - channel).div_(spread) for channel in (red, green, blue))
    is_red = value == red
    is_green = (value == green) & ~is_red
    h = (b - g).mul_(is_red)
    h.add_((r + 2.0).sub_(b).mul_(is_green)).add_((g + 4.0).sub_(r).mul_(~(is_red | is_green)))
    # Add the change modulo whole turns, then convert from the circle to its six sectors.
    h = h.mul_(1.0 / 6.0).add_(1.0).fmod_(1.0)
    h = h.add_(factor.squeeze(-3) if isinstance(factor, Tensor) else factor).remainder_(1.0).mul_(6)
    sector = h.floor()
    part = h.sub_(sector)
    sector.remainder_(6)
    # Within a sector one channel is the value, one is the lowest, and one rises or falls between them.
    down = sat * part
    rest = 1.0 - sat
    falling = (1.0 - down).mul_(value).clamp_(0.0, 1.0)
    rising = down.add_(rest).mul_(value).clamp_(0.0, 1.0)
    low = rest.mul_(value).clamp_(0.0, 1.0)
    at = _sectors(x.device)[:, sector.to(torch.int32)].movedim(0, -3)
    out = torch.stack((value, low, falling, rising), dim=-3).gather(-3, at)
    return _back(out, x.dtype)


_SECTORS = ((0, 2, 1, 1, 3, 0), (3, 0, 0, 2, 1, 1), (1, 1, 3, 0, 0, 2))
"""Role of red, green and blue in each sixth of the circle of hues: 0 value, 1 low, 2 falling, 3 rising.

Red is value, falling, low, low, rising, value; green and blue follow two sectors later each.
"""


@lru_cache(maxsize=16)
def _sectors(device: torch.device) -> Tensor:
    """i64[3, 6], cached, since creating it on a GPU waits for the stream."""
    return torch.tensor(_SECTORS, device=device)


def _back(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Convert float32 in 0..1 to ``dtype``, as torchvision's ``to_dtype`` does."""
    return x.mul_(256.0 - 1e-3).to(dtype) if dtype == torch.uint8 else x.to(dtype)


# ---- Pillow's bytes


class _Tables(NamedTuple):
    hue: Tensor
    """u8[8 * 65536]: the hue byte by (order, highest - lowest, highest - middle)."""
    saturation: Tensor
    """u8[65536]: the saturation byte by (highest - lowest, highest)."""
    share: Tensor
    """f32[3, 65536]: the share of the value that red, green and blue have, by (hue byte, saturation byte)."""


@lru_cache(maxsize=8)
def _tables(device: torch.device) -> _Tables:
    hue, saturation, share = _hue_table(), _saturation_table(), _share_table()
    return _Tables(*(torch.from_numpy(table).to(device) for table in (hue.reshape(-1), saturation, share)))


def _hue_table() -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    """u8[8, 256, 256]: the hue byte by (order, highest - lowest, highest - middle)."""
    spread, middle = np.meshgrid(np.arange(256, dtype=np.float32), np.arange(256, dtype=np.float32), indexing="ij")
    share = (middle / np.maximum(spread, 1)).astype(np.float64)
    table = np.empty((8, 256, 256), np.uint8)
    for orders in range(8):
        red_green, green_blue, red_blue = (
            bool(orders >> k & 1) for k in range(3)
        )  # whether the first is at least the second
        if red_green and red_blue:
            h = 1 - share if green_blue else share - 1
        elif green_blue:
            h = 1 + share if red_blue else 3 - share
        else:
            h = 5 - share if red_green else 3 + share
        h = np.fmod(h.astype(np.float32).astype(np.float64) / 6.0 + 1.0, 1.0).astype(np.float32)
        table[orders] = np.clip((h.astype(np.float64) * 255.0).astype(np.int64), 0, 255)
    table[:, 0] = 0  # no color
    return table


def _saturation_table() -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    """u8[65536]: the saturation byte by (highest - lowest, highest)."""
    spread, value = np.meshgrid(np.arange(256, dtype=np.float32), np.arange(256, dtype=np.float32), indexing="ij")
    share = np.minimum(spread / np.maximum(value, 1), 1)  # a spread above the value does not occur
    return (share.astype(np.float64) * 255.0).astype(np.uint8).reshape(-1)


def _share_table() -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    """f32[3, 65536]: the share of the value that red, green and blue have, by (hue byte, saturation byte).

    Pillow computes it and its product with the value in double precision. In single precision, no byte of the 2^24
    products is rounded differently.
    """
    sixths = np.arange(256) * 6.0 / 255.0
    sector = np.floor(sixths).astype(np.int64)
    part = (sixths - sector).astype(np.float32)
    ways = np.stack([np.zeros(256), np.ones(256), part, 1.0 - part]).astype(np.float32)  # value, low, falling, rising
    lack = np.take_along_axis(ways, np.array(_SECTORS)[:, sector % 6], axis=0)  # how much of value * saturation
    saturation = np.arange(256, dtype=np.float32) / np.float32(255)
    less = (lack[:, :, None] * saturation).astype(np.float64)
    return (1.0 - less).astype(np.float32).reshape(3, -1)


def pil_hue(x: Tensor, turn: Tensor) -> Tensor:
    """Adjust the hue of bytes as Pillow does.

    Args:
        x: u8[n, 3, H, W].
        turn: u8[n], added to the hue byte.

    Returns:
        u8[n, 3, H, W], a new tensor.
    """
    hue, saturation, value = _hsv(x)
    return _rgb(hue.add_(turn.view(-1, 1, 1)), saturation, value)


def _hsv(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Convert u8[n, 3, H, W] to hue, saturation and value, u8[n, H, W] each."""
    red, green, blue = x.contiguous().unbind(1)
    value = torch.maximum(torch.maximum(red, green), blue)
    lowest = torch.minimum(torch.minimum(red, green), blue)
    orders = (red >= green).view(torch.uint8)
    orders = orders.add_((green >= blue).view(torch.uint8), alpha=2).add_((red >= blue).view(torch.uint8), alpha=4)
    below = value.add(value).add_(lowest).sub_(red).sub_(green).sub_(blue)  # modulo 256: highest - middle
    spread = (value - lowest).to(torch.int32).mul_(256)
    tables, highest = _tables(x.device), value.to(torch.int32)
    index = (below.to(torch.int32).add_(spread).add_(orders.to(torch.int32), alpha=65536), spread.add_(highest))
    hue, saturation = (
        table.index_select(0, at.view(-1)).view_as(value)
        for table, at in zip((tables.hue, tables.saturation), index, strict=True)
    )
    return hue, saturation, value


def _rgb(hue: Tensor, saturation: Tensor, value: Tensor) -> Tensor:
    """Convert hue, saturation and value, u8[n, H, W] each, to u8[n, 3, H, W]."""
    index = hue.to(torch.int32).mul_(256).add_(saturation.to(torch.int32)).view(-1)
    high = value.to(torch.float32)
    out = torch.empty((len(hue), 3, *hue.shape[1:]), dtype=torch.uint8, device=hue.device)
    for c, share in enumerate(_tables(hue.device).share):
        out[:, c] = share.index_select(0, index).view_as(high).mul_(high).add_(0.5)
    return out
