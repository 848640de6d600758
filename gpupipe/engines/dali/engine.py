"""The DALI engine: feeds plans to one pipeline object and hands its outputs out without a copy."""

from __future__ import annotations

import contextlib
import logging
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import nvidia.dali
import torch
from torch.utils.dlpack import from_dlpack

from ... import system
from ...errors import BadSample, EngineError, SampleError
from ...kernels.apply import apply_batch
from ...kernels.clip_layout import repeat_per_frame, to_clip_layout
from ...planning.epoch import clip_length
from ...reading.base import Feed, Loaded, Reader
from ...reading.buffers import Borrowed
from ...reading.choose import feed_of, reader_for
from ...reading.sample import bad_sample, changed, naming
from ...reading.setup import Setup
from ...signal_handlers import pass_on
from ...transforms.ops import Op
from ...types import Batch, Plan
from ..base import Engine, Run
from ..delivery import to_device
from ..host.image_threads import ImageThreads, Making
from ..pillow_speed import PillowSpeed
from . import pools
from .codings import is_safe
from .decoder import nvjpeg_version
from .graph import ACCEPTS, MEDIA, DecoderOptions, Graph, build_graph, rows_fed, turns_fed
from .graph_end import GraphEnd
from .messages import clean
from .nvdec import NvdecReader
from .pieces import AHEAD, rows_of_pieces
from .runner import Failed, Piece, Runner
from .second_look import make_as_reference

__all__ = ["DaliEngine"]

log = logging.getLogger("gpupipe")

_REST = 10.0
"""Seconds between two trims of malloc, at least: one takes some ten milliseconds."""


