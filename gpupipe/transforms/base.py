"""What a transform is: it says how many uniform numbers it needs, and resolves them into ops."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, TypeAlias

import numpy as np

from ..errors import PipelineError
from .fields import frozen
from .ops import Dtype, Kind, Op
from .ops.base import F64, I64

__all__ = ["Images", "Ops", "Transform"]


@dataclass(frozen=True, eq=False)
class Images:
    """What is known about a batch of images between two transforms."""

    sizes: I64
    """i64[B, 2]: height and width."""
    kind: Kind = "pil"
    dtype: Dtype = "uint8"
    channels: int = 3
    shape: tuple[int, ...] = ()
    """If a function has made something of them that is no image of one or three channels: its shape, and sizes mean
    nothing. Only functions can follow."""
    views: tuple[Images, ...] = ()
    """If the images have become several views of each: what is known of every view, and nothing above holds."""

    def sized(self, height: I64, width: I64) -> Images:
        return replace(self, sizes=np.stack([height, width], axis=1))

    @property
    def height(self) -> I64:
        return self.sizes[:, 0]

    @property
    def width(self) -> I64:
        return self.sizes[:, 1]


Ops: TypeAlias = tuple[Op, ...]


@frozen
class Transform:
    """One operation on one image of any size, with torchvision's name and arguments.

    A transform is a frozen value: it holds no state and draws nothing.
    """

    DRAWS: ClassVar[int] = 0
    takes_anything: ClassVar[bool] = False
    """Whether it can follow a function that returns no image."""

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
        """i64[B, T'] frame numbers out of ``frames`` i64[B, T]; T' depends on T alone. Only if ``temporal``."""
        raise NotImplementedError

    def resolved(self, u: F64, images: Images) -> tuple[Ops, Images]:
        """:meth:`resolve`, of images only."""
        if images.shape and not self.takes_anything:
            raise self.refuse(
                f"it comes after a function that returns tensors {list(images.shape)}, and works on images "
                "[1 or 3, H, W]; put it before"
            )
        return self.resolve(u, images)

    def resolve(self, u: F64, images: Images) -> tuple[Ops, Images]:
        """Numbers for a batch.

        Args:
            u: f64[B, draws], uniform in [0, 1).
            images: what comes in.

        Returns:
            the ops, whose sequence and settings do not depend on ``u`` or on the sizes, and what goes out.
        """
        raise NotImplementedError

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Transform) and type(self) is type(other) and self._values() == other._values()

    def __hash__(self) -> int:
        return hash(self._values())

    def _values(self) -> tuple[Any, ...]:
        return tuple(getattr(self, f.name) for f in fields(self))

    def __repr__(self) -> str:
        shown = ", ".join(f"{f.name}={getattr(self, f.name)!r}" for f in fields(self))
        return f"{type(self).__name__}({shown})"

    def refuse(self, why: str) -> PipelineError:
        return PipelineError(f"{self!r}: {why}")
