"""Transforms that select frames of a clip.

They work on frame numbers while a batch is planned, before decoding: omitted frames cost nothing, and engines do not
see these transforms. All other transforms draw once per clip and treat all its frames alike.
"""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from . import fields
from .fields import Converted, Probability, frozen
from .ops.op import F64, I64
from .transform import Images, Ops, Transform

__all__ = ["RandomTemporalReverse", "TemporalSubsample", "UniformTemporalSubsample"]


@frozen
class _Temporal(Transform):
    """Base class of temporal transforms, which have no ops."""

    @property
    def temporal(self) -> bool:
        return True

    def resolve(self, u: F64, images: Images) -> tuple[Ops, Images]:
        raise self.refuse(
            "it selects frames of the whole clip before any image exists; put it into the Compose itself, not "
            "into views, RandomApply or RandomChoice"
        )


@frozen
class TemporalSubsample(_Temporal):
    """Select ``num_samples`` frames spread evenly over the clip, including the first and the last.

    The selection equals torchvision's ``UniformTemporalSubsample`` (originally pytorchvideo's) to the last bit of its
    rounding. A clip with fewer frames repeats some.

    Takes a clip of T frames, and returns one of ``num_samples`` frames.

    Args:
        num_samples: number of frames to keep.

    >>> TemporalSubsample(8).choose(np.zeros((1, 0)), np.arange(0, 64, 2)[None]).tolist()
    [[0, 8, 16, 26, 34, 44, 52, 62]]
    """

    num_samples: Converted[int, int] = Converted(fields.whole(1))

    def choose(self, u: F64, frames: I64) -> I64:
        return frames[:, positions(frames.shape[1], self.num_samples)]


@frozen
class UniformTemporalSubsample(TemporalSubsample):
    """Alias of :class:`TemporalSubsample` with torchvision's name.

    Takes a clip of T frames, and returns one of ``num_samples`` frames.

    Args:
        num_samples: number of frames to keep.

    >>> UniformTemporalSubsample(8)
    UniformTemporalSubsample(num_samples=8)
    """


@frozen
class RandomTemporalReverse(_Temporal):
    """Reverse the clip with probability ``p``.

    Takes and returns a clip of T frames.

    Args:
        p: probability of the reversal, 0 to 1.

    >>> RandomTemporalReverse(0.25)
    RandomTemporalReverse(p=0.25)
    """

    DRAWS: ClassVar[int] = 1

    p: Probability = Converted(fields.probability, default=0.5)

    def choose(self, u: F64, frames: I64) -> I64:
        return np.where(u < self.p, frames[:, ::-1], frames)


def positions(length: int, count: int) -> I64:
    """Return ``torch.linspace(0, length - 1, count).long()``, i64[count], which rounds in float32 and from both
    ends."""
    if count == 1:
        return np.zeros(1, np.int64)
    at, end = np.arange(count), float(length - 1)
    step = float(np.float32(np.float32(end) / np.float32(count - 1)))
    # Double precision, rounded once like a fused multiply-add.
    values = np.where(at < count // 2, step * at, end - step * (count - 1 - at))
    return values.astype(np.float32).astype(np.int64)
