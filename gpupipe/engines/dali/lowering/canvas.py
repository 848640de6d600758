"""The image during the construction of a graph.

A :class:`Canvas` defers cheap steps as long as possible: a first crop becomes part of the decoder, and flips, scaling,
normalization, data type and layout become one ``crop_mirror_normalize`` at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np

from ....transforms.ops import Op
from ....transforms.ops.op import Array
from ..api import conditional, fn, types

OpAddress: TypeAlias = tuple[int, ...]
"""Position of an op: its number; for an op within another one also the branch, its number there, and so on."""

_FLOAT = {"float32": "FLOAT", "float16": "FLOAT16", "bfloat16": "FLOAT"}  # DALI cannot write bfloat16


@dataclass(frozen=True)
class Input:
    """An array that is fed for each batch: ``read`` takes it from the op of a plan at ``address``."""

    name: str
    address: OpAddress
    read: Callable[[Any], Array]

    def array(self, ops: Sequence[Op]) -> Array:
        """Return the array to feed for a plan's ops."""
        op = ops[self.address[0]]
        for branch, number in zip(self.address[1::2], self.address[2::2], strict=True):
            op = op.branches[branch][number]
        return self.read(op)


@dataclass
class Canvas:
    """An image under construction; see the module.

    ``decode`` makes the image from its encoded bytes, with or without a window (start, shape). If the dataset provides
    pixels, ``image`` exists from the beginning.
    """

    decode: Callable[[Any, Any], Any] | None
    image: Any
    device: str
    channels: int = 3
    inputs: list[Input] = field(default_factory=list)
    _mirror: Any = None
    _flip: Any = None
    # Deferred arithmetic: y = (x - shift) / scale.
    _shift: Array = field(default_factory=lambda: np.zeros(1))
    _scale: Array = field(default_factory=lambda: np.ones(1))
    _pointwise: bool = False
    dtype: str = "uint8"

    def feed(self, address: OpAddress, what: str, dtype: Any, ndim: int, read: Callable[[Any], Array]) -> Any:
        """Add a graph input, read from the op at ``address`` of every plan."""
        name = ".".join(map(str, (*address, what)))
        self.inputs.append(Input(name, address, read))
        return fn.external_source(name=name, dtype=dtype, ndim=ndim, device="cpu")

    def fork(self) -> Canvas:
        """Return another canvas that continues from this image and shares the inputs."""
        self.settle()
        return replace(self)

    def pixels(self) -> Any:
        """Return the image with all moves of pixels applied. Arithmetic may still be deferred."""
        if self.image is None:
            assert self.decode is not None
            self.image = self.decode(None, None)
        if self._mirror is not None or self._flip is not None:
            axes = {k: v for k, v in (("horizontal", self._mirror), ("vertical", self._flip)) if v is not None}
            # fn.flip mirrors along this axis unless told otherwise.
            self.image = fn.flip(self.image, **{"horizontal": 0, **axes})
            self._mirror = self._flip = None
        return self.image

    def window(self, start: Any, shape: Any) -> None:
        """Crop to a window inside the image, within the decoder if still possible."""
        # A flip that is still deferred would move the window.
        if self.image is None and self._mirror is None and self._flip is None:
            assert self.decode is not None
            self.image = self.decode(start, shape)
        else:
            self.image = fn.slice(self.pixels(), start=start, shape=shape, axes=[0, 1])

    def flip(self, axis: str, mask: Any) -> None:
        # Only one flip along each axis can be deferred.
        if (self._mirror if axis == "horizontal" else self._flip) is not None:
            self.pixels()
        if axis == "horizontal":
            self._mirror = mask
        else:
            self._flip = mask

    def arithmetic(self, shift: Array, scale: Array) -> None:
        """Append ``(y - shift) / scale``."""
        # ((x - a) / b - shift) / scale = (x - (a + shift b)) / (b scale)
        self._shift = self._shift + shift * self._scale
        self._scale = self._scale * scale
        self._pointwise = True

    def settle(self) -> Any:
        """Return the image with nothing deferred, in HWC layout; float32 if there was arithmetic."""
        if self._pointwise:
            self.image = self._normalize("HWC", types.FLOAT)
        return self.pixels()

    def values(self) -> Any:
        """Return the image with all arithmetic done, for ops that do not depend on positions. Flips may still
        be deferred."""
        if self._pointwise:
            return self.settle()
        if self.image is None:
            assert self.decode is not None
            self.image = self.decode(None, None)
        return self.image

    def finish(self, layout: str) -> Any:
        """Return the output in ``"CHW"`` or ``"HWC"`` layout."""
        if self.dtype == "uint8":
            image = self.pixels()
            return image if layout == "HWC" else fn.transpose(image, perm=[2, 0, 1])
        return self._normalize(layout, getattr(types, _FLOAT[self.dtype]))

    def _normalize(self, layout: str, dtype: Any) -> Any:
        # crop_mirror_normalize mirrors by itself, so pixels() is left with vertical flips only.
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
    """Samples of a batch that drew an op. Only these are processed; the others pass without a copy.

    Args:
        upright: whether flips must be done first; otherwise they may remain deferred.
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
        """Images of these samples."""
        image = self.canvas.settle() if self._upright else self.canvas.values()
        if self._always:
            return image
        self._mask = self.canvas.feed(self._address, "mask", types.BOOL, 0, lambda op: op.mask)
        # As in DALI's own conditionals: both are views, and an operator without samples costs nothing.
        drawn, self._rest = conditional.split(image, predicate=self._mask)
        return drawn

    def number(self, what: str, dtype: Any, ndim: int, read: Callable[[Any], Array]) -> Any:
        """Add an input with one number, or one array, for each of these samples."""
        _ = self.image  # this decides whether there is a mask
        fed = self.canvas.feed(self._address, what, dtype, ndim, read)
        return fed if self._mask is None else conditional.split(fed, predicate=self._mask)[0]

    def beside(self, number: Any) -> Any:
        """Return a number on the device of the image, for arithmetic with it."""
        return number.gpu() if self.canvas.device == "gpu" else number

    def done(self, image: Any) -> None:
        """Replace these samples by ``image``, which has the same type and layout."""
        if self._mask is not None:
            image = conditional.merge(image, self._rest, predicate=self._mask)
        self.canvas.image = image
