"""The few operations that every transform resolves into.

A transform is what the user names (``RandomResizedCrop``); an op is what an engine executes (``Crop``, then
``Resize``), with one number per sample. Engines implement ops, not transforms: a new transform that is made of known
ops runs everywhere at once, and a new op needs one form of an image and one of a batch or of a DALI graph.

An op has two kinds of fields: arrays with one row per sample (:meth:`Op.numbers`), which change with every plan, and
plain values (:meth:`Op.settings`), which belong to the pipeline and are what a DALI graph is built from.
"""

from __future__ import annotations

from . import blur_noise, color, dtype, enhance, erasing, geometry, mixing, structure, warp
from .base import Dtype, Kind, Op
from .blur_noise import *
from .color import *
from .dtype import *
from .enhance import *
from .erasing import *
from .geometry import *
from .mixing import *
from .structure import *
from .warp import *

__all__ = ["OPS", "Dtype", "Kind", "Op"]
__all__ += blur_noise.__all__
__all__ += color.__all__
__all__ += dtype.__all__
__all__ += enhance.__all__
__all__ += erasing.__all__
__all__ += geometry.__all__
__all__ += mixing.__all__
__all__ += structure.__all__
__all__ += warp.__all__

OPS: tuple[type[Op], ...] = tuple(
    op
    for module in (geometry, warp, color, enhance, blur_noise, erasing, dtype, structure, mixing)
    for name, op in vars(module).items()
    if name in module.__all__ and isinstance(op, type)
)
"""Every op there is. A test walks through them and fails if an engine, or the proof of one, lacks something."""
