"""Erasing of windows."""

from __future__ import annotations

from dataclasses import dataclass

from .op import I32, U64, Masked
from .promise import ON_BATCH

__all__ = ["Erase"]


@dataclass(frozen=True, eq=False, repr=False)
class Erase(Masked):
    """Overwrite a window of a tensor.

    ``value`` has one number for all channels or one per channel. ``None`` means normal noise drawn with ``seed`` of the
    sample: one number per value, or one per channel without ``per_pixel``.
    """

    PROMISES = (ON_BATCH,)

    top: I32
    left: I32
    height: I32
    width: I32
    seed: U64
    value: tuple[float, ...] | None = (0.0,)
    per_pixel: bool = True
