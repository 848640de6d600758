"""What all ops have in common."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar, Literal, TypeVar

import numpy as np
import numpy.typing as npt

from ...errors import ConfigError, PipelineError
from .promise import Promise

__all__ = ["F32", "F64", "I32", "I64", "U64", "Array", "Dtype", "HasMask", "Kind", "Mask", "Masked", "Op"]

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]
I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]
U64 = npt.NDArray[np.uint64]
Mask = npt.NDArray[np.bool_]
Array = npt.NDArray[Any]
Dtype = Literal["uint8", "float16", "bfloat16", "float32"]
Kind = Literal["pil", "tensor", "array"]
"""Which image library a transform would have met at this place: of torchvision's two, PIL before ``ToTensor`` and
``ToImage``, tensors after; or OpenCV, after ``ToArray``. They round and resize differently."""

_Op = TypeVar("_Op", bound="Op")


@dataclass(frozen=True, eq=False, repr=False)
class Op:
    """Base class; see the package."""

    PROMISES: ClassVar[tuple[Promise, ...]] = ()
    """How far an engine may be from the reference: a row for each case that :meth:`promise` tells apart."""

    def promise(self, dtype: Dtype) -> str:
        """The key of the row that it comes under on images of ``dtype``. There may be no such row: then nothing was
        measured, and nothing is promised."""
        if not self.PROMISES:
            raise ConfigError(f"{type(self).__name__} has no promise; write one beside it, after measuring")
        return self.PROMISES[0].key

    @property
    def branches(self) -> tuple[tuple[Op, ...], ...]:
        """Sequences of ops within this one."""
        return ()

    @property
    def geometric(self) -> bool:
        """Whether pixels move, so that what belongs to them, such as masks, boxes and keypoints, must follow."""
        return any(op.geometric for branch in self.branches for op in branch)

    @property
    def sendable(self) -> bool:
        """Whether another process can be sent it; not if it holds a function."""
        return all(op.sendable for branch in self.branches for op in branch)

    @property
    def rows(self) -> int:
        """How many samples its arrays have numbers of; 0 of an op without arrays."""
        for values in self.numbers().values():
            return len(values)
        return max((op.rows for branch in self.branches for op in branch), default=0)

    def numbers(self) -> dict[str, npt.NDArray[Any]]:
        """The per-sample arrays by name."""
        return {f.name: v for f in fields(self) if isinstance(v := getattr(self, f.name), np.ndarray)}

    def settings(self) -> dict[str, Any]:
        """The plain values by name."""
        return {f.name: v for f in fields(self) if not isinstance(v := getattr(self, f.name), np.ndarray)}

    def __repr__(self) -> str:
        """With shapes in the place of numbers."""
        numbers = {k: f"{v.dtype}{list(v.shape)}" for k, v in self.numbers().items()}
        shown = {f.name: numbers.get(f.name) or repr(getattr(self, f.name)) for f in fields(self)}
        return f"{type(self).__name__}({', '.join(f'{k}={v}' for k, v in shown.items())})"

    def passes(self, i: int) -> bool:
        """Whether image ``i`` comes out as it came in, because the mask leaves it out."""
        return False

    def where(self, mask: Mask, sizes: I64) -> Op:
        """The same op, but the samples whose mask is not set pass as they are.

        Args:
            mask: bool[B].
            sizes: i64[B, 2], height and width of what comes in.

        Raises :class:`PipelineError` if that is impossible.
        """
        raise PipelineError(
            f"{type(self).__name__} changes the type of the image and cannot be done to some images of a batch only; "
            "take it out of RandomApply, RandomChoice or RandomOrder"
        )

    def take(self: _Op, rows: Any) -> _Op:
        """The op of some samples: ``rows`` is whatever numpy takes as an index of the first axis."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return replace(self, **{k: _take(v, rows) for k, v in values.items() if isinstance(v, (np.ndarray, tuple))})


def _take(value: Any, rows: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value[rows]
    if isinstance(value, Op):
        return value.take(rows)
    return tuple(_take(v, rows) for v in value) if isinstance(value, tuple) else value


@dataclass(frozen=True, eq=False, repr=False)
class HasMask(Op):
    """An op that leaves the samples alone whose mask is not set."""

    mask: Mask

    def passes(self, i: int) -> bool:
        return not self.mask[i]

    def where(self, mask: Mask, sizes: I64) -> Op:
        return replace(self, mask=self.mask & mask)


@dataclass(frozen=True, eq=False, repr=False)
class Masked(HasMask):
    """One that says beforehand whether a graph needs the mask."""

    always: bool = field(default=False, kw_only=True)
    """Whether the mask is set for every sample of every plan."""

    def where(self, mask: Mask, sizes: I64) -> Op:
        return replace(self, mask=self.mask & mask, always=False)
