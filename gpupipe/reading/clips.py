"""Clips decoded by PyAV in threads, plans ahead.

DALI's own decoder on the CPU is not used. It lacks H.264 and HEVC. For VP8, VP9 and MJPEG its pixels equal PyAV's only
if chroma is not subsampled or the height is odd. In 4:2:0, as nearly all videos are, they differ by up to 105 gray
levels and 2 on average (5 to 6 on noise), because DALI upsamples chroma differently. Pixels would then depend on the
codec and on the engine. ``tests/contract/test_clips.py`` checks whether that is still so.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ..codecs.video.decode import decode_into, pyav_version, turned
from ..stages import DECODING
from ..types import Plan
from .buffers import BufferPool, views_of
from .reader import AheadReader, Loaded, Pending
from .sample import bad_sample
from .setup import Setup
from .targets import targets_of

U8 = npt.NDArray[np.uint8]


class FrameTaker(ABC):
    """Receives the frames of the clips of one plan.

    Attributes:
        media: input of the engine, once all frames were put.
        owner: owner of the memory of ``media``, to keep alive until it was read.
    """

    media: Any
    owner: Any = None

    @abstractmethod
    def put(self, row: int, t: int, pixels: U8) -> None:
        """Receive frame ``t`` of clip ``row``: u8[H, W, 3], read-only and valid only during the call.

        Called at least once per frame, from several threads at a time.
        """


class _Frames(FrameTaker):
    """Stores the frames unchanged, in reusable memory."""

    def __init__(self, plan: Plan, buffers: BufferPool):
        assert plan.sizes is not None and plan.frames is not None
        shapes = [(plan.frames.shape[1], height, width, 3) for height, width in plan.sizes.tolist()]
        self.owner = buffers.take(sum(map(math.prod, shapes)))
        self._clips = views_of(self.owner.buffer, shapes)
        self.media = [frame for clip in self._clips for frame in clip]

    def put(self, row: int, t: int, pixels: U8) -> None:
        self._clips[row][t] = pixels


class ClipReader(AheadReader[None]):
    """Decodes ``prefetch_factor`` plans ahead. FFmpeg releases Python's lock while it decodes.

    Args:
        taker: receives the frames of a plan; by default they are stored unchanged.
    """

    def __init__(self, setup: Setup, taker: Callable[[Plan], FrameTaker] | None = None):
        super().__init__(setup.threads, setup.prefetch_factor, "gpupipe-clips")
        self._setup = setup
        self.buffers = BufferPool(pinned=setup.cuda)
        self._taker = taker or (lambda plan: _Frames(plan, self.buffers))

    def _left(self) -> None:
        if self._setup.cuda:
            torch.cuda.synchronize(self._setup.device)  # wait for copies from buffers of an abandoned run

    def _begin(self, plan: Plan, pool: ThreadPoolExecutor) -> Pending[None]:
        bad = self._setup.dataset.bad(plan.indices)
        if bad:
            return Pending(plan, bad=tuple(bad))
        assert plan.frames is not None
        taker = self._taker(plan)
        futures = [
            pool.submit(self._decode, row, index, plan.frames[row], taker)
            for row, index in enumerate(plan.indices.tolist())
        ]
        return Pending(plan, futures, owner=taker)

    def _decode(self, row: int, index: int, frames: npt.NDArray[np.int64], taker: FrameTaker) -> None:
        dataset = self._setup.dataset
        entry = dataset.entry(index)

        def put(t: int, pixels: U8) -> None:
            taker.put(row, t, turned(pixels[None], entry.orientation)[0] if dataset.upright else pixels)

        with DECODING:
            decode_into(entry, frames, put)

    def _end(self, pending: Pending[None]) -> Loaded:
        plan, dataset, bad = pending.plan, self._setup.dataset, list(pending.bad)
        # Nothing was started for a plan with bad samples.
        for index, future in zip(plan.indices.tolist(), pending.futures, strict=bool(pending.futures)):
            try:
                future.result()
            except Exception as e:
                bad.append(bad_sample(dataset, index, e))
        if bad:
            return Loaded(plan, bad=tuple(bad))
        taker: FrameTaker = pending.owner
        return Loaded(plan, taker.media, targets_of(dataset, plan), owner=taker.owner)

    def close(self) -> None:
        super().close()
        self.buffers.close()

    def facts(self) -> dict[str, Any]:
        video = f"{pyav_version()} in {self.threads} thread{'s' * (self.threads > 1)}"
        return {"video": video, **self.buffers.facts()}
