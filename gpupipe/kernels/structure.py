"""Weighted sums of several sequences of ops on one image."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from ..transforms import ops
from .apply import apply_batch, apply_sample
from .device_random import on
from .picture import Picture, array, chw, hwc
from .registry import batch_form, form


@form(ops.Mix)
def mix(image: Picture, op: ops.Mix, i: int) -> Picture:
    whole = array(image)  # every branch starts from the same image
    total: Tensor | None = None
    for k, branch in enumerate(op.branches):
        made = apply_sample(whole, branch, i)
        assert isinstance(made, np.ndarray)
        part = torch.mul(chw(made), torch.tensor(op.weights[i, k], device="cpu"))
        total = part if total is None else total.add_(part)
    assert total is not None
    return hwc(total.to(torch.uint8) if whole.dtype == np.uint8 else total)


@batch_form(ops.Mix)
def mix_batch(x: Tensor, op: ops.Mix) -> Tensor:
    weights = on(op.weights, x.device)[:, :, None, None, None]
    total: Tensor | None = None
    for k, branch in enumerate(op.branches):
        part = apply_batch(x, branch) * weights[:, k]
        total = part if total is None else total.add_(part)
    assert total is not None
    return total.to(x.dtype)
