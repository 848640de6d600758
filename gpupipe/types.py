"""Values passed between the parts of gpupipe: :class:`Plan`, :class:`Batch`.

All are frozen, validate themselves, and print shapes instead of contents. Numpy only.
"""

from __future__ import annotations

import operator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from .errors import BadSample, ConfigError
from .world import Shard

if TYPE_CHECKING:
    from .transforms.boxes import BatchBoxes
    from .transforms.ops import Op
    from .transforms.ops.mixing import Mixing

__all__ = ["Batch", "Plan", "Shard", "check_integer"]

IntArray = npt.NDArray[np.int64]


def check_integer(value: Any, name: str, least: int = 1) -> int:
    """Return a Python integer. Raises :class:`ConfigError` if the value is not an integer, or too small."""
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = None
    if number is None or number < least:
        raise ConfigError(f"{name} must be an integer of at least {least}, not {value!r}")
    return number


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
    """Complete description of one batch of one rank, before any byte is read.

    A plan depends only on (dataset, pipeline, seed, epoch, shard). ``ops`` is ``None`` while image sizes are unknown (a
    dataset without an index); the reader then calls :meth:`with_sizes`.
    """

    seed: int
    epoch: int
    step: int
    """Index of the global batch, counted from the start of the epoch or from where it resumed."""
    indices: IntArray
    """i64[B]: indices in the dataset."""
    keys: npt.NDArray[np.uint64]
    """u64[B]: keys of the samples' random numbers. A key is the sample's index, and in the high bits its number of
    earlier occurrences in this epoch, because a sampler may repeat samples."""
    valid: int
    """Number of valid samples, counted from the front. The others pad the last batch."""
    consumed: int
    """Number of samples of the epoch, over all ranks, that are delivered after this batch."""
    sizes: npt.NDArray[np.int32] | None = None
    """i32[B, 2]: height and width of the decoded images."""
    ops: tuple[Op, ...] | None = None
    """Resolved ops, in order; see :mod:`gpupipe.transforms.ops`. They are not sent to other processes if one holds a
    function."""
    frames: IntArray | None = None
    """i64[B, T]: frames of each clip, if the dataset has clips. Row i of every op applies to all frames of clip i."""
    boxes: BatchBoxes | None = None
    """Boxes of the images as the index knows them, if a transform draws by them."""
    bad: tuple[BadSample, ...] = ()
    """Bad samples that the batch skips or replaces."""
    mixing: tuple[Mixing, ...] = ()
    """Ops on the finished batch and its targets, MixUp and CutMix, which the loader runs after ``ops``. Engines ignore
    them."""
    batch_shape: tuple[int, int] | None = None
    """Height and width that the images of this batch shall have, if the order of samples decides that."""

    def __post_init__(self) -> None:
        if self.indices.ndim != 1 or self.indices.shape != self.keys.shape:
            raise ConfigError(
                f"Plan: indices {self.indices.shape} and keys {self.keys.shape} must be 1-D and of equal length"
            )
        if not 0 <= self.valid <= len(self.indices):
            raise ConfigError(f"Plan: valid={self.valid} of {len(self.indices)} samples")

    def __len__(self) -> int:
        return len(self.indices)

    def __getstate__(self) -> dict[str, Any]:
        """Omit ops that hold a function, which cannot be sent; the receiver resolves them again."""
        keep = all(op.sendable for op in self.ops or ())
        return self.__dict__ if keep else {**self.__dict__, "ops": None}

    @property
    def pictures(self) -> int:
        """T, the number of pictures that share the numbers of a row: 1, or the frames of a clip."""
        return 1 if self.frames is None else self.frames.shape[1]

    def picture(self, row: int, t: int) -> str:
        """Return what to add to the name of a sample for its picture ``t``; empty if it has only one."""
        return "" if self.frames is None else f", frame {self.frames[row, t]}"

    def with_sizes(self, sizes: npt.NDArray[np.int32], ops: tuple[Op, ...], mixing: tuple[Mixing, ...] = ()) -> Plan:
        """Return the plan with sizes and ops that became known when the samples were read."""
        return replace(self, sizes=sizes, ops=ops, mixing=mixing)

    def __repr__(self) -> str:
        names = [type(op).__name__ for op in (*(self.ops or ()), *self.mixing)]
        ops = "unresolved" if self.ops is None else ", ".join(names) or "nothing"
        pad = "" if self.valid == len(self) else f", {self.valid} of them real"
        return f"Plan(epoch {self.epoch}, step {self.step}: {len(self)} samples{pad}; {ops})"


@dataclass(frozen=True, eq=False, repr=False)
class Batch:
    """Result of an engine for one plan."""

    images: Any
    """Usually a tensor [B, 3, H, W] on the loader's device."""
    target: Any
    """i64[B], any collated structure, or ``None`` if the dataset has no labels."""
    plan: Plan
    keep: Any = None
    """Memory unknown to torch that must stay alive until the consumer's stream has finished with it."""

    def __repr__(self) -> str:
        return f"Batch({_describe(self.images)}, target {_describe(self.target)}, {self.plan!r})"
