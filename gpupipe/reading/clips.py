"""Clips decoded by PyAV in threads, plans ahead.

DALI's own decoder on the CPU is not used. It lacks H.264 and HEVC. For VP8, VP9 and MJPEG its pixels equal PyAV's only
if chroma is not subsampled or the height is odd. In 4:2:0, as nearly all videos are, they differ by up to 105 gray
levels and 2 on average (5 to 6 on noise), because DALI upsamples chroma differently. Pixels would then depend on the
codec and on the engine. ``tests/contract/test_clips.py`` checks whether that is still so.
"""

from __future__ import annotations

import math
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ..codecs.video.decode import ALL, ClipRequest, decode_clips, pyav_version, turned
from ..codecs.video.types import Shortcuts, VideoEntry
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


@dataclass(frozen=True, eq=False)
class _Clip:
    """A clip that waits to be decoded."""

    entry: VideoEntry
    request: ClipRequest
    decoded: Future[None] = field(default_factory=Future)

    def span(self) -> tuple[int, int]:
        """Return the first and the last group of pictures that contain its frames."""
        ends = self.request.frames.min(), self.request.frames.max()
        # Frames without times are counted from the beginning, so all clips of such a video count as sharing a group.
        first, last = np.searchsorted(self.entry.keys[:, 0], ends, "right").tolist() if self.entry.exact else (0, 0)
        return first, last


class ClipReader(AheadReader[None]):
    """Decodes ``prefetch_factor`` plans ahead. FFmpeg releases Python's lock while it decodes.

    Waiting clips of one video, from any plans, are decoded in one pass if they share a group of pictures, so that
    shared frames are decoded once, while clips that share nothing occupy several threads. While no more clips wait than
    there are threads, each is decoded separately to keep all threads busy.

    Args:
        taker: receives the frames of a plan; by default they are stored unchanged.
        shortcuts: work that decoding may skip. No pixel depends on it.
    """

    def __init__(
        self,
        setup: Setup,
        taker: Callable[[Plan], FrameTaker] | None = None,
        *,
        shortcuts: Shortcuts = ALL,
    ):
        super().__init__(setup.threads, setup.prefetch_factor, "gpupipe-clips")
        self._setup = setup
        self._shortcuts = shortcuts
        self.buffers = BufferPool(pinned=setup.cuda)
        self._taker = taker or (lambda plan: _Frames(plan, self.buffers))
        self._lock = threading.Lock()
        self._waiting: dict[str, list[_Clip]] = {}
        """Waiting clips by the path of their video."""

    def _left(self) -> None:
        if self._setup.cuda:
            torch.cuda.synchronize(self._setup.device)  # wait for copies from buffers of an abandoned run

    def _begin(self, plan: Plan, pool: ThreadPoolExecutor) -> Pending[None]:
        bad = self._setup.dataset.bad(plan.indices)
        if bad:
            return Pending(plan, bad=tuple(bad))
        assert plan.frames is not None
        taker = self._taker(plan)
        clips = [self._clip(row, index, plan.frames[row], taker) for row, index in enumerate(plan.indices.tolist())]
        with self._lock:
            for clip in clips:
                self._waiting.setdefault(clip.entry.path, []).append(clip)
        for clip in clips:
            pool.submit(self._decode, clip)
        return Pending(plan, [clip.decoded for clip in clips], owner=taker)

    def _clip(self, row: int, index: int, frames: npt.NDArray[np.int64], taker: FrameTaker) -> _Clip:
        dataset = self._setup.dataset
        entry = dataset.entry(index)

        def put(t: int, pixels: U8) -> None:
            taker.put(row, t, pixels)

        def put_upright(t: int, pixels: U8) -> None:
            taker.put(row, t, turned(pixels[None], entry.orientation)[0])

        return _Clip(entry, ClipRequest(frames, put_upright if dataset.upright else put))

    def _decode(self, clip: _Clip) -> None:
        """Decode a clip together with related clips, unless an earlier call included it."""
        # set_running_or_notify_cancel() is False for a clip of an abandoned run, which was cancelled.
        clips = [other for other in self._taken(clip) if other.decoded.set_running_or_notify_cancel()]
        if not clips:
            return
        try:
            with DECODING:
                wrong = decode_clips(clip.entry, [other.request for other in clips], shortcuts=self._shortcuts)
        except BaseException as e:
            for other in clips:
                other.decoded.set_exception(e)
            return
        for other, error in zip(clips, wrong, strict=True):
            if error is None:
                other.decoded.set_result(None)
            else:
                other.decoded.set_exception(error)

    def _taken(self, clip: _Clip) -> list[_Clip]:
        """Remove and return the clip and the waiting clips that share a group of pictures with it, directly or through
        others."""
        with self._lock:
            waiting = self._waiting.get(clip.entry.path, [])
            if clip not in waiting:
                return []
            several = self._shortcuts.together and sum(map(len, self._waiting.values())) > self.threads
            taken = together(waiting, clip) if several else [clip]
            left = [other for other in waiting if other not in taken]
            if left:
                self._waiting[clip.entry.path] = left
            else:
                del self._waiting[clip.entry.path]
            return taken

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
        self._waiting.clear()
        self.buffers.close()

    def facts(self) -> dict[str, Any]:
        video = f"{pyav_version()} in {self.threads} thread{'s' * (self.threads > 1)}"
        return {"video": video, **self.buffers.facts()}


def together(waiting: list[_Clip], clip: _Clip) -> list[_Clip]:
    """Return the clips of one video that share a group of pictures with ``clip``, directly or through others."""
    low, high = clip.span()
    # The range grows with every clip, so one that lay outside before may lie inside now.
    taken, found = [clip], True
    while found:
        found = False
        for other in waiting:
            first, last = other.span()
            if other not in taken and first <= high and last >= low:
                low, high, found = min(low, first), max(high, last), True
                taken.append(other)
    return taken
