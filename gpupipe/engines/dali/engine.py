"""The DALI engine: feeds plans to one pipeline object and hands its outputs out without a copy."""

from __future__ import annotations

import contextlib
import logging
import time
import weakref
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import nvidia.dali
import torch
from torch.utils.dlpack import from_dlpack

from ...codecs.retry import waits
from ...errors import BadSample, EngineError, SampleError
from ...memory import system
from ...planning.epoch import clip_length
from ...reading.base import Loaded, Reader
from ...reading.buffers import Borrowed
from ...reading.choose import reader_for
from ...reading.sample import bad_sample, changed
from ...reading.setup import Setup
from ...transforms.ops import Op
from ...types import Batch, Plan
from ..base import Engine, Run
from ..delivery import made_current, to_device
from ..forms.apply import apply_batch
from ..forms.clip_layout import repeat_per_frame, to_clip_layout
from ..forms.image_threads import ImageThreads
from . import pools
from .codings import is_exact
from .decoder import nvjpeg_version
from .find_bad import BadSampleFinder, Suspect, clean
from .graph import ACCEPTS, MEDIA, DecoderOptions, Graph, build_graph, fed
from .nvdec import NvdecReader

__all__ = ["DaliEngine"]

log = logging.getLogger("gpupipe")

_REST = 10.0
"""Seconds between two trims of malloc, at least: one takes some ten milliseconds."""

_WAITS = (0.0, 0.1, 0.5, 2.0)
"""Seconds before each further attempt at a batch that failed without a bad sample."""


