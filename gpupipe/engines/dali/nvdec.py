"""Clips decoded on the GPU: a separate pipeline decodes, and passes its frames to the loader's graph.

This was written from DALI's documentation and sources, and never run on a GPU. According to the sources, colors are
always converted by BT.601, which is off by 1 to 3 levels for BT.709; frames of odd width are written past the end of
their memory; the decoder rejects small frames; and frames are matched by a queue of times, which open groups of
pictures put out of order. Edit lists and variable rates are unknown. ``Dali(video="auto")`` therefore does not choose
it, PyAV decodes batches with odd or small frames (:func:`suits`), and ``tests/gpu/test_gpu_video.py`` tests the rest.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from nvidia.dali import Pipeline, fn, types
from torch.utils.dlpack import from_dlpack

from ...codecs.video.decode import decode_clip
from ...errors import BadSample
from ...reading.paths import padded
from ...reading.reader import Loaded, Reader
from ...reading.sample import bad_sample
from ...reading.setup import Setup
from ...reading.targets import targets_of
from ...types import Plan
from ..delivery import delivered, made_current
from .graph import MEDIA, encoded, new_pipeline
from .messages import clean

FRAMES = "frames"

SMALLEST = 144
"""Pixels: smallest side of HEVC that NVDEC decodes; 128 for AV1 and VP9."""

log = logging.getLogger("gpupipe")


class NvdecReader(Reader):
    """Decodes ``prefetch_factor`` plans ahead on the GPU.

    PyAV decodes batches that the GPU's decoder rejects. Samples that it rejects too are bad; the rest is delivered.
    """

    def __init__(self, setup: Setup):
        self._setup = setup
        self._device = torch.device(setup.device)
        self._pipe: Pipeline | None = None
        self._scheduled = 0
        self._refused = 0
        self._missing = False
        """Whether the GPU's decoder cannot be used at all."""

    def run(self, plans: Iterator[Plan]) -> Iterator[Loaded]:
        if self._scheduled:  # from an abandoned run; DALI cannot cancel it
            self._pipe, self._scheduled = None, 0
        return self._decoded(plans)

    def _decoded(self, plans: Iterator[Plan]) -> Iterator[Loaded]:
        pending: deque[tuple[Plan, list[BadSample], bool]] = deque()  # the last: whether it is scheduled
        failure: Exception | None = None
        more = True
        while True:
            while more and len(pending) < self._setup.prefetch_factor:
                try:
                    plan = next(plans, None)
                except Exception as e:
                    plan, failure = None, e  # earlier plans are good
                if plan is None:
                    more = False
                    continue
                bad = self._setup.dataset.bad(plan.indices)
                scheduled = not bad and suits(plan) and self._schedule(plan)
                pending.append((plan, bad, scheduled))
            if not pending:
                if failure is not None:
                    raise failure
                return
            plan, bad, scheduled = pending.popleft()
            if bad:
                yield Loaded(plan, bad=tuple(bad))
            elif scheduled:
                # If the decoder fails on this batch, the others in flight must be begun again.
                yield self._outputs(plan, [p for p, _, waits in pending if waits])
            else:
                self._refused += 1
                yield self._by_pyav(plan)

    def _schedule(self, plan: Plan) -> bool:
        """Begin a batch. Return ``False`` if the GPU's decoder cannot be used."""
        if not self._is_built():
            return False
        assert self._pipe is not None
        paths = self._setup.dataset.encoded_paths(plan.indices)
        assert plan.frames is not None
        self._pipe.feed_input(MEDIA, padded(paths))
        self._pipe.feed_input(FRAMES, np.ascontiguousarray(plan.frames, np.int32))
        self._pipe._run_once()
        self._scheduled += 1
        return True

    def _is_built(self) -> bool:
        if self._pipe is None and not self._missing:
            try:
                self._pipe = decoding_pipeline(self._setup, self._device.index if self._setup.cuda else None)
            except RuntimeError as e:  # a container without libnvcuvid
                self._missing = True
                log.warning("the GPU's video decoder cannot be used, so PyAV decodes all clips: %s", clean(str(e)))
        return self._pipe is not None

    def _outputs(self, plan: Plan, following: list[Plan]) -> Loaded:
        if self._pipe is None:  # rebuilding failed
            return self._by_pyav(plan)
        self._scheduled -= 1
        stream = {"cuda_stream": torch.cuda.current_stream(self._device).cuda_stream} if self._setup.cuda else {}
        try:
            with made_current(self._device):
                (clips,) = self._pipe.outputs(**stream)
            decoded = [from_dlpack(clips[i]) for i in range(len(plan))]
            self._check(plan, decoded)
        except (RuntimeError, ValueError) as e:
            self._rebuild(following, e)
            return self._by_pyav(plan)
        # The frames point into DALI's memory, which is kept until the consumer's stream has finished with it.
        return Loaded(plan, _frames(decoded), targets_of(self._setup.dataset, plan), owner=clips)

    def _check(self, plan: Plan, decoded: list[torch.Tensor]) -> None:
        assert plan.sizes is not None and plan.frames is not None
        for index, clip, (height, width) in zip(plan.indices.tolist(), decoded, plan.sizes.tolist(), strict=True):
            wanted = (plan.frames.shape[1], height, width, 3)
            if tuple(clip.shape) != wanted:
                name = self._setup.dataset.describe(index)
                raise ValueError(f"{name}: decoded to {list(clip.shape)}, not to {list(wanted)}")

    def _rebuild(self, following: list[Plan], error: Exception) -> None:
        """Rebuild the pipeline after the decoder rejected a batch, and decode everything in flight again."""
        self._refused += 1
        if self._refused == 1:
            log.warning("the GPU's video decoder refused a batch, which PyAV decodes instead: %s", clean(str(error)))
        self._pipe, self._scheduled = None, 0
        for other in following:
            self._schedule(other)

    def _by_pyav(self, plan: Plan) -> Loaded:
        """Decode a batch that the decoder rejected, or must not get."""
        dataset, bad = self._setup.dataset, []
        assert plan.frames is not None
        frames = plan.frames

        def decode(row: int) -> Any:
            try:
                return torch.from_numpy(decode_clip(dataset.entry(int(plan.indices[row])), frames[row]))
            except Exception as e:
                return e

        with ThreadPoolExecutor(self._setup.threads) as pool:
            made = list(pool.map(decode, range(len(plan))))
        for index, clip in zip(plan.indices.tolist(), made, strict=True):
            if isinstance(clip, Exception):
                bad.append(bad_sample(dataset, index, clip))
        if bad:
            return Loaded(plan, bad=tuple(bad))
        clips = delivered(made, self._device, pin_memory=False)
        return Loaded(plan, _frames(clips), targets_of(dataset, plan), owner=clips)

    def stop(self) -> None:
        """Do nothing: work in flight ends by itself, and the next run starts with a new pipeline."""

    def close(self) -> None:
        self._pipe, self._scheduled = None, 0

    def facts(self) -> dict[str, Any]:
        if self._missing:
            return {"video": "PyAV, because NVDEC cannot be used"}
        refused = f", PyAV instead {self._refused} times" if self._refused else ""
        return {"video": f"NVDEC (never verified){refused}"}


def suits(plan: Plan) -> bool:
    """Return whether the decoder may get a batch: no frame has an odd or a small side."""
    assert plan.sizes is not None
    return bool((plan.sizes % 2 == 0).all() and (plan.sizes >= SMALLEST).all())


def decoding_pipeline(setup: Setup, device_id: int | None) -> Pipeline:
    """Return a pipeline from files and frame numbers to clips u8[T, H, W, 3].

    ``device_id=None`` is DALI's CPU decoder, which has few codecs and other colors, to test everything but the decoder.
    """
    pipe = new_pipeline(
        batch_size=setup.batch_size,
        num_threads=setup.threads,
        device_id=device_id,
        prefetch=setup.prefetch_factor,
    )
    with pipe:
        files = encoded("paths")
        numbers = fn.external_source(name=FRAMES, dtype=types.INT32, ndim=1, device="cpu")
        pipe.set_outputs(fn.decoders.video(files, frames=numbers, device="cpu" if device_id is None else "mixed"))
    pipe.build()
    return pipe


def _frames(clips: list[torch.Tensor]) -> list[torch.Tensor]:
    """Return all frames of all clips, u8[H, W, 3] each, as views."""
    return [frame for clip in clips for frame in clip.unbind(0)]
