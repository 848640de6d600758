"""The DALI engine: feeds plans to one pipeline object and hands its outputs out without a copy."""

from __future__ import annotations

import contextlib
import logging
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import nvidia.dali
import torch
from torch.utils.dlpack import from_dlpack

from ...errors import BadSample, EngineError, SampleError
from ...memory import system
from ...planning.epoch import clip_length
from ...reading.base import Loaded, Reader
from ...reading.buffers import Borrowed
from ...reading.choose import feed_of, nothing, reader_for
from ...reading.sample import bad_sample, changed, naming
from ...reading.scaled import scaled_of
from ...reading.setup import Setup
from ...signal_handlers import pass_on
from ...transforms.ops import Op
from ...types import Batch, Plan
from ..base import Engine, Run
from ..delivery import made_current, to_device
from ..forms.apply import apply_batch
from ..forms.clip_layout import repeat_per_frame, to_clip_layout
from ..forms.image_threads import ImageThreads, Making
from . import pools
from .codings import is_safe
from .decoder import nvjpeg_version
from .graph import ACCEPTS, MEDIA, DecoderOptions, Graph, build_graph, rows_fed, turns_fed
from .graph_end import GraphEnd
from .nvdec import NvdecReader
from .pillow_speed import PillowSpeed
from .second_look import clean, second_look

__all__ = ["DaliEngine"]

log = logging.getLogger("gpupipe")

_REST = 10.0
"""Seconds between two trims of malloc, at least: one takes some ten milliseconds."""


