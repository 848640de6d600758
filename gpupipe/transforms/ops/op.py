"""Base classes of ops."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar, Literal, TypeVar

import numpy as np
import numpy.typing as npt

from ...errors import ConfigError, PipelineError
from .promise import Promise

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]
I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]
U64 = npt.NDArray[np.uint64]
Mask = npt.NDArray[np.bool_]
Objects = npt.NDArray[np.object_]
Array = npt.NDArray[Any]
Dtype = Literal["uint8", "float16", "bfloat16", "float32"]
Kind = Literal["pil", "tensor"]
"""Image library that a transform would meet at this point: PIL before torchvision's ``ToTensor`` and ``ToImage``,
tensors after them. They round and resize differently."""

_Op = TypeVar("_Op", bound="Op")


@dataclass(frozen=True, eq=False, repr=False)
class Op:
    """Base class of ops; see :mod:`gpupipe.transforms.ops`."""

    PROMISES: ClassVar[tuple[Promise, ...]] = ()
    """How far an engine may differ from the reference: one row for each case that :meth:`promise` distinguishes."""

    def promise(self, dtype: Dtype) -> str:
        """Return the key of the promise that applies to images of ``dtype``.

        A key without a row means that the case was not measured, and nothing is promised.
        """
        if not self.PROMISES:
            raise ConfigError(f"{type(self).__name__} has no promise; measure it, and add one to the class")
        return self.PROMISES[0].key

    @property
    def branches(self) -> tuple[tuple[Op, ...], ...]:
        """Sequences of ops inside this op."""
        return ()

    @property
    def geometric(self) -> bool:
        """Whether pixels move, so that masks, boxes and keypoints must follow."""
        return any(op.geometric for branch in self.branches for op in branch)

    @property
    def sendable(self) -> bool:
        """Whether the op can be sent to another process. False if it holds a function."""
        return all(op.sendable for branch in self.branches for op in branch)

    @property
    def rows(self) -> int:
        """Number of samples that the arrays hold; 0 for an op without arrays."""
        for values in self.numbers().values():
            return len(values)
        return max((op.rows for branch in self.branches for op in branch), default=0)

    def numbers(self) -> dict[str, npt.NDArray[Any]]:
        """Return the per-sample arrays by name."""
        return {f.name: v for f in fields(self) if isinstance(v := getattr(self, f.name), np.ndarray)}

    def settings(self) -> dict[str, Any]:
        """Return the plain values by name."""
        return {f.name: v for f in fields(self) if not isinstance(v := getattr(self, f.name), np.ndarray)}

    def __repr__(self) -> str:
        """Show shapes instead of numbers."""
        numbers = {k: f"{v.dtype}{list(v.shape)}" for k, v in self.numbers().items()}
        shown = {f.name: numbers.get(f.name) or repr(getattr(self, f.name)) for f in fields(self)}
        return f"{type(self).__name__}({', '.join(f'{k}={v}' for k, v in shown.items())})"

    def passes(self, i: int) -> bool:
        """Return whether image ``i`` passes unchanged because the mask excludes it."""
        return False

    def where(self, mask: Mask, sizes: I64) -> Op:
        """Return this op restricted to some samples; all others pass unchanged.

        Args:
            mask: bool[B], the samples to apply it to.
            sizes: i64[B, 2], height and width of the incoming images.

        Raises :class:`PipelineError` if the op cannot be restricted.
        """
        raise PipelineError(
            f"{type(self).__name__} changes the type of the image and must apply to all images of a batch; "
            "move it out of RandomApply or RandomChoice"
        )

    def take(self: _Op, rows: Any) -> _Op:
        """Select samples. ``rows`` is any numpy index of the first axis."""
        # Called for each op of each image, where replace() would take as long as some ops.
        taken = object.__new__(type(self))
        taken.__dict__.update({name: _take(value, rows) for name, value in self.__dict__.items()})
        return taken


def _take(value: Any, rows: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value[rows]
    if isinstance(value, Op):
        return value.take(rows)
    return tuple(_take(v, rows) for v in value) if isinstance(value, tuple) else value


@dataclass(frozen=True, eq=False, repr=False)
class HasMask(Op):
    """An op that applies only to the samples in its mask."""

    mask: Mask

    def passes(self, i: int) -> bool:
        return not self.mask[i]

    def where(self, mask: Mask, sizes: I64) -> Op:
        return replace(self, mask=self.mask & mask)


@dataclass(frozen=True, eq=False, repr=False)
class Masked(HasMask):
    """A masked op that declares in advance whether a graph needs the mask."""

    always: bool = field(default=False, kw_only=True)
    """Whether the mask selects every sample of every plan."""

    def where(self, mask: Mask, sizes: I64) -> Op:
        return replace(self, mask=self.mask & mask, always=False)
