"""Clips on the CPU: the thread that decoded a frame also transforms it while it is in the cache, and writes it to the
batch.

The transforms are crops, resizes, flips and normalization.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ...kernels.apply import apply_batch, apply_sample, head_and_tail
from ...kernels.at_once import AtOnce, Steps
from ...kernels.picture import chw, planes
from ...kernels.registry import FAST_FORMS, FORMS, is_arithmetic
from ...media import Clip
from ...reading.buffers import BatchPool
from ...reading.clips import FrameTaker
from ...reading.setup import Setup
from ...stages import TRANSFORMS
from ...transforms.ops import Crop, Flip, Resize
from ...transforms.ops.op import Array
from ...types import Plan


class ClipBatches:
    """Makes objects that receive the frames of a plan; see the module. :meth:`of` tells whether it can.

    Batches use memory that is reused once the consumer has released them.
    """

    def __init__(self, setup: Setup):
        self._setup = setup
        self._pool = BatchPool(keep=setup.prefetch_factor + 2)

    @classmethod
    def of(cls, setup: Setup) -> ClipBatches | None:
        """Build for a setup, or return ``None`` if it does not qualify.

        It must have clips on the CPU, a pipeline of crops, resizes, flips and pointwise arithmetic only, and images
        that all come out in one size.
        """
        if setup.cuda or not isinstance(setup.dataset.medium, Clip):
            return None
        outputs = setup.pipeline.outputs
        head, tail = head_and_tail(setup.pipeline.skeleton)
        done = all(isinstance(op, (Crop, Resize, Flip)) for op in head) and all(map(is_arithmetic, tail))
        return cls(setup) if done and len(outputs) == 1 and outputs[0].size is not None else None

    def __call__(self, plan: Plan) -> FrameTaker:
        return _Batch(self._setup, plan, self._pool)

    def close(self) -> None:
        """Free the memory that is not in use."""
        self._pool.close()


class _Batch(FrameTaker):
    """Receives frames. ``media`` is the batch, in the dataset's layout and the pipeline's memory format."""

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
            self._tensor = planes  # reorder bytes rather than floats
            order = (frames, output.channels) if by_time else (output.channels, frames)
            self.media = pool.empty((clips, *order, height, width), dtype)
            places = self.media if by_time else self.media.transpose(1, 2)
        self._places = [clip.unbind() for clip in places.unbind()]
        """[C, H, W]: the destination of each frame of each clip."""
        # One call makes a frame only if it includes all of the ops.
        self._steps = Steps(self._head, clips)
        here = not any(self._steps.starts) and AtOnce.first_of(self._tail) == len(self._tail)
        self._at_once = AtOnce.of(self._tail, getattr(torch, setup.pipeline.memory_format)) if here else None

    @TRANSFORMS
    def put(self, row: int, t: int, pixels: Array) -> None:
        if self._at_once is not None and (found := self._steps.of(pixels, row)) is not None:
            self._at_once.put([pixels], [found[0]], self._steps, [self._places[row][t]])
            return
        image = apply_sample(pixels, self._head, row, _ALL)
        assert not isinstance(image, tuple)
        apply_batch(self._tensor(image), self._tail, out=self._places[row][t])


_ALL = {**FORMS, **FAST_FORMS}
