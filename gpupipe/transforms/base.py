"""What a transform is: it says how many uniform numbers it needs, and resolves them into ops."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, get_args

import numpy as np
import numpy.typing as npt

from ..errors import ConfigError, PipelineError
from .ops import Dtype, Kind, Op

__all__ = ["Images", "Transform", "check_probability", "dtype_name", "interpolation_name", "items", "pair", "resolves"]

F64 = npt.NDArray[np.float64]
I64 = npt.NDArray[np.int64]

INTERPOLATIONS = ("nearest", "nearest-exact", "bilinear", "bicubic", "box", "hamming", "lanczos")


@dataclass(frozen=True, eq=False)
class Images:
    """What is known about a batch of images between two transforms."""

    sizes: I64
    """i64[B, 2]: height and width."""
    kind: Kind = "pil"
    dtype: Dtype = "uint8"
    channels: int = 3
    views: tuple[Images, ...] = ()
    """Where the images have become several views of each: what is known of every view, and nothing above holds."""

    def sized(self, height: I64, width: I64) -> Images:
        return replace(self, sizes=np.stack([height, width], axis=1))

    @property
    def height(self) -> I64:
        return self.sizes[:, 0]

    @property
    def width(self) -> I64:
        return self.sizes[:, 1]


@dataclass(frozen=True)
class Transform:
    """One operation on one image of any size, with torchvision's name and arguments.

    A transform is a frozen value: it holds no state and draws nothing.
    """

    DRAWS: ClassVar[int] = 0

    @property
    def draws(self) -> int:
        """How many uniform numbers a sample needs."""
        return self.DRAWS

    @property
    def on_batch(self) -> bool:
        """Whether it works on whole batches: then all samples of a batch get the numbers of the first one, and only
        others of its kind may come after it."""
        return False

    @property
    def temporal(self) -> bool:
        """Whether it chooses among the frames of clips, see :meth:`choose`; it then has no ops."""
        return False

    def choose(self, u: F64, frames: I64) -> I64:
        """i64[B, T'] frame numbers out of ``frames`` i64[B, T]; T' depends on T alone. Only where ``temporal``."""
        raise NotImplementedError

    def resolve(self, u: F64, images: Images) -> tuple[tuple[Op, ...], Images]:
        """Numbers for a batch.

        Args:
            u: f64[B, draws], uniform in [0, 1).
            images: what comes in.

        Returns:
            the ops, whose sequence and settings do not depend on ``u`` or on the sizes, and what goes out.
        """
        raise NotImplementedError

    def __repr__(self) -> str:
        shown = ", ".join(f"{f.name}={getattr(self, f.name)!r}" for f in fields(self))
        return f"{type(self).__name__}({shown})"

    def set(self, **values: Any) -> None:
        """Replace fields with their normalised forms; for ``__post_init__`` only."""
        for name, value in values.items():
            object.__setattr__(self, name, value)

    def refuse(self, why: str) -> PipelineError:
        return PipelineError(f"{self!r}: {why}")


def resolves(ops: tuple[Op, ...], images: Images) -> tuple[tuple[Op, ...], Images]:
    """A typed pair; keeps the returns of :meth:`Transform.resolve` short."""
    return ops, images


def items(value: Any) -> tuple[Any, ...]:
    """What a list argument holds; one value that is no list stands for a list of itself."""
    return tuple(value) if isinstance(value, Iterable) and not isinstance(value, str) else (value,)


def pair(value: int | Sequence[int], what: str) -> tuple[int, int]:
    """(height, width) of a torchvision size argument: one number means a square."""
    numbers = items(value)
    if len(numbers) == 1:
        numbers = numbers * 2
    if len(numbers) != 2 or not all(isinstance(n, (int, np.integer)) and n > 0 for n in numbers):
        raise ConfigError(f"{what} must be a positive integer or a pair (height, width) of them, not {value!r}")
    return int(numbers[0]), int(numbers[1])


def check_probability(p: float, what: str) -> float:
    if isinstance(p, bool) or not isinstance(p, (int, float)) or not 0.0 <= p <= 1.0:
        raise ConfigError(f"{what} must be a number between 0 and 1, not {p!r}")
    return float(p)


def interpolation_name(value: Any) -> str:
    """torchvision's ``InterpolationMode`` or its name, as a name."""
    name = getattr(value, "value", value)
    if name not in INTERPOLATIONS:
        raise ConfigError(f"interpolation must be one of {', '.join(INTERPOLATIONS)}, not {value!r}")
    return str(name)


def dtype_name(value: Any) -> Dtype:
    """A torch dtype or its name, as a name."""
    name = str(value).removeprefix("torch.")
    if name not in get_args(Dtype):
        raise ConfigError(f"dtype must be one of {', '.join(get_args(Dtype))}, not {value!r}")
    return name  # type: ignore[return-value]
