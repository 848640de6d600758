"""The DALI pipeline object of one loader: inputs, decoder, lowered ops.

Samples that Pillow decodes come in as pixels, and join the others after the decoder; splitting and merging a batch only
creates views. DALI's decoder does not rotate images by what it reads in a file: their orientation is fed as numbers,
which also determined the window.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from ...reading.reader import Feed, MediaForm
from ...transforms.compose import Compose
from ...transforms.ops import Op
from .api import conditional, fn, types
from .graph_end import GraphEnd
from .lowering import Canvas, Input, paint
from .options import Options

if TYPE_CHECKING:
    from nvidia.dali import Pipeline

ACCEPTS: frozenset[MediaForm] = frozenset({"paths", "encoded", "pixels", "frames"})

HW_DECODER_LOAD = 0.65
"""Share of JPEGs given to the GPU's hardware decoder by default, as in DALI."""

MEDIA = "media"
"""Name of the input that carries paths, encoded bytes or pixels."""


@dataclass(frozen=True)
class DecoderOptions:
    """Options of decoding on a GPU."""

    hw_decoder_load: float = HW_DECODER_LOAD
    jpeg_fancy_upsampling: bool = True

    @classmethod
    def of(cls, options: Options) -> DecoderOptions:
        """Return the options that ``"auto"`` means."""
        load = HW_DECODER_LOAD if options.hw_decoder_load == "auto" else float(options.hw_decoder_load)
        return cls(load, options.jpeg_fancy_upsampling is not False)

    def arguments(self, cuda: bool) -> dict[str, Any]:
        common: dict[str, Any] = {"adjust_orientation": False, "output_type": types.RGB}
        if cuda:
            common |= {
                "device": "mixed",
                "hw_decoder_load": self.hw_decoder_load,
                "jpeg_fancy_upsampling": self.jpeg_fancy_upsampling,
            }
        return common


class Output(NamedTuple):
    """One output of the graph."""

    node: Any
    layout: str
    """``"HWC"`` or ``"CHW"``."""
    dtype: str
    """Data type of the values; DALI cannot write bfloat16."""


@dataclass(frozen=True)
class Graph:
    """A built pipeline, and what it must be fed."""

    pipe: Pipeline
    inputs: tuple[Input, ...]
    outputs: tuple[Output, ...]
    """Images, one per view."""
    end: GraphEnd


def new_pipeline(*, batch_size: int, num_threads: int, device_id: int | None, prefetch: int) -> Pipeline:
    """Return an empty pipeline. All pipelines are created here. ``device_id=None`` is DALI's CPU backend."""
    # DALI reads this when it creates its first decoder. By default nvImageCodec writes some 500 bytes to stderr for
    # every image that the GPU's decoder passes to another one, which needs no warning.
    from nvidia.dali import Pipeline

    os.environ.setdefault("DALI_NVIMGCODEC_LOG_LEVEL", "1")
    return Pipeline(batch_size=batch_size, num_threads=num_threads, device_id=device_id, prefetch_queue_depth=prefetch)


def encoded(form: MediaForm, own: Callable[[Any], Any] = lambda node: node) -> Any:
    """Return a node with the bytes of the files. ``own`` selects the rows of a node that are encoded."""
    # The engine keeps the bytes until the batch is done; the matrix of paths is small, and copied.
    fed = own(fn.external_source(name=MEDIA, dtype=types.UINT8, ndim=1, device="cpu", no_copy=form == "encoded"))
    # Not memory-mapped: a file that shrinks while it is read would kill the process with SIGBUS.
    return fn.io.file.read(fed, dont_use_mmap=True) if form == "paths" else fed


class _Handed:
    """Rows of a batch that come as pixels, besides those that come encoded."""

    def __init__(self, device: str):
        pixels = fn.external_source(name="pixels", dtype=types.UINT8, ndim=3, layout="HWC", device="cpu", no_copy=True)
        self._decoded = fn.external_source(name="decoded", dtype=types.BOOL, ndim=0, device="cpu")
        self._pixels, _ = conditional.split(pixels.gpu() if device == "gpu" else pixels, predicate=self._decoded)

    def others(self, node: Any) -> Any:
        """Return the rows of a node that come encoded."""
        return conditional.split(node, predicate=self._decoded)[1]

    def join(self, images: Any) -> Any:
        """Return all rows, given the images of :meth:`others`."""
        return conditional.merge(self._pixels, images, predicate=self._decoded)


