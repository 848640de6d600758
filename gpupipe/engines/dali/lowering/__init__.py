"""Ops to DALI operators, fused the way a DALI expert would write them by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ....transforms.ops import Crop, Flip, Gray, Normalize, Op, Resize, ToDtype
from .canvas import Canvas, Input, Path
from .color import gray, normalize, to_dtype
from .geometry import crop, flip, resize

__all__ = ["LOWERINGS", "Canvas", "Input", "Path"]

LOWERINGS: dict[type[Op], Callable[[Canvas, Path, Any], None]] = {
    Crop: crop,
    Resize: resize,
    Flip: flip,
    Gray: gray,
    ToDtype: to_dtype,
    Normalize: normalize,
}
"""What the graph does itself. What is not here, and everything after it, is done on the batch in torch."""
