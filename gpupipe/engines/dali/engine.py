"""The DALI engine: feeds plans to one pipeline object and hands its outputs out without a copy."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterator
from typing import Any

import nvidia.dali
import torch
from torch.utils.dlpack import from_dlpack

from ...errors import BadSample, EngineError, SampleError
from ...types import Batch, Plan
from ..base import Engine, Run, Setup
from ..handover import Lease, to_device
from .feed import Feeder, Ready, feeder_for
from .graph import MEDIA, DecoderOptions, Graph, build_graph
from .recover import Probe, clean

__all__ = ["DaliEngine"]


class DaliEngine(Engine):
    """See the module. Nothing is built before the first :meth:`run`."""

    def __init__(self, setup: Setup, decoder: DecoderOptions):
        self.setup = setup
        self.decoder = decoder
        self.device = torch.device(setup.device)
        self._graph: Graph | None = None
        self._feeder: Feeder | None = None
        self._probe: Probe | None = None
        self.scheduled = 0

    @property
    def graph(self) -> Graph:
        if self._graph is None:
            s = self.setup
            self._graph = build_graph(
                s.pipeline,
                media=s.dataset.media,
                decoder=self.decoder,
                batch_size=s.batch_size,
                num_threads=max(s.num_workers, 1),
                prefetch=s.prefetch_factor,
                device_id=self.device.index if s.cuda else None,
            )
            self._graph.pipe.build()
        return self._graph

    @property
    def feeder(self) -> Feeder:
        if self._feeder is None:
            self._feeder = feeder_for(self.setup)
        return self._feeder

    def run(self, plans: Iterator[Plan]) -> DaliRun:
        while self.scheduled:  # what an abandoned run left in flight; DALI cannot cancel it
            with contextlib.suppress(RuntimeError):
                self.outputs()
        return DaliRun(self, plans)

    def _stream(self) -> dict[str, Any]:
        """On a GPU the output is ordered after DALI's work on the consumer's stream, and the host does not wait."""
        return {"cuda_stream": torch.cuda.current_stream(self.device).cuda_stream} if self.setup.cuda else {}

    def schedule(self, ready: Ready) -> None:
        """Feed one plan and start on it. Does not wait."""
        graph, ops = self.graph, ready.plan.ops
        assert ops is not None
        graph.pipe.feed_input(MEDIA, ready.media)
        for inp in graph.inputs:
            array = inp.read(ops[inp.op])
            if inp.name:
                graph.pipe.feed_input(inp.name, array)
        # schedule_run() would start prefetch_queue_depth iterations at its first call, fed or not.
        graph.pipe._run_once()
        self.scheduled += 1

    def outputs(self) -> Any:
        """DALI's list of images of the oldest scheduled plan; raises RuntimeError where that plan failed."""
        self.scheduled -= 1
        (images,) = self.graph.pipe.outputs(**self._stream())
        return images

    def find_bad(self, ready: Ready) -> list[BadSample]:
        """Decode the samples of a failed plan one at a time."""
        dataset, plan = self.setup.dataset, ready.plan
        if dataset.media == "array":
            return []
        if self._probe is None:
            self._probe = Probe(dataset.media, self.decoder, self.device.index if self.setup.cuda else None)
        found: dict[int, BadSample] = {}
        for row, index in enumerate(plan.indices.tolist()):
            size = None if plan.sizes is None else plan.sizes[row]
            bad = self._probe.examine(index, dataset.describe(index), ready.media[row], size)
            if bad is not None:
                found[index] = bad
        return list(found.values())

    def rebuild(self) -> None:
        """Throw the pipeline object away; the next access builds another."""
        self._graph = None
        self.scheduled = 0

    def close(self) -> None:
        if self._feeder is not None:
            self._feeder.close()
        self._feeder = self._graph = self._probe = None
        self.scheduled = 0

    def facts(self) -> dict[str, Any]:
        s = self.setup
        return {
            "DALI": nvidia.dali.__version__,
            "backend": "GPU" if s.cuda else "CPU",
            "threads": max(s.num_workers, 1),
            "decoder": ("window only" if self.decoder.roi else "whole image") if s.dataset.media != "array" else "none",
        }


class DaliRun(Run):
    """One pass. Keeps at most ``prefetch_factor`` plans in flight, topped up by the consumer's own ``next()``:
    feeding is cheap and does not wait for DALI, so no thread is needed for it."""

    def __init__(self, engine: DaliEngine, plans: Iterator[Plan]):
        self._engine = engine
        self._feed = engine.feeder.run(plans)
        self._flight: deque[Ready] = deque()
        self._lease = Lease(engine.device) if engine.setup.cuda else None
        self._failure: Exception | None = None
        """What went wrong in making the plan behind those in flight."""
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
        if self._lease is not None:
            self._lease.renew()
        self._top_up()
        if not self._flight:
            raise self._failure or StopIteration
        ready = self._flight.popleft()
        if ready.bad:
            raise SampleError(ready.bad)
        try:
            images = self._engine.outputs()
        except RuntimeError as e:
            images = self._recover(ready, e)
        self._top_up()  # DALI goes on while the consumer works on this batch
        if self._lease is not None:
            self._lease.take((images, ready.owner))
        tensor = from_dlpack(images.as_tensor())
        if self._engine.setup.pipeline.memory_format == "channels_last":
            tensor = tensor.permute(0, 3, 1, 2)
        if self._engine.setup.pipeline.output.dtype == "bfloat16":
            tensor = tensor.to(torch.bfloat16)
        return Batch(tensor, to_device(ready.target, self._engine.setup), ready.plan)

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

    def _recover(self, failed: Ready, error: RuntimeError) -> Any:
        """Name the bad samples; where there are none, the pipeline itself is broken: build it anew, once."""
        bad = self._engine.find_bad(failed)
        if bad:
            raise SampleError(bad) from None
        self._engine.rebuild()
        try:
            for ready in (failed, *self._flight):
                if not ready.bad:
                    self._engine.schedule(ready)
            return self._engine.outputs()
        except RuntimeError:
            raise EngineError(f"DALI failed, and no sample is to blame: {clean(str(error))}") from error

    def close(self) -> None:
        self._closed, self._failure = True, None
        self._flight.clear()
        self._engine.feeder.stop()
        if self._lease is not None:
            self._lease.end()
