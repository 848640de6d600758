"""What all ops have in common, and the type and range of values."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from ...errors import PipelineError

__all__ = ["F32", "F64", "I32", "I64", "U64", "Dtype", "Kind", "Mask", "Masked", "Normalize", "Op", "ToDtype"]

F32 = npt.NDArray[np.float32]
F64 = npt.NDArray[np.float64]
I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]
U64 = npt.NDArray[np.uint64]
Mask = npt.NDArray[np.bool_]
Dtype = Literal["uint8", "float16", "bfloat16", "float32"]
Kind = Literal["pil", "tensor"]
"""Which of torchvision's two image libraries a transform would have met at this place: PIL before ``ToTensor`` and
``ToImage``, tensors after. They round and resize differently."""


@dataclass(frozen=True, eq=False)
class Op:
    """Base class; see the module."""

    def numbers(self) -> dict[str, npt.NDArray[Any]]:
        """The per-sample arrays by name."""
        return {f.name: v for f in fields(self) if isinstance(v := getattr(self, f.name), np.ndarray)}

    def settings(self) -> dict[str, Any]:
        """The plain values by name."""
        return {f.name: v for f in fields(self) if not isinstance(v := getattr(self, f.name), np.ndarray)}

    def where(self, mask: Mask, sizes: I64) -> Op:
        """The same op, but the samples whose mask is not set pass as they are.

        Args:
            mask: bool[B].
            sizes: i64[B, 2], height and width of what comes in.

        Raises :class:`PipelineError` where that is impossible.
        """
        raise PipelineError(
            f"{type(self).__name__} changes the type of the image and cannot be done to some images of a batch only; "
            "take it out of RandomApply, RandomChoice or RandomOrder"
        )

    @property
    def local(self) -> bool:
        """Whether it holds what cannot be sent to another process, such as a function."""
        return any(op.local for branch in getattr(self, "branches", ()) for op in branch)

    def take(self, rows: Any) -> Op:
        """The op of some samples: ``rows`` is whatever numpy takes as an index of the first axis."""
        values = {f.name: getattr(self, f.name) for f in fields(self)}
        return replace(self, **{k: _take(v, rows) for k, v in values.items() if isinstance(v, (np.ndarray, tuple))})

    def spec(self) -> tuple[Any, ...]:
        """What identifies the op apart from its numbers."""
        return (type(self).__name__, *sorted((k, _spec(v)) for k, v in self.settings().items()))


def _take(value: Any, rows: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value[rows]
    if isinstance(value, Op):
        return value.take(rows)
    return tuple(_take(v, rows) for v in value) if isinstance(value, tuple) else value


def _spec(value: Any) -> Any:
    """Of ops within a setting, their specs."""
    if isinstance(value, Op):
        return value.spec()
    return tuple(map(_spec, value)) if isinstance(value, tuple) else value


@dataclass(frozen=True, eq=False)
class Masked(Op):
    """An op that leaves the samples alone whose mask is not set."""

    mask: Mask
    always: bool = field(default=False, kw_only=True)
    """Whether the mask is set for every sample of every plan."""

    def where(self, mask: Mask, sizes: I64) -> Op:
        return replace(self, mask=self.mask & mask, always=False)


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
