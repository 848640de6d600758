"""Changes of the data type and the range of values."""

from __future__ import annotations

from dataclasses import dataclass

from .op import Dtype, Kind, Op
from .promise import CPU, Bound, Promise, Tolerance

__all__ = ["Normalize", "ToDtype"]

# Counts once for a whole pipeline: in half precision the type limits accuracy, not the number of operations.
_ARITHMETIC = (
    Promise(
        "arithmetic float32",
        "scale, normalize",
        {
            CPU: Tolerance(
                Bound(2.6e-4, 2.6e-4),
                reason="one millionth of the value range: the same operations in a different order",
            )
        },
        once=True,
    ),
    Promise(
        "arithmetic float16",
        "scale, normalize, in float16",
        {CPU: Tolerance(Bound(0.4, 0.1), reason="DALI computes in float32 and rounds once")},
        once=True,
    ),
    Promise(
        "arithmetic bfloat16",
        "scale, normalize, in bfloat16",
        {
            CPU: Tolerance(
                Bound(3, 0.8, 0.4),
                reason="DALI computes in float32 and rounds once; a step of bfloat16 is up to one level wide",
            )
        },
        once=True,
    ),
)


@dataclass(frozen=True, eq=False, repr=False)
class ToDtype(Op):
    """Convert the data type. With ``scale``, uint8 values in [0, 255] become floats in [0, 1]."""

    PROMISES = _ARITHMETIC

    dtype: Dtype = "float32"
    scale: bool = True
    kind: Kind = "pil"
    """``ToTensor`` ("pil") divides by 255; torchvision's ``ToDtype`` ("tensor") multiplies by 1/255, which rounds
    differently."""

    def promise(self, dtype: Dtype) -> str:
        return f"arithmetic {self.dtype}"


@dataclass(frozen=True, eq=False, repr=False)
class Normalize(Op):
    """Compute ``(x - mean) / std`` per channel."""

    PROMISES = _ARITHMETIC

    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)

    def promise(self, dtype: Dtype) -> str:
        return f"arithmetic {dtype}"
