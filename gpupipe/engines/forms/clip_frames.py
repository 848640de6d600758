"""Clips on the CPU: the thread that decoded a frame crops, resizes, mirrors and normalises it while it is in the cache,
and writes it to its place in the batch."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ...reading.clips import FrameTaker
from ...reading.setup import Setup
from ...transforms.ops import Crop, Flip, Resize
from ...transforms.ops.base import Array
from ...types import Plan
from .apply import apply_batch, apply_sample, head_and_tail
from .picture import chw
from .registry import FAST_FORMS, FORMS, is_arithmetic

__all__ = ["frame_taker"]


def frame_taker(setup: Setup) -> Callable[[Plan], FrameTaker] | None:
    """What takes the frames of plans and makes batches of them; ``None`` if the pipeline has other ops than crops,
    resizes, flips and arithmetic on single values, or makes images of several sizes."""
    outputs = setup.pipeline.outputs
    head, tail = head_and_tail(setup.pipeline.skeleton)
    done = all(isinstance(op, (Crop, Resize, Flip)) for op in head) and all(map(is_arithmetic, tail))
    if not done or len(outputs) != 1 or outputs[0].size is None:
        return None
    return lambda plan: _Batch(setup, plan)


class _Batch(FrameTaker):
    """``media`` is the batch, in the dataset's layout and the pipeline's memory format."""

    def __init__(self, setup: Setup, plan: Plan):
        assert plan.ops is not None and plan.frames is not None
        (output,) = setup.pipeline.outputs
        assert output.size is not None
        self._head, self._tail = head_and_tail(plan.ops)
        self._memory_format = setup.pipeline.memory_format
        dtype, (height, width) = getattr(torch, output.dtype), output.size
        clips, frames = plan.frames.shape
        self._places: Tensor
        """[B, T, C, H, W]: where each frame belongs."""
        if self._memory_format == "channels_last":
            made = torch.empty((clips, frames, height, width, output.channels), dtype=dtype, device="cpu")
            self._places = made.permute(0, 1, 4, 2, 3)
            self.media = self._places.transpose(1, 2) if setup.dataset.layout == "CTHW" else self._places
        elif setup.dataset.layout == "CTHW":
            self.media = torch.empty((clips, output.channels, frames, height, width), dtype=dtype, device="cpu")
            self._places = self.media.transpose(1, 2)
        else:
            self.media = torch.empty((clips, frames, output.channels, height, width), dtype=dtype, device="cpu")
            self._places = self.media

    def put(self, row: int, t: int, pixels: Array) -> None:
        image = apply_sample(pixels, self._head, row, _ALL)
        assert not isinstance(image, tuple)
        self._places[row, t] = apply_batch(chw(image)[None], self._tail, self._memory_format)[0]


_ALL = {**FORMS, **FAST_FORMS}
