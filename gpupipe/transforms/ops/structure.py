"""Ops that are made of other ops or of a function, and those that need the whole batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ...errors import PipelineError
from .base import F32, F64, I32, I64, U64, Kind, Mask, Masked, Op

__all__ = ["Call", "CutMix", "Mix", "MixUp", "Views"]


@dataclass(frozen=True, eq=False)
class Mix(Masked):
    """A weighted sum of what several sequences of ops make of one image, none of which changes its size.

    ``weights`` f32[B, n]; the sum is taken in float32, and its fraction cut off where the image is uint8.
    """

    weights: F32
    branches: tuple[tuple[Op, ...], ...] = ()
    kind: Kind = "pil"


@dataclass(frozen=True, eq=False)
class Call(Op):
    """Somebody's function: of one image as torchvision would hand it over, or with ``batch`` of a tensor
    [B, C, H, W]. It keeps size and data type."""

    mask: Mask
    seed: U64
    """Of the global generators while the function runs for a sample; for a batch those of the first sample."""
    function: Callable[[Any], Any]
    name: str = ""
    batch: bool = False
    kind: Kind = "pil"

    def where(self, mask: Mask, sizes: I64) -> Op:
        if self.batch:
            raise PipelineError(
                f"{self.name} works on the whole batch and cannot be done to some images of it only; take it out of "
                "RandomApply, RandomChoice or RandomOrder, or leave out batch=True"
            )
        return replace(self, mask=self.mask & mask)

    @property
    def local(self) -> bool:
        return True

    def spec(self) -> tuple[Any, ...]:
        return ("Call", self.name, self.batch, self.kind)


@dataclass(frozen=True, eq=False)
class Views(Op):
    """Several images out of one; always the last of the sample's ops."""

    branches: tuple[tuple[Op, ...], ...] = ()


@dataclass(frozen=True, eq=False)
class MixUp(Op):
    """``factor * image + (1 - factor) * image of partner``, and the same of the targets (Zhang et al., *mixup*,
    2018). On the batch."""

    partner: I64
    """Rows of the batch."""
    factor: F64
    """1 leaves image and target as they are."""
    num_classes: int | None = None
    """Integer targets become one-hot f32[B, num_classes]; ``None`` where they are shares of classes already."""

    def where(self, mask: Mask, sizes: I64) -> Op:
        return replace(self, factor=np.where(mask, self.factor, 1.0))


@dataclass(frozen=True, eq=False)
class CutMix(Op):
    """A window is taken from the image of ``partner``, and targets are mixed by area (Yun et al., *CutMix*, 2019). On
    the batch."""

    partner: I64
    factor: F64
    """The target's share: 1 minus the window's share of the area."""
    top: I32
    left: I32
    height: I32
    width: I32
    num_classes: int | None = None

    def where(self, mask: Mask, sizes: I64) -> Op:
        height, width = (np.where(mask, n, 0).astype(np.int32) for n in (self.height, self.width))
        return replace(self, factor=np.where(mask, self.factor, 1.0), height=height, width=width)
