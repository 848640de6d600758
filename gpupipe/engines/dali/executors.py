"""Executors, which make batches with DALI's graph alone, or with the graph followed by threads of the host.

An executor gets plans with their data, in order. It starts nothing before the first one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch.utils.dlpack import from_dlpack

from ...errors import BadSample, SampleError
from ...kernels.apply import apply_batch
from ...kernels.batches import repeat_rows
from ...reading.buffers import Borrowed
from ...reading.reader import Loaded
from ...reading.sample import bad_sample, changed, naming
from ...reading.setup import Setup
from ...reading.windows import window_of
from ...transforms.ops import Op
from ...types import Plan
from ..delivery import to_device
from ..host.image_threads import ImageThreads, Making
from .graph_end import GraphEnd
from .pieces import AHEAD, decoded_bytes, rows_of_pieces
from .runner import Failed, Piece, Runner


@dataclass(frozen=True)
class Started:
    """A plan in progress."""

    ready: Loaded
    pieces: tuple[Piece, ...] = ()
    """Pieces of the batch; empty if DALI gets nothing of the plan."""
    making: Making | None = None
    """The batch, if threads continue after the graph."""

    def give_up(self) -> None:
        """Start nothing else of the plan."""
        for piece in self.pieces:
            piece.wanted = False
        if self.making is not None:
            self.making.cancel()

    @property
    def goes_on(self) -> bool:
        """Whether threads make the batch without help from the thread that waits for it."""
        return self.making is not None and self.making.in_threads


class Executor(ABC):
    """Makes batches from the output of a :class:`Runner`."""

    def __init__(self, setup: Setup, end: GraphEnd):
        self.setup, self.end = setup, end
        self.pictures = setup.dataset.pictures_per_sample
        """Pictures per sample, each of which is a separate image for DALI."""
        device = torch.device(setup.device)
        self.device = device if self.on_gpu else torch.device("cpu")
        """Device of the graph."""

    @property
    @abstractmethod
    def on_gpu(self) -> bool:
        """Whether the graph runs on a GPU."""

    @property
    @abstractmethod
    def ahead(self) -> int:
        """Number of pieces that DALI works on at a time."""

    @abstractmethod
    def start(self, runner: Runner, ready: Loaded, fed: Mapping[str, Any]) -> Started:
        """Start on a plan, without waiting.

        Args:
            fed: values for all rows, by name of the graph's input.
        """

    @abstractmethod
    def wait(self, runner: Runner, started: Started) -> tuple[Any, ...]:
        """Return the images of a plan, one per view, for :meth:`finish`. Runs user code for single images.

        Raises :class:`Failed`, or :class:`SampleError` if sizes of samples differ from the plan.
        """

    @abstractmethod
    def finish(self, runner: Runner, images: tuple[Any, ...], started: Started) -> Any:
        """Build the batch from the result of :meth:`wait`: [B, C, H, W], a tuple of these for several views, or clips
        in the dataset's layout. Runs user code for batches."""

    def close(self) -> None:  # noqa: B027, an executor may have nothing to end
        """End all threads and free memory. They start again when needed."""

    def facts(self) -> dict[str, str]:
        """Return facts for users."""
        return {}

    def ops(self, plan: Plan, left: Sequence[Op] | None = None) -> tuple[Op, ...]:
        """Return the ops of a plan, or the ops that are ``left``, with one row per image."""
        ops = plan.ops if left is None else left
        assert ops is not None
        return repeat_rows(ops, self.pictures)

    def _arranged(self, images: torch.Tensor) -> Any:
        return self.setup.dataset.medium.arrange(images, self.pictures, self.setup.pipeline.memory_format)


class GraphAlone(Executor):
    """DALI's graph runs all ops that DALI supports; torch runs the rest on the batch."""

    @property
    def on_gpu(self) -> bool:
        return self.setup.cuda

    @property
    def ahead(self) -> int:
        return self.setup.prefetch_factor

    def start(self, runner: Runner, ready: Loaded, fed: Mapping[str, Any]) -> Started:
        piece = Piece(ready, slice(None), fed)
        runner.add([piece])
        runner.begin()
        return Started(ready, (piece,))

    def wait(self, runner: Runner, started: Started) -> tuple[Any, ...]:
        (piece,) = started.pieces
        lists, shapes = runner.get(piece)
        bad = _changed(self.setup, piece, shapes)
        if bad:
            raise SampleError(bad)
        return lists

    def finish(self, runner: Runner, images: tuple[Any, ...], started: Started) -> Any:
        ready, memory_format = started.ready, self.setup.pipeline.memory_format
        made, rests = [], self.end.rest(self.ops(ready.plan))
        for one_view, rest, output in zip(images, rests, runner.graph.outputs, strict=True):
            tensor = from_dlpack(one_view.as_tensor())
            if output.layout == "HWC":
                tensor = tensor.permute(0, 3, 1, 2)
            # DALI cannot write bfloat16, so its graph ends with float32.
            if output.dtype == "bfloat16":
                tensor = tensor.to(torch.bfloat16)
            if rest:
                tensor = apply_batch(tensor, rest, memory_format)
            tensor = self._arranged(tensor)
            if isinstance(ready.owner, Borrowed) and ready.owner.holds(tensor):
                tensor = tensor.clone()  # memory that DALI passed through will be overwritten
            made.append(tensor)
        # Views come as a tuple, even if there is only one.
        return made[0] if len(made) == 1 and not self.end.branches else tuple(made)


