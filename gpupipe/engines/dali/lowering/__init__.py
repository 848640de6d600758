"""Lowers ops to DALI operators, fused as a DALI expert would write them by hand.

The modules listed here register the lowerings of their ops (:mod:`.registry`).
"""

from . import blur, color, dtype, enhance, geometry, structure, warp
from .canvas import Canvas, Input, OpAddress
from .registry import LOWERINGS, lacks, paint

__all__ = [
    "LOWERINGS",
    "Canvas",
    "Input",
    "OpAddress",
    "blur",
    "color",
    "dtype",
    "enhance",
    "geometry",
    "lacks",
    "paint",
    "structure",
    "warp",
]
