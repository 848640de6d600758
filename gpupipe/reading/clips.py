"""Clips, decoded by PyAV in threads, plans ahead, into memory that is used again and again.

DALI's own decoder on the CPU is not used. It has no H.264 and no HEVC. Of what it has, VP8, VP9 and MJPEG, its pixels
are PyAV's only if chroma is not subsampled or the height is odd; in 4:2:0, as nearly all videos are, they are up to
105 grey levels apart and 2 on average (5 to 6 on noise), because it upsamples chroma in another way. So the pixels
would depend on the codec and on the engine. ``tests/contract/test_clips.py`` looks whether that is still so.
"""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt

from ..codecs.video.decode import decode_clip, pyav_version
from ..types import Plan
from .base import AheadReader, Loaded, Pending
from .buffers import Borrowed, BufferPool, views_of
from .sample import bad_sample
from .setup import Setup
from .targets import targets_of

__all__ = ["ClipReader"]

U8 = npt.NDArray[np.uint8]


class ClipReader(AheadReader[None]):
    """``prefetch_factor`` plans are decoded while as many are with the engine. Each clip is one task; FFmpeg lets go of
    Python's lock while it decodes."""

    def __init__(self, setup: Setup):
        super().__init__(setup, "gpupipe-clips")
        self.buffers = BufferPool(pinned=setup.cuda)

    def _begin(self, plan: Plan, pool: ThreadPoolExecutor) -> Pending[None]:
        bad = self._setup.dataset.bad(plan.indices)
        if bad:
            return Pending(plan, bad=tuple(bad))
        assert plan.frames is not None
        shapes = self._shapes(plan)
        borrowed = self.buffers.take(sum(map(math.prod, shapes)))
        clips = views_of(borrowed.buffer, shapes)
        futures = [
            pool.submit(self._decode, index, plan.frames[row], clips[row])
            for row, index in enumerate(plan.indices.tolist())
        ]
        return Pending(plan, futures, owner=borrowed)

    @staticmethod
    def _shapes(plan: Plan) -> list[tuple[int, ...]]:
        assert plan.sizes is not None and plan.frames is not None
        return [(plan.frames.shape[1], height, width, 3) for height, width in plan.sizes.tolist()]

    def _decode(self, index: int, frames: npt.NDArray[np.int64], clip: U8) -> None:
        dataset = self._setup.dataset
        if dataset.upright:
            clip[...] = decode_clip(dataset.entry(index), frames, upright=True)
        else:
            decode_clip(dataset.entry(index), frames, out=clip)

    def _end(self, pending: Pending[None]) -> Loaded:
        plan, dataset, bad = pending.plan, self._setup.dataset, list(pending.bad)
        for index, future in zip(plan.indices.tolist(), pending.futures, strict=bool(pending.futures)):
            try:
                future.result()
            except Exception as e:
                bad.append(bad_sample(dataset, index, e))
        if bad:
            return Loaded(plan, bad=tuple(bad))
        borrowed: Borrowed = pending.owner
        media: list[Any] = [frame for clip in views_of(borrowed.buffer, self._shapes(plan)) for frame in clip]
        return Loaded(plan, media, targets_of(dataset, plan), owner=borrowed)

    def close(self) -> None:
        super().close()
        self.buffers.close()

    def facts(self) -> dict[str, Any]:
        kind = "pinned_" if self.buffers.pinned else ""
        return {
            "video": f"{pyav_version()} in {self.threads} thread{'s' * (self.threads > 1)}",
            f"{kind}staging_bytes": self.buffers.nbytes,
        }