class DaliEngine(Engine):
    """See the module. Nothing is built before the first :meth:`run`."""

    def __init__(self, setup: Setup, decoder: DecoderOptions, *, nvdec: bool = False):
        self.setup = setup
        self.frames = clip_length(setup.dataset, setup.pipeline)
        """Of a clip; to DALI each is an image."""
        self.nvdec = nvdec
        self.decoder = decoder
        self.device = torch.device(setup.device)
        self._graph: Graph | None = None
        self._reader: Reader | None = None
        self._probe: BadSampleFinder | None = None
        self._threads = ImageThreads(setup.threads)
        self._rested = 0.0
        self._scheduled: deque[Loaded] = deque()
        """What DALI works on, oldest first: it reads their bytes in place."""

    @property
    def graph(self) -> Graph:
        if self._graph is None:
            s = self.setup
            self._graph = build_graph(
                s.pipeline,
                form=fed(s, nvdec=self.nvdec),
                decoder=self.decoder,
                batch_size=s.batch_size * self.frames,
                num_threads=s.threads,
                prefetch=s.prefetch_factor,
                device_id=self.device.index if s.cuda else None,
                common=s.dataset.common_size,
            )
            self._graph.pipe.build()
        return self._graph

    @property
    def reader(self) -> Reader:
        if self._reader is None:
            s = self.setup
            self._reader = NvdecReader(s) if self.nvdec else reader_for(s, ACCEPTS, decodes=is_exact)
        return self._reader

    def _ops(self, plan: Plan) -> tuple[Op, ...]:
        """The ops of a plan with one row for each image that DALI is fed."""
        assert plan.ops is not None
        return plan.ops if plan.frames is None else repeat_per_frame(plan.ops, self.frames)

    def run(self, plans: Iterator[Plan]) -> DaliRun:
        while self._scheduled:  # what an abandoned run left in flight; DALI cannot cancel it
            with contextlib.suppress(RuntimeError):
                self.outputs()
        return DaliRun(self, plans)

    def _stream(self) -> dict[str, Any]:
        """On a GPU the output is ordered after DALI's work on the consumer's stream, and the host does not wait."""
        return {"cuda_stream": torch.cuda.current_stream(self.device).cuda_stream} if self.setup.cuda else {}

    def schedule(self, ready: Loaded) -> None:
        """Feed one plan and start on it. Does not wait."""
        graph, ops = self.graph, self._ops(ready.plan)
        with made_current(self.device):
            graph.pipe.feed_input(MEDIA, ready.media, **(self._stream() if self.nvdec else {}))
        for inp in graph.inputs:
            array = inp.array(ops)
            if inp.name:
                graph.pipe.feed_input(inp.name, array)
        # schedule_run() would start prefetch_queue_depth iterations at its first call, fed or not.
        graph.pipe._run_once()
        self._scheduled.append(ready)

    def outputs(self) -> tuple[Any, Any]:
        """The images of the oldest scheduled plan, one list for each view, and i64[B, 3] their shapes before any
        transform (``None`` of arrays), as DALI's lists. Raises RuntimeError where that plan failed."""
        graph, done = self.graph, self._scheduled.popleft()
        with made_current(self.device):
            images = graph.pipe.outputs(**self._stream())
        del done  # now, and not before
        views = len(graph.outputs)
        return tuple(images[:views]), images[views] if len(images) > views else None

    def finish(self, images: tuple[Any, ...], ready: Loaded) -> Any:
        """[B, C, H, W] of DALI's lists, or a tuple of such for several views: what the graph left to do is done. Clips
        come in the dataset's layout."""
        plan, graph, made = ready.plan, self.graph, []
        memory_format, dataset = self.setup.pipeline.memory_format, self.setup.dataset
        for one, rest, output in zip(images, graph.cut.rest(self._ops(plan)), graph.outputs, strict=True):
            tensor = from_dlpack(one.as_tensor())
            if output.layout == "HWC":
                tensor = tensor.permute(0, 3, 1, 2)
            if output.dtype == "bfloat16":
                tensor = tensor.to(torch.bfloat16)
            if rest:
                tensor = self._apply(tensor, rest, memory_format)
            if plan.frames is not None:
                tensor = to_clip_layout(tensor, self.frames, dataset.layout, memory_format)
                if isinstance(ready.owner, Borrowed) and ready.owner.holds(tensor):
                    tensor = tensor.clone()  # what DALI passed through is decoded into again
            made.append(tensor)
        return made[0] if len(made) == 1 and not graph.cut.branches else tuple(made)

    def _apply(self, batch: torch.Tensor, ops: Sequence[Op], memory_format: str) -> Any:
        if self.setup.cuda:
            return apply_batch(batch, ops, memory_format)
        return self._threads.apply(batch, ops, memory_format)

    def changed(self, plan: Plan, shapes: Any) -> list[BadSample]:
        """Samples that are not of the size that the plan was made for."""
        if shapes is None or plan.sizes is None:
            return []
        now = np.asarray(shapes.as_array())[:, :2]
        same = (now == plan.sizes).all(axis=1)
        if not self.decoder.exif:  # DALI tells the upright shape in any case
            same |= (now[:, ::-1] == plan.sizes).all(axis=1)
        return [
            bad_sample(self.setup.dataset, index, changed(tuple(plan.sizes[row]), tuple(now[row])))
            for row in np.flatnonzero(~same)
            for index in (int(plan.indices[row]),)
        ]

    def find_bad(self, ready: Loaded) -> list[BadSample]:
        """The bad samples of a plan that failed; costs one more decode of it."""
        s, plan = self.setup, ready.plan
        form = fed(s)
        if form not in ("paths", "encoded"):
            return []
        if self._probe is None:
            device_id = self.device.index if s.cuda else None
            self._probe = BadSampleFinder(form, self.decoder, device_id, s.threads)
        rows = {index: row for row, index in enumerate(plan.indices.tolist())}  # a sample may be there twice
        sizes = plan.sizes
        return self._probe.find(
            [
                Suspect(index, s.dataset.describe(index), ready.media[row], None if sizes is None else sizes[row])
                for index, row in rows.items()
            ]
        )

    def rest(self) -> None:
        """An epoch is over. What DALI freed lies in malloc as holes, more of them from epoch to epoch."""
        if time.monotonic() - self._rested > _REST:
            system.trim()
            self._rested = time.monotonic()

    def renew(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()

    def rebuild(self) -> None:
        """Throw the pipeline object away; the next access builds another."""
        self._graph = None
        self._scheduled.clear()

    def close(self) -> None:
        built = self._graph is not None
        self._graph = self._probe = None  # before the memory that they read
        self._scheduled.clear()
        if self._reader is not None:
            self._reader.close()
        self._reader = None
        self._threads.close()
        if built:
            # Of what a CPU pipeline frees, malloc would keep more than it returns; see gpupipe.memory. And DALI's pools
            # keep all of a GPU's.
            system.trim()
            if self.setup.cuda:
                with contextlib.suppress(RuntimeError, EngineError):  # a device that failed has nothing to give back
                    torch.cuda.synchronize(self.device)  # batches are freed in the order of the consumer's stream
                    pools.release()

    def forked(self) -> None:
        for owner in (self._graph, self._probe):
            if owner is not None:  # at exit DALI waits for their threads, which the child does not have
                nvidia.dali.Pipeline._pipes.discard(weakref.ref(owner.pipe))

    def facts(self) -> dict[str, Any]:
        s = self.setup
        return {
            "DALI": nvidia.dali.__version__,
            "backend": "GPU" if s.cuda else "CPU",
            "threads": s.threads,
            **({} if s.dataset.has_frames else {"decoder": self._decodes()}),
            **self.reader.facts(),
        }

    def _decodes(self) -> str:
        if fed(self.setup) == "pixels":
            return "none"
        what = "windows" if self.decoder.roi else "whole images"
        if not self.setup.cuda:
            return what
        version = nvjpeg_version()
        upsampling = "fancy" if self.decoder.jpeg_fancy_upsampling else "plain"
        return f"nvJPEG {'.'.join(map(str, version)) if version else '?'}, {what}, {upsampling} upsampling"


class DaliRun(Run):
    """One pass. Keeps at most ``prefetch_factor`` plans in flight, topped up by the consumer's own ``next()``:
    feeding is cheap and does not wait for DALI, so no thread is needed for it."""

    def __init__(self, engine: DaliEngine, plans: Iterator[Plan]):
        self._engine = engine
        self._feed = engine.reader.run(plans)
        self._flight: deque[Loaded] = deque()
        self._failure: Exception | None = None
        """What went wrong in making the plan behind those in flight."""
        self._closed = False

    def __next__(self) -> Batch:
        try:
            return self._next()
        except SampleError:
            raise
        except StopIteration:
            self._engine.rest()
            raise
        except BaseException:
            # Interrupted between two feeds, or between a run and its output, inputs and outputs would no longer belong
            # together: only a new pipeline object is safe.
            self._engine.rebuild()
            self.close()
            raise

    def _next(self) -> Batch:
        self._top_up()
        if not self._flight:
            raise self._failure or StopIteration
        ready = self._flight.popleft()
        if ready.bad:
            raise SampleError(ready.bad)
        try:
            images, shapes = self._engine.outputs()
        except RuntimeError as e:
            images, shapes = self._recover(ready, e)
        self._top_up()  # DALI goes on while the consumer works on this batch
        bad = self._engine.changed(ready.plan, shapes)
        if bad:
            raise SampleError(bad)
        finished = self._engine.finish(images, ready)
        # DALI reads the bytes in place, and on a GPU may not have done so yet.
        keep = (images, ready.media, ready.owner) if self._engine.setup.cuda else None
        return Batch(finished, to_device(ready.target, self._engine.setup), ready.plan, keep)

    def _top_up(self) -> None:
        room = self._engine.setup.prefetch_factor
        while not self._closed and self._failure is None and len(self._flight) < room:
            try:
                ready = next(self._feed, None)
            except Exception as e:
                self._failure = e  # raised now, it would cost a batch that is good
                return
            if ready is None:
                return
            if not ready.bad:
                self._engine.schedule(ready)
            self._flight.append(ready)

    def _recover(self, failed: Loaded, error: RuntimeError) -> tuple[Any, Any]:
        """Name the bad samples. Where there are none it was something that passes, such as a network file system or the
        limit on open files, or the pipeline object is broken: build it anew and try again, a few times."""
        for wait in waits(_WAITS):
            bad = self._engine.find_bad(failed)
            if bad:
                raise SampleError(bad) from None
            log.warning("DALI failed, and no sample is to blame; trying again in %.2f s: %s", wait, clean(str(error)))
            time.sleep(wait)
            self._engine.rebuild()
            try:
                for ready in (failed, *self._flight):
                    if not ready.bad:
                        self._engine.schedule(ready)
                return self._engine.outputs()
            except RuntimeError as e:
                error = e
        raise EngineError(
            f"DALI failed {len(_WAITS) + 1} times, and no sample is to blame: {clean(str(error))}"
        ) from error

    def close(self) -> None:
        self._closed, self._failure = True, None
        self._flight.clear()
        self._engine.reader.stop()
