"""The routes through the DALI engine: what decodes the samples of a setup, and what makes their batches.

| samples | decoded by | batches made by |
|---|---|---|
| clips that are only cropped, resized, flipped and normalized, on a CPU | PyAV | the thread that decoded a frame |
| images of ``cache=``, on a CPU | Pillow | the thread that got an image |
| images in memory, on a CPU | not needed | the thread that looks them up |
| all others, on a CPU, and functions of single images | DALI or Pillow | DALI's graph, then threads of the host |
| all others, on a GPU, or where DALI's graph is cheaper | DALI or Pillow | DALI's graph |

Importing DALI takes most of a loader's start, so it is imported only when an engine with a graph is built.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from ...imports import uncollected
from ...reading.setup import Setup
from ...reading.windows import window_of
from ...signal_handlers import deferred
from ..base import Engine
from ..host.clip_frames import ClipBatches
from ..host.engine import HostEngine
from ..host.kept_images import KeptImages
from ..host.pixel_images import PixelImages
from .options import Options

if TYPE_CHECKING:
    from .executors import Executor
    from .graph_end import GraphEnd


class Route(ABC):
    """A route through the engine. Starts nothing before the engine runs."""

    @abstractmethod
    def build(self) -> Engine: ...

    def remark(self) -> str:
        """A note on the route for users; empty if there is none."""
        return ""


def route_of(setup: Setup, options: Options) -> Route:
    """Return the route of a setup. Raises :class:`~gpupipe.errors.PipelineError` that names what no route can do."""
    clips = ClipBatches.of(setup)
    if clips is not None:
        return _Clips(setup, clips)
    # "whole" asks for DALI's own operators.
    pixels = None if options.graph == "whole" else PixelImages.of(setup)
    if pixels is not None:
        return _Pixels(setup, pixels)
    from .executors import GraphAlone, GraphThenThreads

    end = end_of(setup, options)
    images = KeptImages.of(setup)
    # A graph would only pass on the window that a first crop takes of a cached image.
    if images is not None and end.then_threads and end.shared == int(window_of(setup.pipeline.skeleton) is not None):
        return _Kept(setup, images, end)
    return _Graph(setup, options, GraphThenThreads(setup, end) if end.then_threads else GraphAlone(setup, end))


def end_of(setup: Setup, options: Options) -> GraphEnd:
    """Return where DALI's graph ends."""
    from .graph_end import graph_end

    whole = setup.cuda or options.graph == "whole"
    return graph_end(setup.pipeline.skeleton, whole=whole, common=setup.dataset.common_size)


class _Clips(Route):
    def __init__(self, setup: Setup, clips: ClipBatches):
        self._setup, self._clips = setup, clips

    def build(self) -> Engine:
        return HostEngine.of_clips(self._setup, self._clips)


class _Pixels(Route):
    def __init__(self, setup: Setup, images: PixelImages):
        self._setup, self._images = setup, images

    def build(self) -> Engine:
        return HostEngine.of_pixels(self._setup, self._images)


class _Kept(Route):
    def __init__(self, setup: Setup, images: KeptImages, end: GraphEnd):
        self._setup, self._images, self._end = setup, images, end

    def build(self) -> Engine:
        return HostEngine.of_images(self._setup, self._images, self._end.names(self._setup.pipeline.skeleton))


class _Graph(Route):
    def __init__(self, setup: Setup, options: Options, executor: Executor):
        self._setup, self._options, self._executor = setup, options, executor

    def build(self) -> Engine:
        with deferred(), uncollected():  # an import of DALI that a signal interrupted cannot be repeated
            from .engine import DaliEngine
            from .graph import DecoderOptions

        options = self._options
        return DaliEngine(self._setup, DecoderOptions.of(options), self._executor, nvdec=options.video == "nvdec")

    def remark(self) -> str:
        if not self._setup.cuda or self._executor.on_gpu:
            return ""
        return f"DALI decodes on the CPU, and only batches are finished on the GPU, because {self._executor.end.why}"
