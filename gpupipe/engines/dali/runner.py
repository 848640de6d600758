"""Runs DALI's pipeline object on pieces of batches, one after another.

Images for the host come in pieces. DALI works on a few pieces while the host processes the previous one, so fewer
decoded images are in memory at a time. A whole graph gets each batch in one piece.
"""

from __future__ import annotations

import atexit
import ctypes
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from ...errors import EngineError
from ...stages import GRAPH
from ..delivery import made_current
from .graph import MEDIA, Graph
from .messages import clean

Images = tuple[tuple[Any, ...], Any]
"""Images of a piece, one list per view, and i64[M, 3], the shapes of those that DALI decoded according to their headers
(``None`` for pixels), both as lists of DALI."""


class GivenUp(Exception):
    """The piece is no longer wanted."""


class Failed(Exception):
    """DALI failed on a piece."""

    def __init__(self, error: RuntimeError):
        super().__init__(error)
        self.error = error


@dataclass(eq=False)
class Piece:
    """Some rows of a batch, and their inputs for DALI."""

    ready: Any
    """The owner of the batch, which DALI reads in place."""
    rows: slice
    fed: Mapping[str, Any]
    """Values by name of the input."""
    wanted: bool = True
    """Whether the piece will be requested."""
    made: Images | RuntimeError | None = None
    """Result or error of DALI, until it is requested."""


class Runner:
    """Runs pieces. Thread-safe: a thread that waits for a piece begins later ones. The pipeline object is created on
    demand.

    Args:
        build: builds the graph.
        device: of the graph: a GPU, or the CPU.
        ahead: maximum number of pieces that DALI works on.
        streams_media: whether inputs are on the GPU.
    """

    def __init__(
        self,
        build: Callable[[], Graph],
        device: torch.device,
        *,
        ahead: int,
        streams_media: bool = False,
    ):
        self._build, self._device, self._streams_media = build, device, streams_media
        self._ahead = ahead
        self._graph: Graph | None = None
        self._using = threading.Lock()
        """Held while using the pipeline object, or inspecting pieces in flight."""
        self._waiting: deque[Piece] = deque()
        self._running: deque[Piece] = deque()
        _RUNNERS.add(self)

    @property
    def graph(self) -> Graph:
        if self._graph is None:
            try:
                graph = self._build()
                graph.pipe.build()
                _PIPES.add(graph.pipe)
            except RuntimeError as e:
                raise EngineError(
                    f"DALI cannot build its pipeline on {self._device}: {clean(str(e))}; `gpupipe doctor` shows what "
                    'is installed and what is wrong, and engine="torch" needs no DALI'
                ) from e
            self._graph = graph
        return self._graph

    @property
    def is_built(self) -> bool:
        return self._graph is not None

    def add(self, pieces: Iterable[Piece]) -> None:
        """Append pieces without starting them."""
        self._waiting.extend(pieces)

    def begin(self) -> None:
        """Start DALI on as many pieces as allowed, without waiting."""
        with self._using:
            self._begin_some()

    def get(self, piece: Piece) -> Images:
        """Return DALI's result for a piece. Waits.

        Raises :class:`Failed`, or :class:`GivenUp` if it is no longer wanted.
        """
        with self._using:
            while piece.wanted:
                if piece.made is not None:
                    made, piece.made = piece.made, None
                    if isinstance(made, RuntimeError):
                        raise Failed(made)
                    return made
                self._begin_some()
                # DALI returns results in the order in which pieces were begun. A piece keeps its result until it is
                # requested.
                if not self._running:
                    break
                self._end_one()
                self._begin_some()  # DALI continues while this one is processed
        raise GivenUp

    def drop(self) -> None:
        """Drop all pieces in flight, waiting for those that DALI works on, which cannot be cancelled."""
        with self._using:
            self._drop_all()
            while self._running:
                self._end_one()

    def rebuild(self) -> None:
        """Continue with a new pipeline object, which repeats pieces that the old one had begun."""
        with self._using:
            self._graph = None
            for piece in self._running:
                self._begin(piece)

    def reset(self) -> None:
        """Discard the pipeline object and all pieces in flight. The next piece builds a new one."""
        with self._using:
            self._discard()

    def rest(self) -> None:
        """Discard the pipeline object if it has no work."""
        with self._using:
            if not any(piece.wanted for piece in (*self._waiting, *self._running)):
                self._discard()

    def forked(self) -> None:
        """Begin anew in a forked child."""
        # A thread that held the lock in the parent does not exist here.
        self._using = threading.Lock()
        self._discard()

    def outputs(self) -> Images:
        """Return the outputs of the oldest piece in flight. Raises :class:`RuntimeError` if DALI failed on it."""
        graph = self.graph
        with made_current(self._device):
            images = graph.pipe.outputs(**self._stream())
        views = len(graph.outputs)
        return tuple(images[:views]), images[views] if len(images) > views else None

    def _begin_some(self) -> None:
        while self._waiting and len(self._running) < self._ahead:
            piece = self._waiting.popleft()
            if piece.wanted:
                self._begin(piece)
                self._running.append(piece)

    def _begin(self, piece: Piece) -> None:
        pipe = self.graph.pipe
        with made_current(self._device):
            for name, value in piece.fed.items():
                # DALI rejects strided arrays.
                value = np.ascontiguousarray(value) if isinstance(value, np.ndarray) else value
                pipe.feed_input(name, value, **(self._stream() if self._streams_media and name == MEDIA else {}))
        # schedule_run() would start prefetch_queue_depth iterations at its first call, fed or not.
        pipe._run_once()

    def _end_one(self) -> None:
        piece = self._running.popleft()
        try:
            with GRAPH:
                made: Images | RuntimeError = self.outputs()
        except RuntimeError as e:
            made = e
        if piece.wanted:
            piece.made = made

    def _discard(self) -> None:
        self._graph = None  # before freeing the memory that it reads
        self._drop_all()
        self._running.clear()

    def _drop_all(self) -> None:
        for piece in (*self._waiting, *self._running):
            piece.wanted = False
        self._waiting.clear()

    def _stream(self) -> dict[str, Any]:
        """Order the output after DALI's work on the consumer's stream on a GPU, without making the host wait."""
        if self._device.type != "cuda":
            return {}
        return {"cuda_stream": torch.cuda.current_stream(self._device).cuda_stream}


_RUNNERS: weakref.WeakSet[Runner] = weakref.WeakSet()
_PIPES: weakref.WeakSet[Any] = weakref.WeakSet()


def _in_forked_child() -> None:
    """Never delete what the parent made: DALI's destructor waits for threads that do not exist here."""
    for pipe in _PIPES:
        type(pipe)._pipes.discard(weakref.ref(pipe))  # which DALI ends at exit
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(pipe))
    for runner in _RUNNERS:
        runner.forked()


def _at_exit() -> None:
    """End all pipeline objects, since their destructors fail once Python takes modules apart."""
    for runner in list(_RUNNERS):
        runner.reset()


os.register_at_fork(after_in_child=_in_forked_child)
atexit.register(_at_exit)
