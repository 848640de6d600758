"""The DALI engine: feeds plans to one pipeline object and returns its outputs without a copy."""

from __future__ import annotations

import contextlib
import logging
import time
from collections import deque
from collections.abc import Iterator
from functools import partial
from typing import Any

import nvidia.dali
import torch

from ... import system
from ...errors import EngineError, SampleError
from ...reading.choose import feed_of, reader_for
from ...reading.reader import Feed, Loaded, Reader
from ...reading.setup import Setup
from ...types import Batch, Plan
from ..base import Engine, Run
from ..delivery import target_to_device, to_device
from . import pools
from .codings import is_safe
from .executors import Executor, Started
from .graph import ACCEPTS, MEDIA, DecoderOptions, Graph, build_graph, rows_fed, turns_fed
from .messages import clean
from .nvdec import NvdecReader
from .repair import make_as_reference
from .runner import Failed, Runner

log = logging.getLogger("gpupipe")

_REST = 10.0
"""Minimum seconds between two trims of malloc, each of which takes some ten milliseconds."""


class DaliEngine(Engine):
    """Engine that runs DALI. Nothing is built before the first :meth:`run`."""

    def __init__(self, setup: Setup, decoder: DecoderOptions, executor: Executor, *, nvdec: bool = False):
        self.setup = setup
        self.executor = executor
        self.nvdec = nvdec
        self.decoder = decoder
        self._reader: Reader | None = None
        self._rested = 0.0
        self.feed = feed_of(setup, ACCEPTS, is_safe)
        self.runner = Runner(
            partial(_graph, executor, self.feed, decoder, nvdec),
            executor.device,
            ahead=executor.ahead,
            streams_media=nvdec,
        )
        self.unexplained = 0
        """Batches that DALI failed on although Pillow decodes all their samples."""
        self._told = False
        """Whether changed files were logged."""

    @property
    def reader(self) -> Reader:
        if self._reader is None:
            s = self.setup
            self._reader = NvdecReader(s) if self.nvdec else reader_for(s, ACCEPTS, decodes=is_safe)
        return self._reader

    def run(self, plans: Iterator[Plan]) -> DaliRun:
        self.runner.drop()  # remains of an abandoned run
        return DaliRun(self, plans)

    def schedule(self, ready: Loaded) -> Started:
        """Start on one plan, without waiting."""
        ops = self.executor.ops(ready.plan, ready.ops)
        fed: dict[str, Any] = {MEDIA: ready.media}
        if ready.pixels is not None:
            fed |= rows_fed(ready.pixels)
        if ready.turns is not None:
            fed |= turns_fed(ready.turns)
        for inp in self.runner.graph.inputs:
            # An input without a name is not fed. It only checks the op, as for a resize to one size.
            array = inp.array(ops)
            if inp.name:
                fed[inp.name] = array
        return self.executor.start(self.runner, ready, fed)

    def wait(self, started: Started) -> Any:
        """Return the result of :meth:`Executor.wait` for a plan."""
        return self.executor.wait(self.runner, started)

    def finish(self, images: tuple[Any, ...], started: Started) -> Any:
        """Return the result of :meth:`Executor.finish`."""
        return self.executor.finish(self.runner, images, started)

    def decode_with_pillow(self, ready: Loaded, error: RuntimeError) -> Any:
        """Return the images of a plan that DALI failed on, as the torch engine computes them, on the loader's device.

        Raises:
            SampleError: Pillow cannot decode some samples.
            EngineError: Pillow cannot help, because a GPU decoded the frames.
        """
        if self.nvdec:
            raise EngineError(f"DALI failed on frames that it decoded itself: {clean(str(error))}") from error
        images = self._by_pillow(ready)
        self.unexplained += 1
        log.log(
            logging.WARNING if self.unexplained == 1 else logging.INFO,
            "DALI failed on a batch (epoch %d, step %d) whose samples Pillow can decode. It was made as the torch "
            "engine makes it, which is slower. Further ones will be as well, logged at level INFO. DALI reported: %s",
            ready.plan.epoch,
            ready.plan.step,
            clean(str(error)),
        )
        return images

    def decode_changed_files(self, ready: Loaded) -> Any:
        """Return the images of a plan with changed files, made as in the torch engine. Raises :class:`SampleError`."""
        images = self._by_pillow(ready)
        if not self._told:
            self._told = True
            log.warning(
                "files have changed since they were indexed, such as %s: their batches are made as the torch engine "
                "makes them, which is slower; make the dataset again to index them",
                self.setup.dataset.describe(int(ready.plan.indices[ready.exchanged[0]])),
            )
        return images

    def _by_pillow(self, ready: Loaded) -> Any:
        bad, images = make_as_reference(self.setup, ready)
        if bad:
            raise SampleError(bad) from None
        return to_device(images, self.setup)

    def rest(self) -> None:
        """Trim malloc: memory that DALI freed leaves holes, more of them in every epoch."""
        if time.monotonic() - self._rested > _REST:
            system.trim()
            self._rested = time.monotonic()

    def close(self) -> None:
        built = self.runner.is_built
        # Before the reader, whose memory DALI reads in place.
        self.runner.reset()
        if self._reader is not None:
            self._reader.close()
        self._reader = None
        self.executor.close()
        if built:
            # malloc would keep most of what a CPU pipeline frees; see gpupipe.memory. DALI's pools keep all GPU memory.
            system.trim()
            if self.setup.cuda:
                with contextlib.suppress(RuntimeError, EngineError):  # a failed device has nothing to return
                    torch.cuda.synchronize(self.setup.device)  # batches are freed in stream order
                    pools.release()

    def facts(self) -> dict[str, Any]:
        s = self.setup
        return {
            "DALI": nvidia.dali.__version__,
            "backend": "GPU" if self.executor.on_gpu else "CPU",
            "threads": s.threads,
            **self.executor.facts(),
            **({} if self.feed.form == "frames" else {"decoder": self._decodes()}),
            **self.reader.facts(),
        }

    def remarks(self) -> list[str]:
        if not self.unexplained:
            return []
        return [f"{self.unexplained:,} batches that DALI failed on were decoded by Pillow, and no sample was bad"]

    def _decodes(self) -> str:
        if self.feed.form == "pixels":
            return "none"
        if not self.executor.on_gpu:
            return "windows"
        return f"nvJPEG, {'fancy' if self.decoder.jpeg_fancy_upsampling else 'plain'} upsampling"


