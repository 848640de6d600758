"""The DALI pipeline object of one loader: inputs, decoder, lowered ops.

If Pillow decodes some of the samples, they come in as pixels beside the others, and join them behind the decoder: split
and merge of a batch are views. DALI's decoder turns nothing by what it reads in a file: how an image becomes upright is
fed as numbers, the same that its window was computed with.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from nvidia.dali import Pipeline, fn, types
from nvidia.dali.fn import _conditional as conditional  # type: ignore[attr-defined]

from ...reading.base import Feed, Form
from ...transforms.compose import Compose
from .graph_end import GraphEnd
from .lower import Output, lower
from .lowering import Canvas, Input

__all__ = ["ACCEPTS", "DecoderOptions", "Graph", "build_graph", "new_pipeline", "rows_fed", "turns_fed"]

ACCEPTS: frozenset[Form] = frozenset({"paths", "encoded", "pixels", "frames"})

MEDIA = "media"
"""Name of the input that carries paths, encoded bytes or pixels."""


@dataclass(frozen=True)
class DecoderOptions:
    """How images are decoded; the same values for the hot path and for finding a bad sample."""

    roi: bool = True
    """Decode only the window that a first crop takes: the same pixels as of a whole image. But of a JPEG with
    subsampled chroma, libjpeg makes a window that is one pixel wide at the left edge up to 16 levels unlike."""
    hw_decoder_load: float = 0.65
    jpeg_fancy_upsampling: bool = True

    def arguments(self, cuda: bool) -> dict[str, Any]:
        common: dict[str, Any] = {"adjust_orientation": False, "output_type": types.RGB}
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
    end: GraphEnd


def new_pipeline(*, batch_size: int, num_threads: int, device_id: int | None, prefetch: int) -> Pipeline:
    """An empty pipeline; every one of ours is made here. ``device_id=None`` is DALI's CPU backend."""
    # DALI reads it when it makes its first decoder. At its own level nvImageCodec writes some 500 bytes to stderr for
    # every image that the GPU's decoder hands on to another one, which is nothing to warn of.
    os.environ.setdefault("DALI_NVIMGCODEC_LOG_LEVEL", "1")
    return Pipeline(batch_size=batch_size, num_threads=num_threads, device_id=device_id, prefetch_queue_depth=prefetch)


def encoded(form: Form, own: Callable[[Any], Any] = lambda node: node) -> Any:
    """A node with the bytes of the files; ``own`` takes those rows of a node that are encoded."""
    # The engine keeps the bytes until the batch is there; the matrix of paths is small, and made anew.
    fed = own(fn.external_source(name=MEDIA, dtype=types.UINT8, ndim=1, device="cpu", no_copy=form == "encoded"))
    # Not memory-mapped: a file that shrinks while it is read would kill the process with SIGBUS.
    return fn.io.file.read(fed, dont_use_mmap=True) if form == "paths" else fed


class _Handed:
    """Rows of a batch that come as pixels, beside those that come encoded."""

    def __init__(self, device: str):
        pixels = fn.external_source(name="pixels", dtype=types.UINT8, ndim=3, layout="HWC", device="cpu", no_copy=True)
        self._decoded = fn.external_source(name="decoded", dtype=types.BOOL, ndim=0, device="cpu")
        self._pixels, _ = conditional.split(pixels.gpu() if device == "gpu" else pixels, predicate=self._decoded)

    def others(self, node: Any) -> Any:
        """Of a node with a value for each row, those of the rows that come encoded."""
        return conditional.split(node, predicate=self._decoded)[1]

    def join(self, images: Any) -> Any:
        """All rows, of the images of :meth:`others`."""
        return conditional.merge(self._pixels, images, predicate=self._decoded)


def rows_fed(pixels: Sequence[npt.NDArray[np.uint8]]) -> dict[str, Any]:
    """What :class:`_Handed` is fed, by name of the input. ``pixels`` as in :class:`gpupipe.reading.base.Loaded`."""
    return {"pixels": list(pixels), "decoded": np.array([len(image) > 0 for image in pixels])}


