"""Weighted sums of the results of several sequences of ops on one image."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from ....transforms import ops
from ....transforms.ops.op import Array
from ..api import conditional, fn, types
from .canvas import Canvas, OpAddress
from .color import CUT_OFF
from .registry import canvas_lowering, paint


@canvas_lowering(ops.Mix)
def mix(canvas: Canvas, address: OpAddress, op: ops.Mix) -> None:
    image = canvas.settle()
    total: Any = None
    for k, branch in enumerate(op.branches):
        view = replace(canvas, image=image)
        paint(view, branch, (*address, k))
        weight = canvas.feed(address, f"weight{k}", types.FLOAT, 0, _weight(k))
        # A product in float32; arithmetic with a cast of the image takes four times as long.
        part = fn.brightness_contrast(view.settle(), contrast=weight, contrast_center=0.0, dtype=types.FLOAT)
        total = part if total is None else total + part
    # DALI rounds, and torch truncates.
    mixed = fn.brightness_contrast(total, brightness_shift=CUT_OFF / 255, dtype=types.UINT8)
    if not op.always:
        # The sums are computed for all samples, since the inner ops are fed for whole batches.
        mask = canvas.feed(address, "mask", types.BOOL, 0, lambda op: op.mask)
        drawn, _ = conditional.split(mixed, predicate=mask)
        _, rest = conditional.split(image, predicate=mask)
        mixed = conditional.merge(drawn, rest, predicate=mask)
    canvas.image = mixed


def _weight(k: int) -> Callable[[ops.Mix], Array]:
    return lambda op: op.weights[:, k].astype(np.float32)