def _graph(executor: Executor, feed: Feed, decoder: DecoderOptions, nvdec: bool) -> Graph:
    """Build the graph. This is a function because the graph must not refer to the engine, which only the garbage
    collector would then free."""
    setup = executor.setup
    return build_graph(
        setup.pipeline,
        end=executor.end,
        feed=feed,
        decoder=decoder,
        batch_size=setup.batch_size * executor.pictures,
        num_threads=setup.threads,
        prefetch=executor.ahead,
        device_id=executor.device.index if executor.on_gpu else None,
        on_device=nvdec,
    )


class DaliRun(Run):
    """One pass over plans, with at most ``prefetch_factor`` plans in flight.

    The consumer's own ``next()`` tops them up: feeding is cheap and waits for nothing, so it needs no thread. It waits
    for a read only if nothing is in flight.
    Threads that continue after the graph wait for DALI and feed it the pieces, so everything in flight proceeds while
    the consumer works on a batch.
    """

    def __init__(self, engine: DaliEngine, plans: Iterator[Plan]):
        self._engine = engine
        self._feed = engine.reader.run(plans)
        self._flight: deque[Started] = deque()
        self._failure: Exception | None = None
        """Error from creating the plan after those in flight."""
        self._failing = self._rebuilt = False
        """Whether DALI failed on the last batch, and whether its pipeline was rebuilt since a batch succeeded."""
        self._closed = False

    def __next__(self) -> Batch:
        try:
            return self._next()
        except (SampleError, StopIteration):
            raise
        except BaseException:
            # After an interruption between two feeds, or between a run and its output, inputs and outputs no longer
            # match: only a new pipeline object is safe.
            self._engine.runner.reset()
            self.close()
            raise

    def _next(self) -> Batch:
        if not self._flight:
            self._start_one(wait=True)
        self._top_up()
        if not self._flight:
            raise self._failure or StopIteration
        one = self._flight.popleft()
        images, keep = self._images(one)
        target = target_to_device(one.ready.target, self._engine.setup)
        return Batch(images, target, one.ready.plan, keep)

    def _images(self, one: Started) -> tuple[Any, Any]:
        """Return the images of a plan, and objects that must live as long. Waits."""
        engine, ready = self._engine, one.ready
        if ready.bad:
            raise SampleError(ready.bad)
        if ready.exchanged:
            return engine.decode_changed_files(ready), None
        if one.goes_on:
            self._top_up()  # threads continue with the next batch when this one has nothing left to begin
        try:
            made = engine.wait(one)
        except Failed as e:
            return self._recovered(one, e.error), None
        self._failing = self._rebuilt = False
        self._top_up()  # DALI continues while the consumer works on a batch
        # DALI reads bytes and pixels in place, and may not have finished on a GPU.
        return engine.finish(made, one), (made, ready) if engine.executor.on_gpu else None

    def _top_up(self) -> None:
        """Start on plans that are read. A batch that is done must not wait for the reads of later ones."""
        while len(self._flight) < self._engine.setup.prefetch_factor and self._start_one(wait=False):
            pass

    def _start_one(self, *, wait: bool) -> bool:
        """Start on the next plan. Returns ``False`` if there is none, or none that is read unless ``wait`` is set."""
        if self._closed or self._failure is not None:
            return False
        try:
            ready = next(self._feed, None) if wait or self._engine.reader.is_ready() else None
        except Exception as e:
            self._failure = e  # raising now would lose a good batch
            return False
        if ready is None:
            return False
        # DALI gets nothing of these plans: they raise an error, or the reference makes them.
        skipped = bool(ready.bad or ready.exchanged)
        self._flight.append(Started(ready) if skipped else self._engine.schedule(ready))
        return True

    def _recovered(self, failed: Started, error: RuntimeError) -> Any:
        """Return the images of a batch that DALI failed on, or raise :class:`SampleError`.

        DALI continues with the batches in flight. If it fails on the next one too, and no sample is to blame, its
        pipeline object is rebuilt, once.
        """
        images = self._engine.decode_with_pillow(failed.ready, error)
        if self._failing and not self._rebuilt:
            self._rebuilt = True
            self._engine.runner.rebuild()
        self._failing = True
        return images

    def close(self) -> None:
        self._closed, self._failure = True, None
        while self._flight:
            self._flight.popleft().give_up()
        self._engine.reader.stop()
