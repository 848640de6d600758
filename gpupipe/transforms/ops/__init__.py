"""Operations that transforms resolve into.

A transform is what a user names (``RandomResizedCrop``); an op is what an engine executes (``Crop``, then ``Resize``),
with one number per sample. Engines implement ops, not transforms. A new transform made of existing ops therefore runs
on every engine; a new op needs a kernel for images, and one for batches or for DALI's graph.

An op has two kinds of fields. Arrays have one row per sample and change with every plan (:meth:`Op.numbers`). Plain
values belong to the pipeline, and DALI's graph is built from them (:meth:`Op.settings`).
"""

from __future__ import annotations

from . import blur, color, dtype, enhance, erasing, geometry, mixing, structure, warp
from .blur import *
from .color import *
from .dtype import *
from .enhance import *
from .erasing import *
from .geometry import *
from .mixing import *
from .op import Dtype, Kind, Op
from .structure import *
from .warp import *

__all__ = ["OPS", "Dtype", "Kind", "Op"]
__all__ += blur.__all__
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
    for module in (geometry, warp, color, enhance, blur, erasing, dtype, structure, mixing)
    for name, op in vars(module).items()
    if name in module.__all__ and isinstance(op, type)
)
"""All ops. A test fails if an engine, or the proof of one, lacks any of them."""
