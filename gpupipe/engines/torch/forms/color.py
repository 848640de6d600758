"""Ops that change values."""

from __future__ import annotations

import numpy as np

from ....transforms.ops import Gray
from .picture import Array, Picture, array, chw, hwc, pil

__all__ = ["gray"]


def gray(image: Picture, op: Gray, i: int) -> Picture:
    if not op.mask[i]:
        return image
    if op.kind == "pil":
        luma: Array = array(pil(image).convert("L"))
    else:
        x = chw(image)
        if x.shape[0] == 3:
            red, green, blue = x.unbind(0)
            x = red.mul(0.2989).add_(green, alpha=0.587).add_(blue, alpha=0.114)[None].to(x.dtype)
        luma = hwc(x)
    return luma if op.channels == 1 else np.repeat(luma, 3, axis=2)
