"""Erasing of windows, in place."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..transforms import ops
from .device_random import normal, normal_at, on
from .registry import batch_form

_CHUNK = 1 << 22  # values at once on a GPU: bounds the memory that indices and float64 take


@batch_form(ops.Erase, rows="all")
def erase_batch(x: Tensor, op: ops.Erase) -> Tensor:
    drawn = np.flatnonzero(op.mask)
    if x.device.type == "cpu":
        for i in drawn:
            _erase_one(x[i], op, int(i))
    else:
        for some in groups(drawn, op, x.shape[1]):
            erase_together(x, op, some)
    return x


def _erase_one(image: Tensor, op: ops.Erase, i: int) -> None:
    top, left, height, width = (int(a[i]) for a in (op.top, op.left, op.height, op.width))
    window = image[:, top : top + height, left : left + width]
    if op.value is not None:
        color = on(np.array(op.value, np.float64), image.device).to(image.dtype).view(-1, 1, 1)
        window.copy_(color.expand_as(window))
    elif window.numel():
        shape = tuple(window.shape) if op.per_pixel else (len(window), 1, 1)
        values = normal(op.seed[i : i + 1], int(np.prod(shape)), image.device).view(shape)
        window.copy_(values.to(image.dtype).expand_as(window))


def groups(drawn: npt.NDArray[np.int64], op: ops.Erase, channels: int) -> Iterator[npt.NDArray[np.int64]]:
    """Split rows so that the windows of each group have about ``_CHUNK`` values at most."""
    ends = np.cumsum(op.height[drawn].astype(np.int64) * op.width[drawn] * channels)
    yield from np.split(drawn, np.flatnonzero(np.diff(ends // _CHUNK)) + 1)


def erase_together(x: Tensor, op: ops.Erase, drawn: npt.NDArray[np.int64]) -> None:
    """Erase the windows of some rows with the same few kernels however many rows there are.

    To launch a kernel takes the host several microseconds, and noise takes thirty kernels for each window.
    """
    height, width = op.height[drawn].astype(np.int64), op.width[drawn].astype(np.int64)
    area = height * width
    total, channels = int(area.sum()), x.shape[1]
    if not total:
        return
    first = np.cumsum(area) - area
    windows = on(np.stack([drawn, op.top[drawn], op.left[drawn], width, area, first]), x.device)
    # All pixels of all windows, one after another: the window of each, and its number there.
    count = torch.arange(len(drawn), device=x.device)
    window = torch.repeat_interleave(count, windows[4], output_size=total)  # with the size, the host need not wait
    row, top, left, across, inside, begin = windows.index_select(1, window)
    number = torch.arange(total, device=x.device) - begin
    values: Tensor
    if op.value is not None:
        values = on(np.array(op.value, np.float64), x.device).expand(total, channels)
    elif op.per_pixel:
        channel = torch.arange(channels, device=x.device)
        values = normal_at(op.seed[drawn], window, number[:, None] + inside[:, None] * channel)
    else:
        values = normal(op.seed[drawn], channels, x.device).index_select(0, window)
    down = number // across
    x.permute(0, 2, 3, 1).index_put_((row, top + down, left + number - down * across), values.to(x.dtype))
