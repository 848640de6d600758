"""An operation of timm's policies."""

from __future__ import annotations

import numpy as np
from nvidia.dali import fn, types

from ....transforms.ops import SolarizeAdd
from .canvas import Canvas, Path, Selected

__all__ = ["solarize_add"]


def solarize_add(canvas: Canvas, path: Path, op: SolarizeAdd) -> None:
    drawn = Selected(canvas, path, op)
    addend = drawn.number("addend", types.UINT8, 0, lambda op: op.addend.astype(np.uint8))
    dark = fn.cast(drawn.image < 128, dtype=types.UINT8)
    drawn.done(drawn.image + dark * addend)  # 127 + 128 is the most: nothing overflows