class DaliEngine(Engine):
    """See the module. Nothing is built before the first :meth:`run`."""

    def __init__(self, setup: Setup, decoder: DecoderOptions, end: GraphEnd, *, nvdec: bool = False):
        self.setup = setup
        self.end = end
        self.frames = clip_length(setup.dataset, setup.pipeline)
        """Of a clip; to DALI each is an image."""
        self.nvdec = nvdec
        self.decoder = decoder
        self.device = torch.device(setup.device)
        self._graph: Graph | None = None
        self._reader: Reader | None = None
        self._threads = ImageThreads(setup.threads, keep=2 * len(setup.pipeline.outputs))
        self._rested = 0.0
        decodes, scaled = is_safe if setup.cache is None else nothing, scaled_of(setup) is not None
        self.feed = feed_of(setup.dataset, ACCEPTS, decodes, scaled=scaled)
        self._scheduled: deque[Loaded] = deque()
        """What DALI works on, oldest first: it reads their bytes in place."""
        self.pillow_speed = PillowSpeed()
        self.unexplained = 0
        """Batches that DALI failed on although Pillow decodes all of their samples."""
        self._told = False
        """Whether the log has that files were exchanged."""

    @property
    def on_gpu(self) -> bool:
        """Whether DALI works on one."""
        return self.setup.cuda and not self.end.on_host

    @property
    def graph(self) -> Graph:
        if self._graph is None:
            s = self.setup
            self._graph = build_graph(
                s.pipeline,
                end=self.end,
                feed=self.feed,
                decoder=self.decoder,
                batch_size=s.batch_size * self.frames,
                num_threads=s.threads,
                prefetch=s.prefetch_factor,
                device_id=self.device.index if self.on_gpu else None,
                on_device=self.nvdec,
            )
            self._graph.pipe.build()
        return self._graph

    @property
    def reader(self) -> Reader:
        if self._reader is None:
            s = self.setup
            self._reader = NvdecReader(s) if self.nvdec else reader_for(s, ACCEPTS, decodes=is_safe)
        return self._reader

    def _ops(self, plan: Plan, fed: tuple[Op, ...] | None = None) -> tuple[Op, ...]:
        """The ops of a plan, or those for what is fed instead, with one row for each image."""
        ops = plan.ops if fed is None else fed
        assert ops is not None
        return ops if plan.frames is None else repeat_per_frame(ops, self.frames)

    def run(self, plans: Iterator[Plan]) -> DaliRun:
        while self._scheduled:  # what an abandoned run left in flight; DALI cannot cancel it
            with contextlib.suppress(RuntimeError):
                self.outputs()
        return DaliRun(self, plans)

    def _stream(self) -> dict[str, Any]:
        """On a GPU the output is ordered after DALI's work on the consumer's stream, and the host does not wait."""
        return {"cuda_stream": torch.cuda.current_stream(self.device).cuda_stream} if self.on_gpu else {}

    def schedule(self, ready: Loaded) -> None:
        """Feed one plan and start on it. Does not wait."""
        graph, ops = self.graph, self._ops(ready.plan, ready.ops)
        with made_current(self.device):
            graph.pipe.feed_input(MEDIA, ready.media, **(self._stream() if self.nvdec else {}))
        for fed in (
            {} if ready.pixels is None else rows_fed(ready.pixels),
            {} if ready.turns is None else turns_fed(ready.turns),
        ):
            for name, value in fed.items():
                graph.pipe.feed_input(name, value)
        for inp in graph.inputs:
            array = inp.array(ops)
            if inp.name:
                graph.pipe.feed_input(inp.name, array)
        # schedule_run() would start prefetch_queue_depth iterations at its first call, fed or not.
        graph.pipe._run_once()
        self._scheduled.append(ready)

    def outputs(self) -> tuple[Any, Any]:
        """The images of the oldest scheduled plan, one list for each view, and i64[M, 3] the shapes of those that DALI
        decoded, as their headers have them (``None`` of pixels), as DALI's lists. Raises RuntimeError if that plan
        failed."""
        graph, done = self.graph, self._scheduled.popleft()
        with made_current(self.device):
            images = graph.pipe.outputs(**self._stream())
        del done  # now, and not before
        views = len(graph.outputs)
        return tuple(images[:views]), images[views] if len(images) > views else None

    def start(self, images: tuple[Any, ...], ready: Loaded) -> Callable[[], Any]:
        """Begin on what the graph left to do to the images of DALI's lists; does not wait.

        Returns what makes the batch of it: [B, C, H, W], or a tuple of such for several views, of clips in the
        dataset's layout. It runs user code.
        """
        rests = self.end.rest(self._ops(ready.plan))
        if not self.end.on_host:
            return lambda: self._finish(images, rests, ready)
        arrays, owner = [np.asarray(image) for image in images[0]], (images, ready.owner)
        memory_format = self.setup.pipeline.memory_format
        if self.setup.cuda:  # bytes are sent as they lie, and the device does what is cheaper on a batch
            making = self._threads.start(arrays, rests[0], "channels_last", whole=False, pinned=True, owner=owner)
        else:
            making = self._threads.start(arrays, rests[0], memory_format, owner=owner)
        return lambda: self._finish_on_host(making, ready)

    def _finish(self, images: tuple[Any, ...], rests: tuple[tuple[Op, ...], ...], ready: Loaded) -> Any:
        graph, made = self.graph, []
        memory_format = self.setup.pipeline.memory_format
        for one, rest, output in zip(images, rests, graph.outputs, strict=True):
            tensor = from_dlpack(one.as_tensor())
            if output.layout == "HWC":
                tensor = tensor.permute(0, 3, 1, 2)
            if output.dtype == "bfloat16":
                tensor = tensor.to(torch.bfloat16)
            if rest:
                tensor = apply_batch(tensor, rest, memory_format)
            tensor = self._laid_out(tensor, ready)
            if isinstance(ready.owner, Borrowed) and ready.owner.holds(tensor):
                tensor = tensor.clone()  # what DALI passed through is decoded into again
            made.append(tensor)
        return made[0] if len(made) == 1 and not self.end.branches else tuple(made)

    def _finish_on_host(self, making: Making, ready: Loaded) -> Any:
        memory_format, dataset, indices = self.setup.pipeline.memory_format, self.setup.dataset, ready.plan.indices
        with naming(lambda: dataset.describe(int(indices[making.row // self.frames]))):
            batches = to_device(making.result(), self.setup)
        made = [
            self._laid_out(apply_batch(batch, rest, memory_format), ready)
            for batch, rest in zip(batches, making.rest, strict=True)
        ]
        return tuple(made) if making.has_views else made[0]

    def _laid_out(self, images: torch.Tensor, ready: Loaded) -> torch.Tensor:
        if ready.plan.frames is None:
            return images
        return to_clip_layout(images, self.frames, self.setup.dataset.layout, self.setup.pipeline.memory_format)

    def changed(self, ready: Loaded, shapes: Any) -> list[BadSample]:
        """Samples that are not of the size that the plan was made for."""
        plan = ready.plan
        if shapes is None or plan.sizes is None:
            return []
        rows, planned = np.arange(len(plan)), plan.sizes if ready.sizes is None else ready.sizes
        if ready.turns is not None:  # headers have the size before images are turned
            planned = np.where(ready.turns[:, None] >= 5, planned[:, ::-1], planned)
        if ready.pixels is not None:
            rows = np.array([row for row, pixels in enumerate(ready.pixels) if not len(pixels)], np.int64)
        if not len(rows):
            return []
        now = np.asarray(shapes.as_array())[:, :2]
        return [
            bad_sample(self.setup.dataset, int(plan.indices[row]), changed(tuple(planned[row]), tuple(size)))
            for row, size in zip(rows.tolist(), now.tolist(), strict=True)
            if tuple(planned[row]) != tuple(size)
        ]

    def second_look(self, ready: Loaded, error: RuntimeError) -> Any:
        """The images of a plan that DALI failed on, as the torch engine would make them, on the loader's device.

        Raises:
            SampleError: Pillow refuses samples.
            EngineError: there is nothing that Pillow could decode: a GPU's frames.
        """
        if self.nvdec:
            raise EngineError(f"DALI failed on frames that it decoded itself: {clean(str(error))}") from error
        images = self._by_pillow(ready)
        self.unexplained += 1
        log.log(
            logging.WARNING if self.unexplained == 1 else logging.INFO,
            "DALI failed on a batch (epoch %d, step %d) whose samples Pillow decodes, so it was made as the torch "
            "engine makes it; so will others be, slower than by DALI, and logged at level INFO. DALI said: %s",
            ready.plan.epoch,
            ready.plan.step,
            clean(str(error)),
        )
        return images

    def exchanged(self, ready: Loaded) -> Any:
        """The same of a plan with files that are not those that were indexed. Raises :class:`SampleError`."""
        images = self._by_pillow(ready)
        if not self._told:
            self._told = True
            log.warning(
                "files have changed since they were indexed, such as %s: their batches are made as the torch engine "
                "makes them, slower than by DALI; to have them indexed make the dataset anew",
                self.setup.dataset.describe(int(ready.plan.indices[ready.exchanged[0]])),
            )
        return images

    def _by_pillow(self, ready: Loaded) -> Any:
        ops = self._ops(ready.plan), self._ops(ready.plan, ready.ops)
        bad, images = second_look(self.setup, ready, self.feed.form, *ops)
        if bad:
            raise SampleError(bad) from None
        return to_device(images, self.setup)

    def rest(self) -> None:
        """What DALI freed lies in malloc as holes, more of them from epoch to epoch."""
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
        self._graph = None  # before the memory that they read
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
        if self._graph is not None:  # at exit DALI waits for its threads, which the child does not have
            nvidia.dali.Pipeline._pipes.discard(weakref.ref(self._graph.pipe))

    def facts(self) -> dict[str, Any]:
        s = self.setup
        return {
            "DALI": nvidia.dali.__version__,
            "backend": "GPU" if self.on_gpu else "CPU",
            "threads": s.threads,
            **({"on the host": " + ".join(self.end.names(s.pipeline.skeleton))} if self.end.on_host else {}),
            **({} if s.dataset.has_frames else {"decoder": self._decodes()}),
            **self.reader.facts(),
        }

    def remarks(self) -> list[str]:
        by = (
            ("process", self.setup.num_workers) if self.setup.dataset.runs_user_code else ("thread", self.setup.threads)
        )
        made = self.pillow_speed.remarks(*by)
        if self.unexplained:
            made.append(
                f"{self.unexplained:,} batches that DALI failed on were decoded by Pillow, and no sample was bad"
            )
        return made

    def _decodes(self) -> str:
        if self.feed.form == "pixels":
            return "none"
        what = "windows" if self.decoder.roi else "whole images"
        if not self.on_gpu:
            return what
        version = nvjpeg_version()
        upsampling = "fancy" if self.decoder.jpeg_fancy_upsampling else "plain"
        return f"nvJPEG {'.'.join(map(str, version)) if version else '?'}, {what}, {upsampling} upsampling"


@dataclass(frozen=True)
class _Begun:
    """A plan that DALI is done with."""

    ready: Loaded
    finish: Callable[[], Any] = tuple
    """Makes its images."""
    bad: Sequence[BadSample] = ()
    """Samples that cannot be read; then there are no images."""
    keep: Any = None


class DaliRun(Run):
    """One pass. Keeps at most ``prefetch_factor`` plans in flight, topped up by the consumer's own ``next()``:
    feeding is cheap and does not wait for DALI, so no thread is needed for it.

    If the host goes on after the graph, one of these plans is with its threads: they work on a batch while the consumer
    has the one before.
    """

    def __init__(self, engine: DaliEngine, plans: Iterator[Plan]):
        self._engine = engine
        self._feed = engine.reader.run(plans)
        self._flight: deque[Loaded] = deque()
        self._begun: deque[_Begun] = deque()
        self._ahead = int(engine.end.on_host)
        self._failure: Exception | None = None
        """What went wrong in making the plan behind those in flight."""
        self._failing = self._rebuilt = False
        """Whether DALI failed on the last batch; and whether its pipeline was built anew since one went well."""
        self._closed = False

    def __next__(self) -> Batch:
        try:
            return self._next()
        except (SampleError, StopIteration):
            raise
        except BaseException:
            # Interrupted between two feeds, or between a run and its output, inputs and outputs would no longer belong
            # together: only a new pipeline object is safe.
            self._engine.rebuild()
            self.close()
            raise

    def _next(self) -> Batch:
        self._top_up()
        while self._flight and len(self._begun) <= self._ahead:
            self._begun.append(self._begin(self._flight.popleft()))
            self._top_up()  # DALI goes on while the consumer works on a batch
        if not self._begun:
            raise self._failure or StopIteration
        one = self._begun.popleft()
        if one.bad:
            raise SampleError(one.bad)
        images = one.finish()
        self._engine.pillow_speed.add(*one.ready.by_pillow)
        target = to_device(one.ready.target, self._engine.setup)
        return Batch(images, target, one.ready.plan, one.keep)

    def _begin(self, ready: Loaded) -> _Begun:
        """Wait for DALI to be done with a plan, and let the host go on."""
        if ready.bad:
            return _Begun(ready, bad=ready.bad)
        if ready.exchanged:
            try:
                made = self._engine.exchanged(ready)
            except SampleError as e:
                return _Begun(ready, bad=e.samples)
            return _Begun(ready, lambda: made)
        try:
            images, shapes = self._engine.outputs()
        except RuntimeError as e:
            pass_on(e)
            return self._recover(ready, e)
        self._failing = self._rebuilt = False
        bad = self._engine.changed(ready, shapes)
        if bad:
            return _Begun(ready, bad=bad)
        # DALI reads bytes and pixels in place, and on a GPU may not have done so yet.
        keep = (images, ready) if self._engine.on_gpu else None
        return _Begun(ready, self._engine.start(images, ready), keep=keep)

    def _top_up(self) -> None:
        room = self._engine.setup.prefetch_factor - max(len(self._begun) - 1, 0)  # the first is about to be handed out
        while not self._closed and self._failure is None and len(self._flight) < room:
            try:
                ready = next(self._feed, None)
            except Exception as e:
                pass_on(e)
                self._failure = e  # raised now, it would cost a batch that is good
                return
            if ready is None:
                return
            self._schedule(ready)
            self._flight.append(ready)

    def _schedule(self, ready: Loaded) -> None:
        if not (ready.bad or ready.exchanged):
            self._engine.schedule(ready)

    def _recover(self, failed: Loaded, error: RuntimeError) -> _Begun:
        """The images of a batch that DALI failed on, or :class:`SampleError`. DALI goes on with the batches in flight;
        if it fails on the next one as well, and no sample is to blame, its pipeline object is built anew, once."""
        try:
            images = self._engine.second_look(failed, error)
        except SampleError as e:
            return _Begun(failed, bad=e.samples)
        if self._failing and not self._rebuilt:
            self._rebuilt = True
            self._engine.rebuild()
            for ready in self._flight:
                self._schedule(ready)
        self._failing = True
        return _Begun(failed, lambda: images)

    def close(self) -> None:
        self._closed, self._failure = True, None
        self._flight.clear()
        self._begun.clear()
        self._engine.reader.stop()
