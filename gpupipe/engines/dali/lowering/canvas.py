"""The image as a graph has it so far.

A :class:`Canvas` holds cheap steps back as long as it can: a first crop becomes part of the decoder, and flips,
scaling, normalisation, data type and layout become one ``crop_mirror_normalize`` at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
from nvidia.dali import fn, types
from nvidia.dali.fn import _conditional as conditional  # type: ignore[attr-defined]

from ....transforms.ops import Op
from ....transforms.ops.base import Array

__all__ = ["Canvas", "Input", "OpAddress", "Selected"]

OpAddress: TypeAlias = tuple[int, ...]
"""Where an op is: its number; for one within another op then the branch, and its number there, and so on."""

_FLOAT = {"float32": types.FLOAT, "float16": types.FLOAT16, "bfloat16": types.FLOAT}  # DALI writes no bfloat16


@dataclass(frozen=True)
class Input:
    """One array that is fed per batch: ``read`` takes it out of the op of a plan that is at ``address``."""

    name: str
    address: OpAddress
    read: Callable[[Any], Array]

    def array(self, ops: Sequence[Op]) -> Array:
        """What to feed for a plan's ops."""
        op = ops[self.address[0]]
        for branch, number in zip(self.address[1::2], self.address[2::2], strict=True):
            op = op.branches[branch][number]
        return self.read(op)


@dataclass
class Canvas:
    """See the module. ``decode`` makes the image from its encoded bytes, with a window (start, shape) or without;
    if the dataset gives pixels, ``image`` is there from the beginning."""

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

    def feed(self, address: OpAddress, what: str, dtype: Any, ndim: int, read: Callable[[Any], Array]) -> Any:
        """A graph input, read from the op at ``address`` of every plan."""
        name = ".".join(map(str, (*address, what)))
        self.inputs.append(Input(name, address, read))
        return fn.external_source(name=name, dtype=dtype, ndim=ndim, device="cpu")

    def fork(self) -> Canvas:
        """Another canvas that goes on from this image, and shares the inputs."""
        self.settle()
        return replace(self)

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

    def values(self) -> Any:
        """The image with all arithmetic done, for what does not care where pixels are: flips may still be held back."""
        if self._pointwise:
            return self.settle()
        if self.image is None:
            assert self.decode is not None
            self.image = self.decode(None, None)
        return self.image

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


class Selected:
    """The samples of a batch that drew an op: only they are worked on, the others pass without a copy.

    Args:
        upright: whether flips must be done before; otherwise they may stay held back.
    """

    def __init__(self, canvas: Canvas, address: OpAddress, op: Any, *, upright: bool = False):
        self.canvas = canvas
        self._address = address
        self._always: bool = op.always
        self._upright = upright
        self._mask: Any = None
        self._rest: Any = None

    @cached_property
    def image(self) -> Any:
        """Of these samples."""
        image = self.canvas.settle() if self._upright else self.canvas.values()
        if self._always:
            return image
        self._mask = self.canvas.feed(self._address, "mask", types.BOOL, 0, lambda op: op.mask)
        # What DALI's own conditionals are made of: both are views, and an operator without samples costs nothing.
        drawn, self._rest = conditional.split(image, predicate=self._mask)
        return drawn

    def number(self, what: str, dtype: Any, ndim: int, read: Callable[[Any], Array]) -> Any:
        """An input with one number, or one array, for each of these samples."""
        _ = self.image  # which decides whether there is a mask
        fed = self.canvas.feed(self._address, what, dtype, ndim, read)
        return fed if self._mask is None else conditional.split(fed, predicate=self._mask)[0]

    def beside(self, number: Any) -> Any:
        """A number on the device of the image, for arithmetic with it."""
        return number.gpu() if self.canvas.device == "gpu" else number

    def done(self, image: Any) -> None:
        """``image`` takes the place of these samples; of the same type and layout."""
        if self._mask is not None:
            image = conditional.merge(image, self._rest, predicate=self._mask)
        self.canvas.image = image
