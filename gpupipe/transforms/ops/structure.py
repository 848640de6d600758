"""Ops that contain other ops or a function."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from .op import F32, I32, U64, Dtype, HasMask, Kind, Masked, Objects, Op
from .promise import CPU, Bound, Promise, Tolerance

__all__ = ["Call", "Mix", "Replay", "Views", "by_view"]


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
    """Call a user function on one image as torchvision would pass it. It keeps size and data type."""

    geometric = True
    """The function may move pixels; only the user knows."""

    sendable = False

    seed: U64
    """Seeds of the global generators while the function runs for a sample."""
    function: Callable[[Any], Any]
    name: str = ""
    kind: Kind = "pil"

    def promise(self, dtype: Dtype) -> str:
        return "a function"  # only the user knows how it changes a difference


@dataclass(frozen=True, eq=False, repr=False)
class Replay(HasMask):
    """Call functions of Pillow that a script called on an image that waits, and that no other op stands for."""

    geometric = True

    sendable = False

    calls: Objects
    """Functions of a PIL image in RGB, which return another one."""
    height: I32
    width: I32

    def promise(self, dtype: Dtype) -> str:
        return "a function"  # only the script knows how it changes a difference


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
