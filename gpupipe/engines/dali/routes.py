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

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

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


class Route(NamedTuple):
    """A route through the engine. Starts nothing before the engine runs."""

    build: Callable[[], Engine]
    remark: str = ""
    """A note on the route for users."""


def route_of(setup: Setup, options: Options) -> Route:
    """Return the route of a setup. Raises :class:`~gpupipe.errors.PipelineError` that names what no route can do."""
    clips = ClipBatches.of(setup)
    if clips is not None:
        return Route(partial(HostEngine.of_clips, setup, clips))
    # "whole" asks for DALI's own operators.
    pixels = None if options.graph == "whole" else PixelImages.of(setup)
    if pixels is not None:
        return Route(partial(HostEngine.of_pixels, setup, pixels))
    from .executors import GraphAlone, GraphThenThreads

    end, ops = end_of(setup, options), setup.pipeline.skeleton
    images = KeptImages.of(setup)
    # A graph would only pass on the window that a first crop takes of a cached image.
    if images is not None and end.then_threads and end.shared == int(window_of(ops) is not None):
        return Route(partial(HostEngine.of_images, setup, images, end.names(ops)))
    if not end.then_threads:
        return Route(partial(_with_graph, setup, options, GraphAlone(setup, end)))
    where = f"DALI decodes on the CPU, and only batches are finished on the GPU, because {end.why}"
    return Route(partial(_with_graph, setup, options, GraphThenThreads(setup, end)), where if setup.cuda else "")


def end_of(setup: Setup, options: Options) -> GraphEnd:
    """Return where DALI's graph ends."""
    from .graph_end import graph_end

    whole = setup.cuda or options.graph == "whole"
    return graph_end(setup.pipeline.skeleton, whole=whole, common=setup.dataset.common_size)


def _with_graph(setup: Setup, options: Options, executor: Executor) -> Engine:
    with deferred(), uncollected():  # an import of DALI that a signal interrupted cannot be repeated
        from .engine import DaliEngine
        from .graph import DecoderOptions
    return DaliEngine(setup, DecoderOptions.of(options), executor, nvdec=options.video == "nvdec")