class GraphThenThreads(Executor):
    """DALI's graph decodes on the CPU, and threads of the host continue image by image.

    Batches are decoded in pieces, so that few decoded images are held at a time.
    """

    on_gpu: ClassVar[bool] = False
    ahead: ClassVar[int] = AHEAD

    def __init__(self, setup: Setup, end: GraphEnd):
        super().__init__(setup, end)
        self._threads = ImageThreads(setup.threads, keep=2 * len(setup.pipeline.outputs))
        window = window_of(setup.pipeline.skeleton) is not None
        # Images that come as pixels are cut to the window already.
        self._only_decodes = end.shared == window and not any(end.branches)

    def start(self, runner: Runner, ready: Loaded, fed: Mapping[str, Any]) -> Started:
        count = len(ready.plan) * self.pictures
        pieces = tuple(
            Piece(ready, rows, {name: value[rows] for name, value in fed.items()})
            for rows in rows_of_pieces(count, decoded_bytes(ready), self.setup.threads)
        )
        for piece in pieces:
            if self._only_decodes and ready.pixels is not None and all(map(len, ready.pixels[piece.rows])):
                piece.made = (ready.pixels[piece.rows],), None
        runner.add([piece for piece in pieces if piece.made is None])
        # This waits for nothing: the threads iterate over the images.
        images, (rest,) = _images(runner, self.setup, ready, pieces), self.end.rest(self.ops(ready.plan))
        if self.setup.cuda:  # send bytes without reordering; the device runs ops that are cheaper on a batch
            making = self._threads.start(count, images, rest, "channels_last", whole=False, pinned=True)
        else:
            making = self._threads.start(count, images, rest, self.setup.pipeline.memory_format)
        return Started(ready, pieces, making)

    def wait(self, runner: Runner, started: Started) -> tuple[Any, ...]:
        making, dataset, indices = started.making, self.setup.dataset, started.ready.plan.indices
        assert making is not None
        with naming(lambda: dataset.describe(int(indices[making.row // self.pictures]))):
            return making.result()

    def finish(self, runner: Runner, images: tuple[Any, ...], started: Started) -> Any:
        making, memory_format = started.making, self.setup.pipeline.memory_format
        assert making is not None
        rested = zip(to_device(images, self.setup), making.rest, strict=True)
        # Images of different sizes come as a list, and each is a batch of its own.
        made = [
            [apply_batch(image[None], rest, memory_format)[0] for image in batch]
            if isinstance(batch, list)
            else self._arranged(apply_batch(batch, rest, memory_format))
            for batch, rest in rested
        ]
        return tuple(made) if making.has_views else made[0]

    def close(self) -> None:
        self._threads.close()

    def facts(self) -> dict[str, str]:
        return {"on the host": " + ".join(self.end.names(self.setup.pipeline.skeleton))}


def _images(runner: Runner, setup: Setup, ready: Loaded, pieces: Sequence[Piece]) -> Iterator[tuple[Any, Any]]:
    """Yield images u8[H, W, C] of a batch, each with the owner of its memory. Waits for DALI. Raises like
    :meth:`Executor.wait`."""
    bad: list[BadSample] = []
    for piece in pieces:
        try:
            (images,), shapes = runner.get(piece)
        except Failed:
            # The whole batch is made again elsewhere.
            for other in pieces:
                other.wanted = False
            raise
        bad += _changed(setup, piece, shapes)
        # After a wrong size, go on to find all of them, but deliver no more images of a batch that will be repaired.
        if not bad:
            owner = images, ready.owner
            for image in images:
                yield np.asarray(image), owner
    if bad:
        raise SampleError(bad)


def _changed(setup: Setup, piece: Piece, shapes: Any) -> list[BadSample]:
    """Return samples of a piece whose size differs from the plan."""
    ready, plan = piece.ready, piece.ready.plan
    if shapes is None or plan.sizes is None:
        return []
    rows, planned = np.arange(len(plan))[piece.rows], plan.sizes
    if ready.turns is not None:  # headers have the size before rotation
        planned = np.where(ready.turns[:, None] >= 5, planned[:, ::-1], planned)
    # The graph reads the headers of the rows that come encoded, and of no others.
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
