"""Hue adjustment for images and batches.

For tensors it is HSV arithmetic in float32. For PIL images it is Pillow's HSV in bytes, which converts RGB to HSV with
one byte each, changes the hue byte, and converts HSV back to RGB (``Convert.c``: ``rgb2hsv_row``, ``hsv2rgb``). Here
tables and whole planes do that in a sixth of Pillow's time: the order of the channels, the spread of their values and
the distance from the highest to the middle one determine the hue byte. It determines which channel gets the value,
which the lowest one, and the share of the value that the third gets. All 2^24 triples agree with Pillow in both
directions; a test checks a fifth of them.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..transforms import ops
from . import levels
from .color import Factor, number
from .device_random import on
from .registry import batch_form


@batch_form(ops.Hue, together="always")
def hue(x: Tensor, op: ops.Hue) -> Tensor:
    if x.shape[1] == 1:
        return x
    if op.kind == "tensor":
        return tensor_hue(x, number(op.factor, x))
    return pil_hue(x, on(turns(op), x.device))


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


@lru_cache(maxsize=8)
def tables(device: torch.device) -> list[Tensor]:
    """Return Pillow's functions of bytes. Indices are numbers whose digits are bytes.

    The first is u8[8 * 65536], the hue byte by (order, highest - lowest, highest - middle). The second is u8[65536],
    the saturation byte by (highest - lowest, highest). The others are f32[65536], the share of the value that red,
    green and blue have, by (hue byte, saturation byte).
    """
    made = (_hue_table().reshape(-1), _saturation_table(), *_share_tables())
    return [torch.from_numpy(table).to(device) for table in made]


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


def _parts() -> tuple[np.ndarray[Any, np.dtype[np.int64]], np.ndarray[Any, np.dtype[np.float32]]]:
    """Return the sixth of the circle for every hue byte, 0 to 5, and the position in it, 0 to 1.

    Byte 255 is the end of the last sixth, which has the same colors as the beginning of the first.
    """
    sixths = np.arange(256) * 6.0 / 255.0
    sector = np.minimum(np.floor(sixths).astype(np.int64), 5)
    return sector, (sixths - sector).astype(np.float32)


def _share_tables() -> list[np.ndarray[Any, np.dtype[np.float32]]]:
    """f32[65536] for red, green and blue: the share of the value that the channel has, by (hue byte, saturation byte).

    In each sixth of the circle one channel is the value, one is the lowest, and one is between them:

    ====== ====== ====== ====== ====== ====== ======
    red    value  middle low    low    middle value
    green  middle value  value  middle low    low
    blue   low    low    middle value  value  middle
    ====== ====== ====== ====== ====== ====== ======

    Pillow computes the product of share and value in double precision. In single precision, no byte of the 2^24
    products is rounded differently.
    """
    sector, part = _parts()
    lack = np.where(sector % 2 == 1, part, 1.0 - part).astype(np.float32)  # it falls in every second sixth, else rises
    middle = (1.0 - (lack[:, None] * _SATURATIONS).astype(np.float64)).astype(np.float32)
    low = np.broadcast_to((1.0 - _SATURATIONS.astype(np.float64)).astype(np.float32), middle.shape)
    shares = np.stack([np.ones_like(middle), middle, low])
    hues = np.arange(256)
    return [shares[np.array(roles)[sector], hues].reshape(-1) for roles in _ROLES]


_ROLES = ((0, 1, 2, 2, 1, 0), (1, 0, 0, 1, 2, 2), (2, 2, 1, 0, 0, 1))
"""For red, green and blue in each sixth: 0 value, 1 middle, 2 low."""


_SATURATIONS = np.arange(256, dtype=np.float32) / np.float32(255)


def pil_hue(x: Tensor, turn: Tensor) -> Tensor:
    """Adjust the hue of bytes as Pillow does.

    Args:
        x: u8[n, 3, H, W].
        turn: u8[n], added to the hue byte.

    Returns:
        u8[n, 3, H, W], a new tensor.
    """
    return levels.hue(x, turn.view(-1, 1, 1), tables(x.device))


def turns(op: ops.Hue) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Return u8[n], what is added to the hue byte of each image."""
    return (op.factor * 255).astype(np.int32).astype(np.uint8)
