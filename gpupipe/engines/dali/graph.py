"""The DALI pipeline object of one loader: inputs, decoder, lowered ops."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from nvidia.dali import Pipeline, fn, types

from ...reading.base import Form
from ...reading.choose import form_of
from ...reading.setup import Setup
from ...transforms.compose import Compose
from .lower import GraphEnd, Output, lower
from .lowering import Canvas, Input

__all__ = ["DecoderOptions", "Fed", "Graph", "build_graph", "fed", "new_pipeline"]

Fed = Literal["paths", "encoded", "pixels", "device pixels"]
"""A form of :mod:`gpupipe.reading`, frames being pixels; or pixels that are on the GPU already."""

ACCEPTS: frozenset[Form] = frozenset({"paths", "encoded", "pixels", "frames"})

MEDIA = "media"
"""Name of the input that carries paths, encoded bytes or pixels."""


@dataclass(frozen=True)
class DecoderOptions:
    """How images are decoded; the same values for the hot path and for finding a bad sample."""

    exif: bool = False
    roi: bool = True
    """Decode only the window that a first crop takes."""
    hw_decoder_load: float = 0.65
    jpeg_fancy_upsampling: bool = True

    def arguments(self, cuda: bool) -> dict[str, Any]:
        common: dict[str, Any] = {"adjust_orientation": self.exif, "output_type": types.RGB}
        if cuda:
            common |= {
                "device": "mixed",
                "hw_decoder_load": self.hw_decoder_load,
                "jpeg_fancy_upsampling": self.jpeg_fancy_upsampling,
            }
        return common


@dataclass(frozen=True)
class Graph:
    """A built pipeline and what has to be fed to it."""

    pipe: Pipeline
    inputs: tuple[Input, ...]
    outputs: tuple[Output, ...]
    """The images, one for each view."""
    cut: GraphEnd
    """Where torch has to go on."""


def fed(setup: Setup, *, nvdec: bool = False) -> Fed:
    """What the graph of a setup is fed."""
    form = form_of(setup.dataset, ACCEPTS)
    if form == "frames":
        return "device pixels" if nvdec else "pixels"
    return form


def new_pipeline(*, batch_size: int, num_threads: int, device_id: int | None, prefetch: int) -> Pipeline:
    """An empty pipeline; every one of ours is made here. ``device_id=None`` is DALI's CPU backend."""
    # DALI reads it when it makes its first decoder. At its own level nvImageCodec writes some 500 bytes to stderr for
    # every image that the GPU's decoder hands on to another one, which is nothing to warn of.
    os.environ.setdefault("DALI_NVIMGCODEC_LOG_LEVEL", "1")
    return Pipeline(batch_size=batch_size, num_threads=num_threads, device_id=device_id, prefetch_queue_depth=prefetch)


def encoded(form: Literal["paths", "encoded"]) -> Any:
    """A node with the bytes of the files."""
    # The reader keeps the bytes until the batch is there; the matrix of paths is small, and made anew.
    fed = fn.external_source(name=MEDIA, dtype=types.UINT8, ndim=1, device="cpu", no_copy=form == "encoded")
    # Not memory-mapped: a file that shrinks while it is read would kill the process with SIGBUS.
    return fn.io.file.read(fed, dont_use_mmap=True) if form == "paths" else fed


def build_graph(
    pipeline: Compose,
    *,
    form: Fed,
    decoder: DecoderOptions,
    batch_size: int,
    num_threads: int,
    prefetch: int,
    device_id: int | None,
    common: Callable[[], tuple[int, int] | None] = lambda: None,
) -> Graph:
    """Build the graph for ``pipeline``. ``device_id=None`` is DALI's CPU backend; ``common`` tells the size of the
    images if it is the same for all, see :func:`~gpupipe.engines.dali.lower.cut`.

    Raises :class:`gpupipe.errors.PipelineError` naming what DALI cannot do.
    """
    cuda = device_id is not None
    sizes: list[Any] = []
    pipe = new_pipeline(batch_size=batch_size, num_threads=num_threads, device_id=device_id, prefetch=prefetch)
    with pipe:
        if form == "pixels":
            pixels = fn.external_source(name=MEDIA, dtype=types.UINT8, ndim=3, layout="HWC", device="cpu", no_copy=True)
            canvas = Canvas(None, pixels.gpu() if cuda else pixels, "gpu" if cuda else "cpu")
        elif form == "device pixels":
            # Copied on the stream that they are fed on: the decoder needs its memory again.
            pixels = fn.external_source(name=MEDIA, dtype=types.UINT8, ndim=3, layout="HWC", device="gpu")
            canvas = Canvas(None, pixels, "gpu")
        else:
            raw = encoded(form)
            arguments = decoder.arguments(cuda)

            def decode(start: Any, shape: Any) -> Any:
                if start is None:
                    return fn.decoders.image(raw, **arguments)
                if decoder.roi:
                    return fn.decoders.image_slice(raw, start=start, shape=shape, axes=[0, 1], **arguments)
                return fn.slice(fn.decoders.image(raw, **arguments), start=start, shape=shape, axes=[0, 1])

            canvas = Canvas(decode, None, "gpu" if cuda else "cpu")
            sizes = [fn.peek_image_shape(raw)]  # read beside the images: what the header says now, not in the index
        outputs, where = lower(canvas, pipeline.skeleton, pipeline.memory_format, common)
        pipe.set_outputs(*(output.node for output in outputs), *sizes)
    return Graph(pipe, tuple(canvas.inputs), tuple(outputs), where)
