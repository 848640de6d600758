"""Graphs that decode windows of encoded images and resize them, for pixels that wait.

The ops after that differ from batch to batch, so they are not part of a graph.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import torch

from ...transforms.ops import Op, Resize
from ...transforms.ops.op import Array
from .api import fn, types
from .graph import DecoderOptions, Graph, Output, encoded, new_pipeline
from .graph_end import GraphEnd
from .lowering.geometry import interpolation_of, is_another_filter, size_of
from .runner import Runner


class View(NamedTuple):
    """One of several images that are made of a decoded one: a window, and perhaps a resize."""

    interpolation: str = ""
    """Interpolation of the resize; empty without a resize."""
    antialias: bool = True

    @classmethod
    def of(cls, ops: Sequence[Op]) -> View:
        """Return the view for ops after a first window."""
        resize = ops[0] if ops else None
        if not isinstance(resize, Resize) or is_another_filter(resize):
            return cls()
        return cls(resize.interpolation, resize.antialias)

    def fed(self, number: int, windows: Array, ops: Sequence[Op]) -> dict[str, Array]:
        """Return what the graph is fed for it, by name. ``windows``: i32[M, 4], top, left, height and width."""
        made = {f"start{number}": windows[:, :2], f"shape{number}": windows[:, 2:]}
        return made | {f"size{number}": size_of(ops[0])} if self.interpolation else made  # type: ignore[arg-type]


def decoding_runner(
    views: Sequence[View], device: torch.device, decoder: DecoderOptions, *, most: int, threads: int, ahead: int
) -> Runner:
    """Return a runner for pieces of up to ``most`` images, whose outputs are u8[H, W, 3], one list per view.

    They are fed ``media``, encoded images, and what :meth:`View.fed` returns.
    """
    return Runner(partial(_graph, tuple(views), device, decoder, most, threads, ahead), device, ahead=ahead)


def _graph(
    views: Sequence[View], device: torch.device, decoder: DecoderOptions, most: int, threads: int, ahead: int
) -> Graph:
    cuda = device.type == "cuda"
    number = device.index if cuda else None
    pipe = new_pipeline(batch_size=most, num_threads=threads, device_id=number, prefetch=ahead)
    with pipe:
        raw, arguments = encoded("encoded"), decoder.arguments(cuda)
        windows = [_window(k) for k in range(len(views))]
        if len(views) == 1 and not cuda:
            images = [fn.decoders.image_slice(raw, **windows[0], **arguments)]
        else:
            whole = fn.decoders.image(raw, **arguments)
            images = [fn.slice(whole, **window) for window in windows]
        outputs = [
            Output(_resized(image, view, k), "HWC", "uint8")
            for k, (image, view) in enumerate(zip(images, views, strict=True))
        ]
        pipe.set_outputs(*(output.node for output in outputs))
    return Graph(pipe, (), tuple(outputs), GraphEnd(1, then_threads=True))


def _window(number: int) -> dict[str, Any]:
    start, shape = (
        fn.external_source(name=f"{name}{number}", dtype=types.INT32, ndim=1, device="cpu")
        for name in ("start", "shape")
    )
    return {"start": start, "shape": shape, "axes": [0, 1]}


def _resized(image: Any, view: View, number: int) -> Any:
    if not view.interpolation:
        return image
    size = fn.external_source(name=f"size{number}", dtype=types.FLOAT, ndim=1, device="cpu")
    nearest = view.interpolation.startswith("nearest")
    how = interpolation_of(view.interpolation)
    return fn.resize(image, size=size, interp_type=how, antialias=view.antialias and not nearest)
