"""The values that travel between the parts: :class:`Shard`, :class:`Plan`, :class:`ByHand`, :class:`Batch`.

All are frozen, check themselves, and print shapes instead of contents. Numpy only.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from .errors import BadSample, ConfigError

if TYPE_CHECKING:
    from .transforms.ops import Op
    from .transforms.ops.mixing import Mixing

__all__ = ["Batch", "ByHand", "Plan", "Shard"]

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Shard:
    """Which part of every global batch this process takes: rank ``rank`` of ``world_size``.

    >>> Shard(rank=1, world_size=4)
    Shard(rank=1, world_size=4)
    """

    rank: int = 0
    world_size: int = 1

    def __post_init__(self) -> None:
        if not (isinstance(self.rank, int) and isinstance(self.world_size, int)):
            raise ConfigError(f"Shard takes two integers, not {self.rank!r} and {self.world_size!r}")
        if self.world_size < 1 or not 0 <= self.rank < self.world_size:
            raise ConfigError(
                f"Shard(rank={self.rank}, world_size={self.world_size}): world_size must be at least 1 "
                "and rank between 0 and world_size - 1"
            )

    @classmethod
    def from_env(cls) -> Shard:
        """The shard of this process: from an initialised ``torch.distributed``, else from the variables
        ``RANK`` and ``WORLD_SIZE`` that ``torchrun`` sets, else 0 of 1.

        Raises :class:`ConfigError` if only one of the two variables is set, or one is not a number.
        """
        dist = sys.modules.get("torch.distributed")  # only a program that imported it can have initialised it
        if dist is not None and dist.is_available() and dist.is_initialized():
            return cls(dist.get_rank(), dist.get_world_size())
        rank, world = os.environ.get("RANK"), os.environ.get("WORLD_SIZE")
        if rank is None and world is None:
            return cls()
        try:
            return cls(int(rank), int(world))  # type: ignore[arg-type]
        except (TypeError, ValueError) as e:
            if isinstance(e, ConfigError):
                raise
            raise ConfigError(
                f"RANK={rank!r} and WORLD_SIZE={world!r} must both be set to integers, or neither (torchrun sets both)"
            ) from None


def _describe(a: Any) -> str:
    if a is None:
        return "None"
    if hasattr(a, "shape") and hasattr(a, "dtype"):
        dtype = str(a.dtype).removeprefix("torch.")
        device = getattr(a, "device", None)
        where = "" if device is None or str(device) == "cpu" else f" on {device}"
        return f"{dtype}[{', '.join(str(n) for n in a.shape)}]{where}"
    if isinstance(a, (list, tuple)):
        return f"({', '.join(_describe(x) for x in a)})"
    return type(a).__name__


@dataclass(frozen=True, eq=False, repr=False)
class Plan:
    """Everything about one batch of one rank, before a byte is read: a function of
    (dataset, pipeline, seed, epoch, shard) and of nothing else.

    ``ops`` is ``None`` while image sizes are not known yet (a dataset without an index); whoever reads the
    samples then calls :meth:`with_sizes`.
    """

    seed: int
    epoch: int
    step: int
    """Number of the global batch in this epoch, counted from where the epoch (or a resume) started."""
    indices: IntArray
    """i64[B]: positions in the dataset."""
    keys: npt.NDArray[np.uint64]
    """u64[B]: what the random numbers of a sample are keyed by: its position, and in the high bits how
    often it came before in this epoch (a sampler may repeat samples)."""
    valid: int
    """How many samples, counted from the front, are real; the others pad the last batch."""
    consumed: int
    """Samples of the epoch, over all ranks, that have been delivered once this batch is."""
    sizes: npt.NDArray[np.int32] | None = None
    """i32[B, 2]: height and width of the images as decoded."""
    ops: tuple[Op, ...] | None = None
    """The resolved operations, in order; see :mod:`gpupipe.transforms.ops`. They do not travel to other processes if
    one of them holds a function."""
    frames: IntArray | None = None
    """i64[B, T]: of a dataset of clips, the frames of each. Row i of every op is for all frames of clip i."""
    bad: tuple[BadSample, ...] = ()
    """Samples that the batch goes without: left out or replaced."""
    mixing: tuple[Mixing, ...] = ()
    """What is done to the finished batch and its targets, MixUp and CutMix, after ``ops``. No engine has to know it:
    the loader does it."""
    by_hand: frozenset[int] = frozenset()
    """Those of ``indices`` whose samples the script's own code is to make, transforms and all."""
    images_per_sample: int = 1
    """With several, rows are for the first image of all samples, then for the second one of all, and so
    on, in all arrays of the plan."""

    def __post_init__(self) -> None:
        if self.indices.ndim != 1 or self.indices.shape != self.keys.shape:
            raise ConfigError(f"Plan: indices {self.indices.shape} and keys {self.keys.shape} must be alike and 1-D")
        if not 0 <= self.valid <= len(self.indices):
            raise ConfigError(f"Plan: valid={self.valid} of {len(self.indices)} samples")

    def __len__(self) -> int:
        return len(self.indices)

    def __getstate__(self) -> dict[str, Any]:
        """Without the ops if one of them holds a function, which cannot be sent: they are resolved again there."""
        keep = all(op.sendable for op in self.ops or ())
        return self.__dict__ if keep else {**self.__dict__, "ops": None}

    @property
    def pictures(self) -> int:
        """T: pictures of each row, which share its numbers: 1, or the frames of a clip."""
        return 1 if self.frames is None else self.frames.shape[1]

    def picture(self, row: int, t: int) -> str:
        """What to add to the name of a sample for its picture ``t``; empty if it has only one."""
        return "" if self.frames is None else f", frame {self.frames[row, t]}"

    def of_images(self, count: int) -> Plan:
        """The plan for samples of ``count`` images: with a row for each, that draws for itself."""
        if count == 1:
            return self
        # Any odd number: no two images of a sample have the same key then.
        step = np.uint64(0x9E3779B97F4A7C15)
        keys = (self.keys + (step * np.arange(count, dtype=np.uint64))[:, None]).reshape(-1)  # arrays wrap in silence
        return replace(self, indices=np.tile(self.indices, count), keys=keys, images_per_sample=count)

    def with_sizes(self, sizes: npt.NDArray[np.int32], ops: tuple[Op, ...], mixing: tuple[Mixing, ...] = ()) -> Plan:
        """The same plan with what became known when the samples were read."""
        return replace(self, sizes=sizes, ops=ops, mixing=mixing)

    def __repr__(self) -> str:
        names = [type(op).__name__ for op in (*(self.ops or ()), *self.mixing)]
        ops = "unresolved" if self.ops is None else ", ".join(names) or "nothing"
        pad = "" if self.valid == len(self) else f", {self.valid} of them real"
        return f"Plan(epoch {self.epoch}, step {self.step}: {len(self)} samples{pad}; {ops})"


@dataclass(frozen=True, eq=False)
class ByHand:
    """A sample that the script's own code made, transforms and all. No engine has a part in it."""

    sample: Any
    """As its dataset returned it."""
    views: tuple[Any, ...] | None = None
    """If it has the form of the other samples its images, each a tensor [C, H, W]; else ``None``."""
    target: Any = None
    """With ``views``: the rest of it, as of other samples."""


@dataclass(frozen=True, eq=False, repr=False)
class Batch:
    """What an engine returns for one plan."""

    images: Any
    """Usually a tensor [B, 3, H, W] on the loader's device."""
    target: Any
    """i64[B], any collated structure, or ``None`` if the dataset has no labels."""
    plan: Plan
    keep: Any = None
    """What must live until the consumer's stream has passed: memory that torch does not know of."""
    by_hand: Mapping[int, ByHand] = field(default_factory=dict)
    """By row, samples that the script's own code made; the images of these rows mean nothing. If one of them has not
    the form of the others, ``target`` is a list of B targets that are not collated."""

    def __repr__(self) -> str:
        return f"Batch({_describe(self.images)}, target {_describe(self.target)}, {self.plan!r})"
