"""Weighted sums of what several sequences of ops make of one image."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ...transforms.ops import Mix
from .device_random import on
from .picture import Picture, array, chw, hwc

__all__ = ["mix", "mix_batch"]


def mix(image: Picture, op: Mix, i: int) -> Picture:
    if not op.mask[i]:
        return image
    from .apply import apply_sample  # which is made of these forms

    whole = array(image)
    total: Tensor | None = None
    for k, branch in enumerate(op.branches):
        made = apply_sample(whole, branch, i)
        assert isinstance(made, np.ndarray)
        part = torch.mul(chw(made), torch.tensor(op.weights[i, k], device="cpu"))
        total = part if total is None else total.add_(part)
    assert total is not None
    return hwc(total.to(torch.uint8) if whole.dtype == np.uint8 else total)


def mix_batch(x: Tensor, op: Mix) -> Tensor:
    from .apply import apply_batch

    drawn = np.flatnonzero(op.mask)
    if not drawn.size:
        return x
    all_of_them = len(drawn) == len(x)
    rows = None if all_of_them else on(drawn, x.device)
    some, op = (x, op) if rows is None else (x[rows], op.take(drawn))  # type: ignore[assignment]
    weights = on(op.weights, x.device)[:, :, None, None, None]
    total: Tensor | None = None
    for k, branch in enumerate(op.branches):
        part = apply_batch(some, branch) * weights[:, k]
        total = part if total is None else total.add_(part)
    assert total is not None
    made = total.to(x.dtype)
    if rows is None:
        return made
    x[rows] = made
    return x