def rows_fed(pixels: Sequence[npt.NDArray[np.uint8]]) -> dict[str, Any]:
    """Return the inputs of :class:`_Handed` by name. ``pixels`` are those of :class:`gpupipe.reading.reader.Loaded`."""
    return {"pixels": list(pixels), "decoded": np.array([len(image) > 0 for image in pixels])}


class _Upright:
    """Rotates images by numbers: transposition first, then mirroring. Upright images pass without a copy."""

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
    """Return the inputs of :class:`_Upright` by name. ``turns`` u8[B] are EXIF orientations, 1 to 8."""
    return {
        "turned": turns != 1,
        # These exchange rows and columns; only reflections remain then.
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
    """Build the graph for ``pipeline`` up to ``end``.

    ``device_id=None`` is DALI's CPU backend. ``on_device``: pixels are on the GPU already.
    """
    cuda = device_id is not None
    sizes: list[Any] = []
    pipe = new_pipeline(batch_size=batch_size, num_threads=num_threads, device_id=device_id, prefetch=prefetch)
    with pipe:
        if feed.form in ("pixels", "frames") and not on_device:
            pixels = fn.external_source(name=MEDIA, dtype=types.UINT8, ndim=3, layout="HWC", device="cpu", no_copy=True)
            canvas = Canvas(None, pixels.gpu() if cuda else pixels, "gpu" if cuda else "cpu")
        elif feed.form in ("pixels", "frames"):
            # Copy on the stream that they are fed on, because the decoder reuses its memory.
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
                # On a CPU a window has the pixels of a full decode. Exception: in JPEGs with subsampled chroma, windows
                # one pixel wide at the left edge differ by up to 16 levels. On a GPU, nvImageCodec passes windows with
                # fancy upsampling to libjpeg-turbo before nvJPEG 13.2, and some versions crash on some GPUs
                # (https://github.com/NVIDIA/nvImageCodec/issues/55).
                if window and not cuda:
                    image = fn.decoders.image_slice(raw, **window, **arguments)
                else:
                    image = fn.decoders.image(raw, **arguments)
                    image = fn.slice(image, **window) if window else image
                # Images that come as pixels are upright already.
                image = image if upright is None else upright(image)
                return image if handed is None else handed.join(image)

            canvas = Canvas(decode, None, device)
            # Also read the sizes that the headers have now, which may differ from the index.
            sizes = [fn.peek_image_shape(raw, adjust_orientation=False)]
        outputs = lower(canvas, pipeline.skeleton, pipeline.memory_format, end)
        pipe.set_outputs(*(output.node for output in outputs), *sizes)
    return Graph(pipe, tuple(canvas.inputs), tuple(outputs), end)


def lower(canvas: Canvas, ops: Sequence[Op], memory_format: str, end: GraphEnd) -> list[Output]:
    """Put the ops on the canvas: the outputs, one for each view that the graph makes.

    A graph that is gone on from hands bytes out as they lie, [H, W, C].
    """
    paint(canvas, ops[: end.shared])
    if not end.branches:
        return [_finish(canvas, memory_format, whole=end.shared == len(ops))]
    canvas.settle()  # one decode for all
    outputs = []
    for k, (branch, n) in enumerate(zip(ops[end.shared].branches, end.branches, strict=True)):
        view = canvas.fork()
        paint(view, branch[:n], (end.shared, k))
        outputs.append(_finish(view, memory_format, whole=n == len(branch)))
    return outputs


def _finish(canvas: Canvas, memory_format: str, *, whole: bool) -> Output:
    layout = "HWC" if memory_format == "channels_last" or (canvas.dtype == "uint8" and not whole) else "CHW"
    return Output(canvas.finish(layout), layout, canvas.dtype)