class _Upright:
    """Turns images by numbers: first what lies on its side, then mirrored. Others pass without a copy."""

    def __init__(self, of: Callable[[Any], Any]):
        def numbers(name: str, dtype: Any) -> Any:
            return of(fn.external_source(name=name, dtype=dtype, ndim=0, device="cpu"))

        self._turned, self._sideways = (numbers(name, types.BOOL) for name in ("turned", "sideways"))
        self._mirrored, self._flipped = (numbers(name, types.INT32) for name in ("mirrored", "flipped"))

    def __call__(self, images: Any) -> Any:
        some, rest = conditional.split(images, predicate=self._turned)
        sideways, mirrored, flipped = (
            conditional.split(numbers, predicate=self._turned)[0]
            for numbers in (self._sideways, self._mirrored, self._flipped)
        )
        lying, standing = conditional.split(some, predicate=sideways)
        lying = fn.transpose(lying, perm=[1, 0, 2], transpose_layout=False, output_layout="HWC")
        some = fn.flip(conditional.merge(lying, standing, predicate=sideways), horizontal=mirrored, vertical=flipped)
        return conditional.merge(some, rest, predicate=self._turned)


def turns_fed(turns: npt.NDArray[np.uint8]) -> dict[str, Any]:
    """What :class:`_Upright` is fed, by name of the input. ``turns`` u8[B], 1 to 8 as EXIF counts."""
    return {
        "turned": turns != 1,
        "sideways": turns >= 5,
        "mirrored": np.isin(turns, (2, 3, 6, 7)).astype(np.int32),
        "flipped": np.isin(turns, (3, 4, 7, 8)).astype(np.int32),
    }


def build_graph(
    pipeline: Compose,
    *,
    end: GraphEnd,
    feed: Feed,
    decoder: DecoderOptions,
    batch_size: int,
    num_threads: int,
    prefetch: int,
    device_id: int | None,
    on_device: bool = False,
) -> Graph:
    """Build the graph for ``pipeline`` up to ``end``. ``device_id=None`` is DALI's CPU backend; ``on_device``: pixels
    are on the GPU already."""
    cuda = device_id is not None
    sizes: list[Any] = []
    pipe = new_pipeline(batch_size=batch_size, num_threads=num_threads, device_id=device_id, prefetch=prefetch)
    with pipe:
        if feed.form in ("pixels", "frames") and not on_device:
            pixels = fn.external_source(name=MEDIA, dtype=types.UINT8, ndim=3, layout="HWC", device="cpu", no_copy=True)
            canvas = Canvas(None, pixels.gpu() if cuda else pixels, "gpu" if cuda else "cpu")
        elif feed.form in ("pixels", "frames"):
            # Copied on the stream that they are fed on: the decoder needs its memory again.
            pixels = fn.external_source(name=MEDIA, dtype=types.UINT8, ndim=3, layout="HWC", device="gpu")
            canvas = Canvas(None, pixels, "gpu")
        else:
            device, arguments = "gpu" if cuda else "cpu", decoder.arguments(cuda)
            handed = _Handed(device) if feed.handed else None
            own: Callable[[Any], Any] = (lambda node: node) if handed is None else handed.others
            upright = _Upright(own) if feed.turned else None
            raw = encoded(feed.form, own)

            def decode(start: Any, shape: Any) -> Any:
                window = {} if start is None else {"start": own(start), "shape": own(shape), "axes": [0, 1]}
                if window and decoder.roi:
                    image = fn.decoders.image_slice(raw, **window, **arguments)
                else:
                    image = fn.decoders.image(raw, **arguments)
                    image = fn.slice(image, **window) if window else image
                image = image if upright is None else upright(image)
                return image if handed is None else handed.join(image)

            canvas = Canvas(decode, None, device)
            # Read beside the images: what the header says now, not in the index.
            sizes = [fn.peek_image_shape(raw, adjust_orientation=False)]
        outputs = lower(canvas, pipeline.skeleton, pipeline.memory_format, end)
        pipe.set_outputs(*(output.node for output in outputs), *sizes)
    return Graph(pipe, tuple(canvas.inputs), tuple(outputs), end)
