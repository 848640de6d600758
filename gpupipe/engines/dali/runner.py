"""Runs DALI's pipeline object on pieces of batches, one after another.

Images that the host goes on with come in pieces of some images, of which DALI works on a few while the host has the
one before: so fewer of them lie decoded in memory at a time. A graph that is whole gets each batch in one piece.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import nvidia.dali
import torch

from ...errors import EngineError
from ...reading.base import Loaded
from ...signal_handlers import pass_on
from ..delivery import made_current
from .graph import MEDIA, Graph
from .messages import clean

__all__ = ["Failed", "GivenUp", "Images", "Piece", "Runner"]

Images = tuple[tuple[Any, ...], Any]
"""The images of a piece, one list for each view, and i64[M, 3] the shapes of those that DALI decoded, as their headers
have them (``None`` of pixels), as DALI's lists."""


class GivenUp(Exception):
    """Nobody wants the piece any more."""


class Failed(Exception):
    """DALI failed on a piece."""

    def __init__(self, error: RuntimeError):
        super().__init__(error)
        self.error = error


@dataclass(eq=False)
class Piece:
    """Some rows of a batch, and what DALI is given for them."""

    ready: Loaded
    """What they are rows of; DALI reads its bytes in place."""
    rows: slice
    fed: Mapping[str, Any]
    """By name of the input."""
    wanted: bool = True
    """Whether somebody will ask for it."""
    made: Images | RuntimeError | None = None
    """What DALI made of it, or said, as long as nobody has asked for it."""


class Runner:
    """Safe in any thread: one that waits for a piece begins those after it. The pipeline object is made when it is
    needed.

    Args:
        build: makes the graph.
        device: of the graph: a GPU, or the CPU.
        ahead: pieces that DALI works on at most.
        streams_media: whether what is fed lies on the GPU.
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
        """Held by who uses the pipeline object, or looks at what is in flight."""
        self._waiting: deque[Piece] = deque()
        self._running: deque[Piece] = deque()

    @property
    def graph(self) -> Graph:
        if self._graph is None:
            try:
                graph = self._build()
                graph.pipe.build()
                _PIPES.add(graph.pipe)
            except RuntimeError as e:
                pass_on(e)
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
        """Behind all others. Nothing is begun."""
        self._waiting.extend(pieces)

    def begin(self) -> None:
        """Start DALI on as many as it may work on; does not wait."""
        with self._using:
            self._begin_some()

    def get(self, piece: Piece) -> Images:
        """What DALI made of it. Waits.

        Raises :class:`Failed`, or :class:`GivenUp` if it is not wanted any more.
        """
        with self._using:
            while piece.wanted:
                if piece.made is not None:
                    made, piece.made = piece.made, None
                    if isinstance(made, RuntimeError):
                        raise Failed(made)
                    return made
                self._begin_some()
                if not self._running:
                    break
                self._end_one()
                self._begin_some()  # DALI goes on while this one is worked on
        raise GivenUp

    def drop(self) -> None:
        """All that is in flight. Waits for what DALI works on, which it cannot leave."""
        with self._using:
            self._drop_all()
            while self._running:
                self._end_one()

    def rebuild(self) -> None:
        """Go on with another pipeline object, which begins again what this one had begun."""
        with self._using:
            self._graph = None
            for piece in self._running:
                self._begin(piece)

    def reset(self) -> None:
        """Throw the pipeline object away, and all that is in flight. The next piece builds another."""
        with self._using:
            self._graph = None  # before the memory that it reads
            self._drop_all()
            self._running.clear()

    def forked(self) -> None:
        """In a child, where no other thread is that might use it: at exit DALI would wait for its threads."""
        self._using = threading.Lock()
        if self._graph is not None:
            nvidia.dali.Pipeline._pipes.discard(weakref.ref(self._graph.pipe))

    def outputs(self) -> Images:
        """Of what DALI was begun on first. Raises :class:`RuntimeError` if it failed on that."""
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
                # DALI refuses strided arrays.
                value = np.ascontiguousarray(value) if isinstance(value, np.ndarray) else value
                pipe.feed_input(name, value, **(self._stream() if self._streams_media and name == MEDIA else {}))
        # schedule_run() would start prefetch_queue_depth iterations at its first call, fed or not.
        pipe._run_once()

    def _end_one(self) -> None:
        piece = self._running.popleft()
        try:
            made: Images | RuntimeError = self.outputs()
        except RuntimeError as e:
            pass_on(e)
            made = e
        if piece.wanted:
            piece.made = made

    def _drop_all(self) -> None:
        for piece in (*self._waiting, *self._running):
            piece.wanted = False
        self._waiting.clear()

    def _stream(self) -> dict[str, Any]:
        """On a GPU the output is ordered after DALI's work on the consumer's stream, and the host does not wait."""
        if self._device.type != "cuda":
            return {}
        return {"cuda_stream": torch.cuda.current_stream(self._device).cuda_stream}


_PIPES: weakref.WeakSet[Any] = weakref.WeakSet()
_of_parent: list[Any] = []
"""In a forked child, the pipeline objects of its parent. DALI ends the process if one is deleted there, where the
threads that it waits for do not exist; so none ever is, not even one that was garbage already."""


def _in_forked_child() -> None:
    _of_parent.extend(_PIPES)


os.register_at_fork(after_in_child=_in_forked_child)
