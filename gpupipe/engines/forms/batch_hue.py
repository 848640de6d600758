"""Hue of PIL images, on batches: Pillow's HSV in bytes, computed with tables and whole planes.

Pillow turns RGB into HSV of one byte each, the hue byte is turned, and HSV becomes RGB again (``Convert.c``:
``rgb2hsv_row``, ``hsv2rgb``). The orders of the channels, the spread of their values and the distance from the highest
to the middle one decide the hue byte; that decides how much of ``value * saturation`` each channel lacks.
All 2^24 triples agree with Pillow in both directions; a test goes through a fifth of them.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

__all__ = ["pil_hue"]


class _Tables(NamedTuple):
    hue: Tensor
    """u8[8 * 65536]: the hue byte by (orders, highest - lowest, highest - middle)."""
    lack: Tensor
    """f32[3, 256]: by hue byte, what red, green and blue lack of ``value * saturation``."""


@lru_cache(maxsize=8)
def _tables(device: torch.device) -> _Tables:
    hue, lack = _hue_table(), _lack_table()
    return _Tables(torch.from_numpy(hue.reshape(-1)).to(device), torch.from_numpy(lack).to(device))


def _hue_table() -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    """u8[8, 256, 256]"""
    spread, middle = np.meshgrid(np.arange(256, dtype=np.float32), np.arange(256, dtype=np.float32), indexing="ij")
    share = (middle / np.maximum(spread, 1)).astype(np.float64)
    table = np.empty((8, 256, 256), np.uint8)
    for orders in range(8):
        red_green, green_blue, red_blue = (bool(orders >> k & 1) for k in range(3))  # whether the first is not less
        if red_green and red_blue:
            h = 1 - share if green_blue else share - 1
        elif green_blue:
            h = 1 + share if red_blue else 3 - share
        else:
            h = 5 - share if red_green else 3 + share
        h = np.fmod(h.astype(np.float32).astype(np.float64) / 6.0 + 1.0, 1.0).astype(np.float32)
        table[orders] = np.clip((h.astype(np.float64) * 255.0).astype(np.int64), 0, 255)
    table[:, 0] = 0  # no colour
    return table


def _lack_table() -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    """f32[3, 256]"""
    sixths = np.arange(256) * 6.0 / 255.0
    sector = np.floor(sixths).astype(np.int64)
    part = (sixths - sector).astype(np.float32)
    ways = np.stack([np.zeros(256), np.ones(256), part, 1.0 - part]).astype(np.float32)  # value, low, falling, rising
    of = np.array([[0, 2, 1, 1, 3, 0], [3, 0, 0, 2, 1, 1], [1, 1, 3, 0, 0, 2]])[:, sector % 6]
    return np.take_along_axis(ways, of, axis=0)


def pil_hue(x: Tensor, turn: Tensor) -> Tensor:
    """
    Args:
        x: u8[n, 3, H, W].
        turn: u8[n], what is added to the hue byte.

    Returns:
        u8[n, 3, H, W], a new tensor.
    """
    hue, saturation, value = _hsv(x)
    return _rgb(hue.add_(turn.view(-1, 1, 1)), saturation, value)


def _hsv(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Three u8[n, H, W] of u8[n, 3, H, W]."""
    red, green, blue = x.contiguous().unbind(1)
    value = torch.maximum(torch.maximum(red, green), blue)
    lowest = torch.minimum(torch.minimum(red, green), blue)
    orders = (red >= green).view(torch.uint8)
    orders = orders.add_((green >= blue).view(torch.uint8), alpha=2).add_((red >= blue).view(torch.uint8), alpha=4)
    below = value.add(value).add_(lowest).sub_(red).sub_(green).sub_(blue)  # modulo 256: highest - middle
    spread = value - lowest
    index = orders.to(torch.int32).mul_(256).add_(spread.to(torch.int32)).mul_(256).add_(below.to(torch.int32))
    hue = _tables(x.device).hue.index_select(0, index.view(-1)).view_as(value)
    share = spread.to(torch.float32).div_(value.to(torch.float32).clamp_(min=1))
    return hue, share.to(torch.float64).mul_(255.0).to(torch.uint8), value


def _rgb(hue: Tensor, saturation: Tensor, value: Tensor) -> Tensor:
    """u8[n, 3, H, W] of three u8[n, H, W]."""
    index, share = hue.to(torch.int32).view(-1), saturation.to(torch.float32).div_(255.0)
    high = value.to(torch.float64)
    out = torch.empty((len(hue), 3, *hue.shape[1:]), dtype=torch.uint8, device=hue.device)
    for c, lack in enumerate(_tables(hue.device).lack):
        less = lack.index_select(0, index).view_as(share).mul_(share)
        # 1 - less in float64, as in C
        out[:, c] = (1.0 - less.to(torch.float64)).mul_(high).add_(0.5)
    return out
