"""Clips for DALI: PyAV decodes them in threads, plans ahead, into memory that is used again and again.

DALI's own decoder on the CPU is not used. It has no H.264 and no HEVC. Of what it has, VP8, VP9 and MJPEG, its pixels
are PyAV's only where chroma is not subsampled or the height is odd; in 4:2:0, as nearly all videos are, they are up to
105 grey levels apart and 2 on average (5 to 6 on noise), because it upsamples chroma otherwise. So the pixels would
depend on the codec and on the engine. ``tests/contract/test_clips.py`` looks whether that is still so.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ...codecs.video.decode import decode_clip
from ...errors import BadSample
from ...reading.setup import Setup
from ...types import Plan
from ..delivery import labels_of
from ..torch.worker_tasks import bad_sample
from .feed import Feeder, Ready

__all__ = ["Borrowed", "ClipFeeder", "Staging"]

U8 = npt.NDArray[np.uint8]


class Borrowed:
    """A buffer out of :class:`Staging`. It goes back when nobody refers to the loan any more."""

    def __init__(self, free: deque[Tensor], buffer: Tensor):
        self._free = free
        self.buffer = buffer
        """u8[N]"""

    def __del__(self) -> None:
        self._free.append(self.buffer)

    def holds(self, tensor: Tensor) -> bool:
        """Whether a tensor points into the buffer."""
        start = self.buffer.data_ptr()
        return start <= tensor.data_ptr() < start + self.buffer.numel()


class Staging:
    """Buffers for decoded frames, as many as are in use at the same time, pinned where a GPU reads them."""

    def __init__(self, pinned: bool):
        self.pinned = pinned
        self.nbytes = 0
        """Of all buffers."""
        self._free: deque[Tensor] = deque()

    def take(self, nbytes: int) -> Borrowed:
        """At least ``nbytes``; they hold anything."""
        buffer = self._free.popleft() if self._free else None
        if buffer is None or buffer.numel() < nbytes:
            self.nbytes += nbytes - (0 if buffer is None else buffer.numel())
            del buffer
            # On the CPU by name: somebody may have called torch.set_default_device().
            buffer = torch.empty(nbytes, dtype=torch.uint8, device="cpu", pin_memory=self.pinned)
        return Borrowed(self._free, buffer)

    def close(self) -> None:
        """Free what is not lent out. What comes back later is freed with its loan."""
        self._free = deque()
        self.nbytes = 0


@dataclass(frozen=True)
class _Pending:
    """A plan whose clips are being decoded."""

    plan: Plan
    clips: list[U8]
    """u8[T, H, W, 3] each, all in the memory of ``loan``."""
    futures: list[Future[None]]
    loan: Borrowed | None = None
    bad: tuple[BadSample, ...] = ()


class ClipFeeder(Feeder):
    """Decodes with PyAV in threads, see :attr:`~gpupipe.engines.base.Setup.threads`. ``prefetch_factor`` plans are
    decoded while as many are in DALI. Each clip is one task; FFmpeg lets go of Python's lock while it decodes."""

    def __init__(self, setup: Setup):
        self._setup = setup
        self.threads = setup.threads
        self.staging = Staging(setup.cuda)
        self._pool: ThreadPoolExecutor | None = None
        self._futures: list[Future[None]] = []

    def run(self, plans: Iterator[Plan]) -> Iterator[Ready]:
        self.stop()
        wait(self._futures)  # what is being decoded still writes into its buffer
        self._futures = []
        if self._setup.cuda:
            torch.cuda.synchronize(self._setup.device)  # copies out of buffers of a run that was given up
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self.threads, thread_name_prefix="gpupipe-clips")
        return self._decoded(plans, self._pool)

    def _decoded(self, plans: Iterator[Plan], pool: ThreadPoolExecutor) -> Iterator[Ready]:
        pending: deque[_Pending] = deque()
        failure: Exception | None = None
        more = True
        while True:
            while more and len(pending) <= self._setup.prefetch_factor:
                try:
                    plan = next(plans, None)
                except Exception as e:
                    plan, failure = None, e  # those before it are good
                if plan is None:
                    more = False
                else:
                    pending.append(self._begin(plan, pool))
            if not pending:
                if failure is not None:
                    raise failure
                return
            # Not kept in a variable: the buffer is free as soon as DALI is done with it.
            yield self._end(pending.popleft())

    def _begin(self, plan: Plan, pool: ThreadPoolExecutor) -> _Pending:
        dataset = self._setup.dataset
        bad = dataset.bad(plan.indices)
        if bad:
            return _Pending(plan, [], [], bad=tuple(bad))
        assert plan.sizes is not None and plan.frames is not None
        shapes = [(plan.frames.shape[1], height, width, 3) for height, width in plan.sizes.tolist()]
        ends = np.cumsum([math.prod(shape) for shape in shapes]).tolist()
        loan = self.staging.take(ends[-1])
        flat = loan.buffer.numpy()
        clips = [flat[end - math.prod(shape) : end].reshape(shape) for end, shape in zip(ends, shapes, strict=True)]
        futures = [
            pool.submit(self._decode, index, plan.frames[row], clips[row])
            for row, index in enumerate(plan.indices.tolist())
        ]
        self._futures = [f for f in self._futures if not f.done()] + futures
        return _Pending(plan, clips, futures, loan)

    def _decode(self, index: int, frames: npt.NDArray[np.int64], clip: U8) -> None:
        dataset = self._setup.dataset
        if dataset.upright:
            clip[...] = decode_clip(dataset.entry(index), frames, upright=True)
        else:
            decode_clip(dataset.entry(index), frames, out=clip)

    def _end(self, pending: _Pending) -> Ready:
        plan, dataset, bad = pending.plan, self._setup.dataset, list(pending.bad)
        for index, future in zip(plan.indices.tolist(), pending.futures, strict=bool(pending.futures)):
            try:
                future.result()
            except Exception as e:
                bad.append(bad_sample(dataset, index, e))
        if bad:
            return Ready(plan, bad=tuple(bad))
        media: list[Any] = [frame for clip in pending.clips for frame in clip]
        return Ready(plan, media, labels_of(dataset, plan), owner=pending.loan)

    def stop(self) -> None:
        for future in self._futures:
            future.cancel()

    def close(self) -> None:
        self.stop()
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(cancel_futures=True)
        self._futures = []
        self.staging.close()

    def facts(self) -> dict[str, Any]:
        from ...codecs.video.decode import pyav_version

        kind = "pinned_" if self.staging.pinned else ""
        return {
            "video": f"{pyav_version()} in {self.threads} thread{'s' * (self.threads > 1)}",
            f"{kind}staging_bytes": self.staging.nbytes,
        }
