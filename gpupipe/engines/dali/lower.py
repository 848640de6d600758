"""Ops to DALI operators, fused the way a DALI expert would write them by hand.

A :class:`Canvas` is the image as the graph has it so far. It holds cheap steps back as long as it can: a first crop
becomes part of the
decoder, and flips, scaling, normalisation, data type and layout become one ``crop_mirror_normalize`` at the end.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from nvidia.dali import fn, types

from ...errors import EngineError, PipelineError
from ...transforms.ops import Crop, Flip, Gray, Normalize, Op, Resize, ToDtype

__all__ = ["LOWERINGS", "Canvas", "Input", "lower"]

Array = npt.NDArray[Any]

_INTERPOLATION = {
    "nearest": types.INTERP_NN,
    "nearest-exact": types.INTERP_NN,
    "bilinear": types.INTERP_LINEAR,
    "bicubic": types.INTERP_CUBIC,
    "lanczos": types.INTERP_LANCZOS3,
}
_FLOAT = {"float32": types.FLOAT, "float16": types.FLOAT16, "bfloat16": types.FLOAT}  # DALI writes no bfloat16


@dataclass(frozen=True)
class Input:
    """One array that is fed per batch: ``read`` takes it out of op number ``op`` of a plan."""

    name: str
    op: int
    read: Callable[[Any], Array]


@dataclass
class Canvas:
    """See the module. ``decode`` makes the image from its encoded bytes, with a window (start, shape) or without;
    where the dataset gives pixels, ``image`` is there from the beginning."""

    decode: Callable[[Any, Any], Any] | None
    image: Any
    device: str
    channels: int = 3
    inputs: list[Input] = field(default_factory=list)
    _mirror: Any = None
    _flip: Any = None
    # Held-back arithmetic: y = (x - shift) / scale.
    _shift: Array = field(default_factory=lambda: np.zeros(1))
    _scale: Array = field(default_factory=lambda: np.ones(1))
    _pointwise: bool = False
    dtype: str = "uint8"

    def feed(self, op: int, what: str, dtype: Any, ndim: int, read: Callable[[Any], Array]) -> Any:
        """A graph input, read from op number ``op`` of every plan."""
        name = f"{op}.{what}"
        self.inputs.append(Input(name, op, read))
        return fn.external_source(name=name, dtype=dtype, ndim=ndim, device="cpu")

    def pixels(self) -> Any:
        """The image with everything applied that moves pixels; arithmetic may still be held back."""
        if self.image is None:
            assert self.decode is not None
            self.image = self.decode(None, None)
        if self._mirror is not None or self._flip is not None:
            axes = {k: v for k, v in (("horizontal", self._mirror), ("vertical", self._flip)) if v is not None}
            self.image = fn.flip(self.image, **{"horizontal": 0, **axes})
            self._mirror = self._flip = None
        return self.image

    def window(self, start: Any, shape: Any) -> None:
        """Crop to a window inside the image; inside the decoder if that is still possible."""
        if self.image is None and self._mirror is None and self._flip is None:
            assert self.decode is not None
            self.image = self.decode(start, shape)
        else:
            self.image = fn.slice(self.pixels(), start=start, shape=shape, axes=[0, 1])

    def flip(self, axis: str, mask: Any) -> None:
        if (self._mirror if axis == "horizontal" else self._flip) is not None:
            self.pixels()
        if axis == "horizontal":
            self._mirror = mask
        else:
            self._flip = mask

    def arithmetic(self, shift: Array, scale: Array) -> None:
        """Then ``(y - shift) / scale``."""
        self._shift = self._shift + shift * self._scale
        self._scale = self._scale * scale
        self._pointwise = True

    def settle(self) -> Any:
        """The image with nothing held back, in HWC layout; float32 if there was arithmetic."""
        if self._pointwise:
            self.image = self._normalize("HWC", types.FLOAT)
        return self.pixels()

    def finish(self, layout: str) -> Any:
        """The output in ``"CHW"`` or ``"HWC"`` layout."""
        if self.dtype == "uint8":
            image = self.pixels()
            return image if layout == "HWC" else fn.transpose(image, perm=[2, 0, 1])
        return self._normalize(layout, _FLOAT[self.dtype])

    def _normalize(self, layout: str, dtype: Any) -> Any:
        mirror, self._mirror = self._mirror, None
        image = fn.crop_mirror_normalize(
            self.pixels(),
            mean=np.broadcast_to(self._shift, self.channels).tolist(),
            std=np.broadcast_to(self._scale, self.channels).tolist(),
            dtype=dtype,
            output_layout=layout,
            **({} if mirror is None else {"mirror": mirror}),
        )
        self._shift, self._scale, self._pointwise = np.zeros(1), np.ones(1), False
        return image


def _refuse(op: Op, why: str) -> PipelineError:
    return PipelineError(f'the DALI engine cannot run {type(op).__name__}: {why}, or use engine="torch"')


def _crop(canvas: Canvas, i: int, op: Crop) -> None:
    if op.mode != "constant":
        raise _refuse(op, f'padding_mode={op.mode!r} is not in DALI; use padding_mode="constant"')
    start = canvas.feed(i, "start", types.INT32, 1, lambda op: np.stack([op.top, op.left], axis=1))
    shape = canvas.feed(i, "shape", types.INT32, 1, lambda op: np.stack([op.height, op.width], axis=1))
    if op.padded:
        canvas.image = fn.slice(
            canvas.settle(),
            start=start,
            shape=shape,
            axes=[0, 1],
            out_of_bounds_policy="pad",
            fill_values=list(op.fill),
        )
    else:
        canvas.window(start, shape)


def _resize(canvas: Canvas, i: int, op: Resize) -> None:
    if op.interpolation not in _INTERPOLATION:
        raise _refuse(op, f"interpolation {op.interpolation!r} is not in DALI; use bilinear, bicubic or lanczos")
    if op.kind == "tensor" and op.interpolation == "nearest":
        raise _refuse(op, 'on a tensor, torch\'s "nearest" takes other pixels than DALI; use "nearest-exact"')
    if op.kind == "tensor" and op.interpolation == "bicubic" and not op.antialias:
        raise _refuse(op, "without antialias, torch's bicubic filter is another one than DALI's; use antialias=True")
    size: Any
    if (op.height == op.height[0]).all() and (op.width == op.width[0]).all():
        # The same for images of all sizes, so it belongs to the graph; a plan that disagrees must not pass silently.
        size = [int(op.height[0]), int(op.width[0])]
        canvas.inputs.append(Input("", i, _expect(size)))
    else:
        size = canvas.feed(i, "size", types.FLOAT, 1, _size)
    canvas.image = fn.resize(
        canvas.settle(),
        size=size,
        interp_type=_INTERPOLATION[op.interpolation],
        antialias=op.antialias and op.interpolation not in ("nearest", "nearest-exact"),
    )


def _size(op: Resize) -> Array:
    return np.stack([op.height, op.width], axis=1).astype(np.float32)


def _expect(size: list[int]) -> Callable[[Resize], Array]:
    def check(op: Resize) -> Array:
        if (op.height != size[0]).any() or (op.width != size[1]).any():
            raise EngineError(f"a plan resizes to another size than the {size[0]}x{size[1]} its graph was built for")
        return np.empty(0)

    return check


def _flip(canvas: Canvas, i: int, op: Flip) -> None:
    canvas.flip(op.axis, canvas.feed(i, "mask", types.INT32, 0, lambda op: op.mask.astype(np.int32)))


def _gray(canvas: Canvas, i: int, op: Gray) -> None:
    if canvas.dtype != "uint8":
        raise _refuse(op, "it needs a uint8 image; put it before ToTensor or ToDtype")
    image = canvas.pixels()
    gray = image
    if canvas.channels == 3:
        gray = fn.color_space_conversion(image, image_type=types.RGB, output_type=types.GRAY)
    if op.channels == 1:
        canvas.image, canvas.channels = gray, 1
    elif op.always:
        canvas.image, canvas.channels = fn.color_space_conversion(gray, image_type=types.GRAY, output_type=types.RGB), 3
    else:
        mask = canvas.feed(i, "mask", types.UINT8, 0, lambda op: op.mask.astype(np.uint8))
        keep = canvas.feed(i, "keep", types.UINT8, 0, lambda op: (~op.mask).astype(np.uint8))
        canvas.image = image * keep + gray * mask  # uint8 throughout; gray is broadcast over the channels


def _to_dtype(canvas: Canvas, i: int, op: ToDtype) -> None:
    if canvas.dtype == "uint8":
        canvas.arithmetic(np.zeros(1), np.full(1, 255.0 if op.scale else 1.0))
    canvas.dtype = op.dtype


def _normalize(canvas: Canvas, i: int, op: Normalize) -> None:
    canvas.arithmetic(np.array(op.mean), np.array(op.std))


LOWERINGS: dict[type[Op], Callable[[Canvas, int, Any], None]] = {
    Crop: _crop,
    Resize: _resize,
    Flip: _flip,
    Gray: _gray,
    ToDtype: _to_dtype,
    Normalize: _normalize,
}


def lower(canvas: Canvas, ops: tuple[Op, ...], memory_format: str) -> Any:
    """Put all ops on the canvas and return the output node. Raises :class:`PipelineError` naming what DALI cannot
    do."""
    for i, op in enumerate(ops):
        LOWERINGS[type(op)](canvas, i, op)
    return canvas.finish("HWC" if memory_format == "channels_last" else "CHW")
