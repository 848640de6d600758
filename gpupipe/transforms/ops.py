"""The few operations that every transform resolves into.

A transform is what the user names (``RandomResizedCrop``); an op is what an engine executes (``Crop``, then
``Resize``), with one
number per sample. Engines implement ops, not transforms: a new transform that is made of known ops runs
everywhere at once, and a new op needs exactly one DALI lowering and one torch form.

An op has two kinds of fields: arrays with one row per sample, which change with every plan, and plain values, which
belong to
the pipeline. :meth:`Op.spec` is the second kind alone; it is what a DALI graph is built from.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

__all__ = ["OPS", "Crop", "Dtype", "Flip", "Gray", "Kind", "Normalize", "Op", "Resize", "ToDtype"]

I32 = npt.NDArray[np.int32]
Mask = npt.NDArray[np.bool_]
Dtype = Literal["uint8", "float16", "bfloat16", "float32"]
Kind = Literal["pil", "tensor"]
"""Which of torchvision's two image libraries a transform would have met at this place: PIL before ``ToTensor`` and
``ToImage``, tensors after. They round and resize differently."""


@dataclass(frozen=True, eq=False)
class Op:
    """Base class; see the module."""

    def numbers(self) -> dict[str, npt.NDArray[Any]]:
        """The per-sample arrays by name."""
        return {f.name: v for f in fields(self) if isinstance(v := getattr(self, f.name), np.ndarray)}

    def settings(self) -> dict[str, Any]:
        """The plain values by name."""
        return {f.name: v for f in fields(self) if not isinstance(v := getattr(self, f.name), np.ndarray)}

    def spec(self) -> tuple[Any, ...]:
        """What identifies the op apart from its numbers."""
        return (type(self).__name__, *sorted(self.settings().items()))


@dataclass(frozen=True, eq=False)
class Crop(Op):
    """A window of the image. Where ``padded``, it may reach outside, and what is outside is filled."""

    top: I32
    left: I32
    height: I32
    width: I32
    padded: bool = False
    fill: tuple[float, ...] = (0.0,)
    """One value for all channels, or one each; in the image's own units."""
    mode: Literal["constant", "edge", "reflect", "symmetric"] = "constant"


@dataclass(frozen=True, eq=False)
class Resize(Op):
    """Resample to ``height`` x ``width`` pixels."""

    height: I32
    width: I32
    interpolation: str = "bilinear"
    antialias: bool = True
    kind: Kind = "pil"


@dataclass(frozen=True, eq=False)
class Flip(Op):
    """Mirror the samples whose mask is set."""

    mask: Mask
    axis: Literal["horizontal", "vertical"] = "horizontal"


@dataclass(frozen=True, eq=False)
class Gray(Op):
    """Take the colour out of the samples whose mask is set. ``channels`` is 1 only where all masks are set."""

    mask: Mask
    channels: Literal[1, 3] = 3
    always: bool = False
    kind: Kind = "pil"


@dataclass(frozen=True, eq=False)
class ToDtype(Op):
    """Change the data type; with ``scale``, 0..255 of uint8 becomes 0..1 of a float type."""

    dtype: Dtype = "float32"
    scale: bool = True
    kind: Kind = "pil"
    """``ToTensor`` (pil) divides by 255; torchvision's ``ToDtype`` (tensor) multiplies by 1/255, which rounds
    differently."""


@dataclass(frozen=True, eq=False)
class Normalize(Op):
    """``(x - mean) / std`` by channel."""

    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)


OPS: tuple[type[Op], ...] = (Crop, Resize, Flip, Gray, ToDtype, Normalize)
"""Every op there is. A test fails if an engine lacks one of them."""
