"""Windows overwritten, in place."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from ...transforms.ops import Erase
from .device_random import normal, on

__all__ = ["erase_batch"]


def erase_batch(x: Tensor, op: Erase) -> Tensor:
    colour = None if op.value is None else on(np.array(op.value, np.float64), x.device).to(x.dtype).view(-1, 1, 1)
    for i in np.flatnonzero(op.mask):
        top, left, height, width = (int(a[i]) for a in (op.top, op.left, op.height, op.width))
        window = x[i, :, top : top + height, left : left + width]
        if colour is not None:
            window.copy_(colour.expand_as(window))
        elif window.numel():
            shape = tuple(window.shape) if op.per_pixel else (len(window), 1, 1)
            values = normal(op.seed[i : i + 1], int(np.prod(shape)), x.device).view(shape)
            window.copy_(values.to(x.dtype).expand_as(window))
    return x
