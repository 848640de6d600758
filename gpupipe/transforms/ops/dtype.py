"""Ops that change the type and the range of values."""

from __future__ import annotations

from dataclasses import dataclass

from .base import Dtype, Kind, Op

__all__ = ["Normalize", "ToDtype"]


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
