"""Ops that contain other ops or a function."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ...errors import PipelineError
from .op import F32, I64, U64, Dtype, HasMask, Kind, Mask, Masked, Op
from .promise import CPU, Bound, Promise, Tolerance
from .returned import Returned

__all__ = ["Call", "Mix", "Views", "by_view"]


@dataclass(frozen=True, eq=False, repr=False)
class Mix(Masked):
    """Weighted sum of several sequences of ops on one image, none of which changes its size.

    ``weights`` are f32[B, n]. The sum is computed in float32, and truncated if the image is uint8.
    """

    # Adds to the promises of the branches: the sum of a branch's bounds holds for the mean of all branches.
    PROMISES = (
        Promise(
            "mix",
            "weighted sums of AugMix",
            {
                CPU: Tolerance(
                    Bound(1, 0.5), reason="sums close to a whole number, in a different order, truncate differently"
                )
            },
        ),
    )

    weights: F32
    branches: tuple[tuple[Op, ...], ...] = ()
    kind: Kind = "pil"


@dataclass(frozen=True, eq=False, repr=False)
class Call(HasMask):
    """Call a user function on one image as torchvision would pass it, or with ``batch`` on a tensor [B, C, H, W].

    The function keeps size and data type, or returns what ``returns`` declares.
    """

    geometric = True
    """The function may move pixels; only the user knows."""

    sendable = False

    seed: U64
    """Seeds of the global generators while the function runs for a sample; a batch uses the seed of its first sample.
    """
    function: Callable[[Any], Any]
    name: str = ""
    batch: bool = False
    kind: Kind = "pil"
    returns: Returned | None = None

    def where(self, mask: Mask, sizes: I64) -> Op:
        if self.batch:
            raise PipelineError(
                f"{self.name} works on the whole batch and cannot apply to some of its images; move it out of "
                "RandomApply or RandomChoice, or remove batch=True"
            )
        if self.returns is not None:
            raise PipelineError(
                f"{self.name} returns {self.returns} and must apply to all images of a batch; move it out "
                "of RandomApply or RandomChoice"
            )
        return super().where(mask, sizes)

    def promise(self, dtype: Dtype) -> str:
        return "a function"  # only the user knows how it changes a difference


@dataclass(frozen=True, eq=False, repr=False)
class Views(Op):
    """Create several images from one. Always the last of a sample's ops."""

    branches: tuple[tuple[Op, ...], ...] = ()


def calls_in(ops: Iterable[Op]) -> Iterator[Call]:
    """Yield the user code among ops."""
    for op in ops:
        if isinstance(op, Call):
            yield op
        for branch in op.branches:
            yield from calls_in(branch)


def by_view(ops: Sequence[Op]) -> tuple[tuple[Op, ...], ...]:
    """Return the ops of each view, starting from the decoded image; a single sequence if there are no views."""
    if ops and isinstance(ops[-1], Views):
        return tuple((*ops[:-1], *branch) for branch in ops[-1].branches)
    return (tuple(ops),)
