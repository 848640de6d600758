"""Ops to DALI operators, fused the way a DALI expert would write them by hand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ....transforms.ops import Blur, Crop, Flip, Gray, Mix, Normalize, Op, Perspective, Resize, SolarizeAdd, ToDtype, Warp
from .canvas import Canvas, Input, Path
from .color import gray, normalize, to_dtype
from .filter import blur
from .geometry import crop, flip, resize
from .timm import solarize_add
from .structure import mix
from .warp import perspective, warp

__all__ = ["LOWERINGS", "Canvas", "Input", "Path"]

LOWERINGS: dict[type[Op], Callable[[Canvas, Path, Any], None]] = {
    Crop: crop,
    Resize: resize,
    Flip: flip,
    Gray: gray,
    ToDtype: to_dtype,
    Normalize: normalize,
    SolarizeAdd: solarize_add,
    Blur: blur,
    Warp: warp,
    Perspective: perspective,
    Mix: mix,
}
"""What the graph does itself. What is not here, and everything after it, is done on the batch in torch."""