class DaliEngine(Engine):
    """See the module. Nothing is built before the first :meth:`run`."""

    def __init__(self, setup: Setup, decoder: DecoderOptions, end: GraphEnd, *, nvdec: bool = False):
        self.setup = setup
        self.most = setup.batch_size
        self.end = end
        self.frames = clip_length(setup.dataset, setup.pipeline)
        """Of a clip; to DALI each is an image."""
        self.nvdec = nvdec
        self.decoder = decoder
        self.device = torch.device(setup.device)
        self._reader: Reader | None = None
        self._threads = ImageThreads(setup.threads, keep=2 * len(setup.pipeline.outputs))
        self._rested = 0.0
        self.feed = feed_of(setup, ACCEPTS, is_safe)
        self.runner = Runner(
            partial(_graph, setup, end, self.feed, decoder, self.frames, nvdec),
            self.device if self.on_gpu else torch.device("cpu"),
            ahead=AHEAD if end.on_host else setup.prefetch_factor,
            streams_media=nvdec,
        )
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
        self.runner.drop()  # what an abandoned run left
        return DaliRun(self, plans)

    def schedule(self, ready: Loaded) -> Started:
        """Start on one plan. Does not wait."""
        if not self.end.on_host:
            piece = Piece(ready, slice(None), self._fed(ready))
            self.runner.add([piece])
            self.runner.begin()
            return Started(ready, (piece,))
        count, fed = len(ready.plan) * self.frames, self._fed(ready)
        pieces = tuple(
            Piece(ready, rows, {name: value[rows] for name, value in fed.items()})
            for rows in rows_of_pieces(ready, count, self.setup.threads)
        )
        self.runner.add(pieces)
        images, (rest,) = _images(self.runner, self.setup, ready, pieces), self.end.rest(self._ops(ready.plan))
        if self.setup.cuda:  # bytes are sent as they lie, and the device does what is cheaper on a batch
            making = self._threads.start(count, images, rest, "channels_last", whole=False, pinned=True)
        else:
            making = self._threads.start(count, images, rest, self.setup.pipeline.memory_format)
        return Started(ready, pieces, making)

    def _fed(self, ready: Loaded) -> dict[str, Any]:
        """By name of the input, for all rows."""
        ops = self._ops(ready.plan, ready.ops)
        fed: dict[str, Any] = {MEDIA: ready.media}
        if ready.pixels is not None:
            fed |= rows_fed(ready.pixels)
        if ready.turns is not None:
            fed |= turns_fed(ready.turns)
        for inp in self.runner.graph.inputs:
            array = inp.array(ops)
            if inp.name:
                fed[inp.name] = array
        return fed

    def wait(self, one: Started) -> tuple[Any, ...]:
        """The images of a plan, one for each view: DALI's lists or, if the host goes on, tensors with
        :attr:`Making.rest` to do. Runs user code for single images.

        Raises :class:`Failed`, or :class:`SampleError` if samples are not of the size that the plan was made for.
        """
        if one.making is None:
            (piece,) = one.pieces
            lists, shapes = self.runner.get(piece)
            bad = _changed(self.setup, piece, shapes)
            if bad:
                raise SampleError(bad)
            return lists
        making, dataset, indices = one.making, self.setup.dataset, one.ready.plan.indices
        with naming(lambda: dataset.describe(int(indices[making.row // self.frames]))):
            return making.result()

    def finish(self, images: tuple[Any, ...], one: Started) -> Any:
        """The batch of what :meth:`wait` gave: [B, C, H, W], or a tuple of such for several views, of clips in the
        dataset's layout. Runs user code for batches."""
        memory_format, ready = self.setup.pipeline.memory_format, one.ready
        if one.making is not None:
            rested = zip(to_device(images, self.setup), one.making.rest, strict=True)
            made = [self._laid_out(apply_batch(batch, rest, memory_format), ready) for batch, rest in rested]
            return tuple(made) if one.making.has_views else made[0]
        made, rests = [], self.end.rest(self._ops(ready.plan))
        for one_view, rest, output in zip(images, rests, self.runner.graph.outputs, strict=True):
            tensor = from_dlpack(one_view.as_tensor())
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

    def _laid_out(self, images: torch.Tensor, ready: Loaded) -> torch.Tensor:
        if ready.plan.frames is None:
            return images
        return to_clip_layout(images, self.frames, self.setup.dataset.layout, self.setup.pipeline.memory_format)

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
        bad, images = make_as_reference(self.setup, ready, self.feed.form)
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

    def close(self) -> None:
        built = self.runner.is_built
        self.runner.reset()
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
        self.runner.forked()

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


def _graph(setup: Setup, end: GraphEnd, feed: Feed, decoder: DecoderOptions, frames: int, nvdec: bool) -> Graph:
    """Of which nothing holds the engine: what does would be freed by the collector only."""
    device = torch.device(setup.device)
    return build_graph(
        setup.pipeline,
        end=end,
        feed=feed,
        decoder=decoder,
        batch_size=setup.batch_size * setup.dataset.images_per_sample * frames,
        num_threads=setup.threads,
        prefetch=AHEAD if end.on_host else setup.prefetch_factor,
        device_id=device.index if setup.cuda and not end.on_host else None,
        on_device=nvdec,
    )


def _images(runner: Runner, setup: Setup, ready: Loaded, pieces: Sequence[Piece]) -> Iterator[tuple[Any, Any]]:
    """u8[H, W, C] of a batch, each with what it points into. Waits for DALI. Raises as :meth:`DaliEngine.wait`."""
    bad: list[BadSample] = []
    for piece in pieces:
        try:
            (images,), shapes = runner.get(piece)
        except Failed:
            for other in pieces:
                other.wanted = False
            raise
        bad += _changed(setup, piece, shapes)
        if not bad:
            owner = images, ready.owner
            for image in images:
                yield np.asarray(image), owner
    if bad:
        raise SampleError(bad)


def _changed(setup: Setup, piece: Piece, shapes: Any) -> list[BadSample]:
    """Samples of a piece that are not of the size that the plan was made for."""
    ready, plan = piece.ready, piece.ready.plan
    if shapes is None or plan.sizes is None:
        return []
    rows, planned = np.arange(len(plan))[piece.rows], plan.sizes if ready.sizes is None else ready.sizes
    if ready.turns is not None:  # headers have the size before images are turned
        planned = np.where(ready.turns[:, None] >= 5, planned[:, ::-1], planned)
    if ready.pixels is not None:
        rows = np.array([row for row in rows.tolist() if not len(ready.pixels[row])], np.int64)
    if not len(rows):
        return []
    now = np.asarray(shapes.as_array())[:, :2]
    return [
        bad_sample(setup.dataset, int(plan.indices[row]), changed(tuple(planned[row]), tuple(size)))
        for row, size in zip(rows.tolist(), now.tolist(), strict=True)
        if tuple(planned[row]) != tuple(size)
    ]


@dataclass(frozen=True)
class Started:
    """A plan on its way."""

    ready: Loaded
    pieces: tuple[Piece, ...] = ()
    """None of what DALI does not get."""
    making: Making | None = None
    """The batch, if the host goes on after the graph."""

    def give_up(self) -> None:
        """Begin nothing else of it."""
        for piece in self.pieces:
            piece.wanted = False
        if self.making is not None:
            self.making.cancel()


class DaliRun(Run):
    """One pass. Keeps at most ``prefetch_factor`` plans in flight, topped up by the consumer's own ``next()``: feeding
    is cheap and does not wait for DALI, so no thread is needed for it.

    If the host goes on after the graph, its threads wait for DALI and feed it the pieces: all that is in flight gets
    done while the consumer works on a batch.
    """

    def __init__(self, engine: DaliEngine, plans: Iterator[Plan]):
        self._engine = engine
        self._feed = engine.reader.run(plans)
        self._flight: deque[Started] = deque()
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
            self._engine.runner.reset()
            self.close()
            raise

    def _next(self) -> Batch:
        self._top_up()
        if not self._flight:
            raise self._failure or StopIteration
        one = self._flight.popleft()
        images, keep = self._images(one)
        self._engine.pillow_speed.add(*one.ready.by_pillow)
        target = to_device(one.ready.target, self._engine.setup)
        return Batch(images, target, one.ready.plan, keep, one.ready.by_hand)

    def _images(self, one: Started) -> tuple[Any, Any]:
        """Of a plan, and what they need to live. Waits."""
        engine, ready = self._engine, one.ready
        if ready.bad:
            raise SampleError(ready.bad)
        if ready.is_by_hand:
            return None, None
        if ready.exchanged:
            return engine.exchanged(ready), None
        if one.making is not None and one.making.in_threads and not engine.setup.one_at_a_time:
            self._top_up()  # they go on with the next batch when there is nothing left to begin of this one
        try:
            made = engine.wait(one)
        except Failed as e:
            return self._recovered(one, e.error), None
        self._failing = self._rebuilt = False
        if not engine.setup.one_at_a_time:
            self._top_up()  # DALI goes on while the consumer works on a batch
        # DALI reads bytes and pixels in place, and on a GPU may not have done so yet.
        return engine.finish(made, one), (made, ready) if engine.on_gpu else None

    def _top_up(self) -> None:
        while not self._closed and self._failure is None and len(self._flight) < self._engine.setup.prefetch_factor:
            try:
                ready = next(self._feed, None)
            except Exception as e:
                pass_on(e)
                self._failure = e  # raised now, it would cost a batch that is good
                return
            if ready is None:
                return
            skipped = bool(ready.bad or ready.exchanged or ready.is_by_hand)
            self._flight.append(Started(ready) if skipped else self._engine.schedule(ready))

    def _recovered(self, failed: Started, error: RuntimeError) -> Any:
        """The images of a batch that DALI failed on, or :class:`SampleError`. DALI goes on with the batches in flight;
        if it fails on the next one as well, and no sample is to blame, its pipeline object is built anew, once."""
        images = self._engine.second_look(failed.ready, error)
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
