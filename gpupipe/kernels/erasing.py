"""Erasing of windows, in place."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from ..transforms import ops
from .device_random import normal, on
from .registry import batch_form


@batch_form(ops.Erase, rows="each")
def erase_batch(x: Tensor, op: ops.Erase) -> Tensor:
    top, left, height, width = (int(a[0]) for a in (op.top, op.left, op.height, op.width))
    window = x[0, :, top : top + height, left : left + width]
    if op.value is not None:
        color = on(np.array(op.value, np.float64), x.device).to(x.dtype).view(-1, 1, 1)
        window.copy_(color.expand_as(window))
    elif window.numel():
        shape = tuple(window.shape) if op.per_pixel else (len(window), 1, 1)
        values = normal(op.seed, int(np.prod(shape)), x.device).view(shape)
        window.copy_(values.to(x.dtype).expand_as(window))
    return x
