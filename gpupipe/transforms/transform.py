"""The :class:`Transform` base class, and the image properties that transforms track while they resolve."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, TypeAlias

import numpy as np

from ..errors import PipelineError
from .boxes import BatchBoxes
from .fields import frozen
from .ops import Dtype, Kind, Op
from .ops.op import F64, I64


@dataclass(frozen=True, eq=False)
class Images:
    """Properties of a batch of images between two transforms."""

    sizes: I64
    """i64[B, 2]: height and width."""
    kind: Kind = "pil"
    dtype: Dtype = "uint8"
    channels: int = 3
    views: tuple[Images, ...] = ()
    """Properties of each view if the images were split into several views. The fields above then mean nothing."""
    boxes: BatchBoxes | None = None
    """Boxes of the images, if a transform of the pipeline draws by them."""
    batch_shape: tuple[int, int] | None = None
    """See :attr:`gpupipe.types.Plan.batch_shape`."""

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
    """Base class of all transforms: one operation on one image of any size, with torchvision's name and arguments.

    A transform is a frozen value. It holds no state and never draws: it says how many uniform numbers it needs, and
    resolves them into ops. Unless it says otherwise, it takes and returns a PIL image, or a tensor u8 or float ``[1 or
    3, H, W]``.
    """

    DRAWS: ClassVar[int] = 0
    sizes_vary: ClassVar[bool] = False
    """Whether the size of the images depends on the other images of the batch."""

    @property
    def draws(self) -> int:
        """Number of uniform numbers that each sample needs."""
        return self.DRAWS

    @property
    def on_batch(self) -> bool:
        """Whether the transform works on whole batches. All samples of a batch then use the numbers of the first one,
        and only other batch transforms may follow."""
        return False

    @property
    def on_objects(self) -> bool:
        """Whether the transform changes the boxes of images after they were moved, and has no ops; see
        :class:`~gpupipe.transforms.objects.OnObjects`."""
        return False

    @property
    def draws_by_boxes(self) -> bool:
        """Whether the transform needs the boxes of the images to resolve."""
        return False

    def resolved(self, u: F64, images: Images) -> tuple[Ops, Images]:
        """Call :meth:`resolve`, and move the boxes of the images."""
        ops, after = self.resolve(u, images)
        if images.boxes is None or not any(op.geometric for op in ops):
            return ops, after
        return ops, replace(after, boxes=images.boxes.moved(ops, images.sizes))

    def resolve(self, u: F64, images: Images) -> tuple[Ops, Images]:
        """Turn uniform numbers into ops for a batch.

        Args:
            u: f64[B, draws], uniform in [0, 1).
            images: the incoming images.

        Returns:
            The ops, and the properties of the outgoing images. The sequence and the settings of the ops depend neither
            on ``u`` nor on the sizes.
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
