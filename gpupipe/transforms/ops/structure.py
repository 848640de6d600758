"""Ops that are made of other ops or of a function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ...errors import PipelineError
from .base import F32, I64, U64, Dtype, HasMask, Kind, Mask, Masked, Op
from .promise import CPU, Bound, Promise, Tolerance
from .returned import Returned

__all__ = ["Call", "Mix", "Views", "by_view"]


@dataclass(frozen=True, eq=False, repr=False)
class Mix(Masked):
    """A weighted sum of what several sequences of ops make of one image, none of which changes its size.

    ``weights`` f32[B, n]; the sum is taken in float32, and its fraction cut off if the image is uint8.
    """

    # Beside those of its branches: the sum of a branch's bounds holds for the mean of all branches.
    PROMISES = (
        Promise(
            "mix",
            "weighted sums of AugMix",
            {
                CPU: Tolerance(
                    Bound(1, 0.5), reason="sums in another order around whole numbers, where the fraction is cut off"
                )
            },
        ),
    )

    weights: F32
    branches: tuple[tuple[Op, ...], ...] = ()
    kind: Kind = "pil"


@dataclass(frozen=True, eq=False, repr=False)
class Call(HasMask):
    """A user's function: of one image as torchvision would hand it over, or with ``batch`` of a tensor [B, C, H, W].
    It keeps size and data type, or makes what ``returns`` says."""

    geometric = True
    """It may move pixels, and only the user knows."""

    sendable = False

    seed: U64
    """Of the global generators while the function runs for a sample; for a batch those of the first sample."""
    function: Callable[[Any], Any]
    name: str = ""
    batch: bool = False
    kind: Kind = "pil"
    returns: Returned | None = None

    def where(self, mask: Mask, sizes: I64) -> Op:
        if self.batch:
            raise PipelineError(
                f"{self.name} works on the whole batch and cannot be done to some images of it only; take it out of "
                "RandomApply, RandomChoice or RandomOrder, or leave out batch=True"
            )
        if self.returns is not None:
            raise PipelineError(
                f"{self.name} returns {self.returns}, and cannot be done to some images of a batch only; take it out "
                "of RandomApply, RandomChoice or RandomOrder"
            )
        return super().where(mask, sizes)

    def promise(self, dtype: Dtype) -> str:
        return "a function"  # only the user knows what it makes of a difference


@dataclass(frozen=True, eq=False, repr=False)
class Views(Op):
    """Several images out of one; always the last of the sample's ops."""

    branches: tuple[tuple[Op, ...], ...] = ()


def by_view(ops: Sequence[Op]) -> tuple[tuple[Op, ...], ...]:
    """The ops that each view goes through, from the decoded image on; one sequence if there are no views."""
    if ops and isinstance(ops[-1], Views):
        return tuple((*ops[:-1], *branch) for branch in ops[-1].branches)
    return (tuple(ops),)
