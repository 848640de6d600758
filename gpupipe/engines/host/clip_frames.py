"""Clips on the CPU: the thread that decoded a frame crops, resizes, mirrors and normalises it while it is in the cache,
and writes it to its place in the batch."""

from __future__ import annotations

import torch
from torch import Tensor

from ...kernels.apply import apply_batch, apply_sample, head_and_tail
from ...kernels.at_once import AtOnce, Moves
from ...kernels.picture import chw, planes
from ...kernels.registry import FAST_FORMS, FORMS, is_arithmetic
from ...media import Clip
from ...reading.buffers import BatchPool
from ...reading.clips import FrameTaker
from ...reading.setup import Setup
from ...transforms.ops import Crop, Flip, Resize
from ...transforms.ops.base import Array
from ...types import Plan

__all__ = ["ClipBatches"]


class ClipBatches:
    """Makes what takes the frames of a plan; see the module. :meth:`of` says whether it can.

    Batches lie in memory that is used again once the consumer has let go of them.
    """

    def __init__(self, setup: Setup):
        self._setup = setup
        self._pool = BatchPool(keep=setup.prefetch_factor + 2)

    @classmethod
    def of(cls, setup: Setup) -> ClipBatches | None:
        """``None`` unless these are clips on the CPU, the pipeline has but crops, resizes, flips and arithmetic on
        single values, and all images come out in one size."""
        if setup.cuda or not isinstance(setup.dataset.medium, Clip):
            return None
        outputs = setup.pipeline.outputs
        head, tail = head_and_tail(setup.pipeline.skeleton)
        done = all(isinstance(op, (Crop, Resize, Flip)) for op in head) and all(map(is_arithmetic, tail))
        return cls(setup) if done and len(outputs) == 1 and outputs[0].size is not None else None

    def __call__(self, plan: Plan) -> FrameTaker:
        return _Batch(self._setup, plan, self._pool)

    def close(self) -> None:
        """Free what is not handed out."""
        self._pool.close()


class _Batch(FrameTaker):
    """``media`` is the batch, in the dataset's layout and the pipeline's memory format."""

    def __init__(self, setup: Setup, plan: Plan, pool: BatchPool):
        assert plan.ops is not None and plan.frames is not None
        (output,) = setup.pipeline.outputs
        assert output.size is not None
        self._head, self._tail = head_and_tail(plan.ops)
        dtype, (height, width) = getattr(torch, output.dtype), output.size
        clips, frames = plan.frames.shape
        assert isinstance(setup.dataset.medium, Clip)
        by_time = setup.dataset.medium.layout == "TCHW"
        places: Tensor  # [B, T, C, H, W]
        if setup.pipeline.memory_format == "channels_last":
            self._tensor = chw
            places = pool.empty((clips, frames, height, width, output.channels), dtype).permute(0, 1, 4, 2, 3)
            self.media = places if by_time else places.transpose(1, 2)
        else:
            self._tensor = planes  # bytes are brought into the order of the batch, and not floats
            order = (frames, output.channels) if by_time else (output.channels, frames)
            self.media = pool.empty((clips, *order, height, width), dtype)
            places = self.media if by_time else self.media.transpose(1, 2)
        self._places = [clip.unbind() for clip in places.unbind()]
        """[C, H, W]: where each frame of each clip belongs."""
        here = Moves.last_of(self._head) == len(self._head) and AtOnce.first_of(self._tail) == len(self._tail)
        self._moves = Moves(self._head if here else ())
        self._at_once = AtOnce(self._tail, getattr(torch, setup.pipeline.memory_format)) if here else None

    def put(self, row: int, t: int, pixels: Array) -> None:
        if self._at_once is not None and (found := self._moves.steps(pixels, row)) is not None:
            self._at_once.put(pixels, found[0], self._places[row][t])
            return
        image = apply_sample(pixels, self._head, row, _ALL)
        assert not isinstance(image, tuple)
        apply_batch(self._tensor(image), self._tail, out=self._places[row][t])


_ALL = {**FORMS, **FAST_FORMS}
