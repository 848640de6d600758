"""What waits: an encoded image, and the calls that a script's own code made on it.

A step knows size and type of its result, the numbers by which an engine can do the same, and the library's function,
which makes the same pixels here as soon as code looks at them.
"""

from __future__ import annotations

import copy
import io
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import torch
from PIL import Image, ImageFilter, JpegImagePlugin
from torch import Tensor

from ..transforms.ops import Op
from .switch import switched

if TYPE_CHECKING:
    from ..reading.kept import OpenFile
    from .trays import Data

Numbers = tuple[tuple[str, Any], ...]
"""Pairs of a name and a number, or a tuple of numbers."""


def frozen(value: Any, *, tensors: bool = True) -> Any:
    """Return arguments of a call that is made later, with copies of what a script may change until then.

    ``tensors``: whether to copy tensors, too.
    """
    if type(value) in (tuple, list):
        return type(value)([frozen(part, tensors=tensors) for part in value])
    if type(value) is dict:
        return {name: frozen(part, tensors=tensors) for name, part in value.items()}
    if type(value) is Tensor:
        return value.clone() if tensors else value
    return copy.copy(value) if isinstance(value, (np.ndarray, ImageFilter.Filter)) else value


class Move(NamedTuple):
    """One op for one image."""

    op: type[Op]
    numbers: Numbers
    """Values of the op's arrays for this image, without a mask."""
    settings: Numbers
    """Plain values of the op; hashable."""
    size: tuple[int, int]
    """(height, width) of the result."""


class Encoded:
    """A plain JPEG image that was opened and not decoded: the first step.

    Attributes:
        data: the whole file.
        file: where it comes from; ``None`` if that is not a file.
        size: (height, width).
        mode: ``"RGB"`` or ``"L"``.
        looked: whether code of the script has looked at pixels made of it.
        sent: whether an engine got it. The script keeps an image that comes a second time, so it is decoded once, here.
        lock: held by the thread that makes this image, or one that is made of it.
    """

    __slots__ = ("_image", "data", "file", "lock", "looked", "mode", "moves", "sent", "size")

    def __init__(self, data: Data, size: tuple[int, int], mode: str, file: OpenFile | None = None):
        self.data, self.size, self.mode, self.file = data, size, mode, file
        self.moves: tuple[Move, ...] | None = ()
        self.looked = self.sent = False
        self.lock = threading.RLock()
        self._image: Image.Image | None = None

    @property
    def source(self) -> Encoded:
        return self

    def image(self) -> Image.Image:
        """Return the image as Pillow decodes it."""
        with self.lock:
            if self._image is None:
                with switched(False):
                    made = JpegImagePlugin.JpegImageFile(io.BytesIO(self.data))
                    made.load()
                self._image = made
            return self._image


class ImageStep:
    """A PIL image that waits: the result of a function of a library on another one.

    Args:
        before: the image, or the tensor that the function was called on.
        redo: the function, with all its other arguments.
        moves: the ops by which an engine does the same; ``None`` if there are none.
        size: (height, width) of the result.
        mode: ``"RGB"`` or ``"L"``. Engines compute gray images in three equal channels.

    Attributes:
        source: the encoded image.
        moves: the ops from the encoded image on; ``None`` if an engine cannot do them.
    """

    __slots__ = ("_image", "before", "mode", "moves", "redo", "size", "source")

    def __init__(
        self,
        before: AnyImage | PixelStep,
        redo: Callable[[Any], Image.Image],
        moves: tuple[Move, ...] | None,
        size: tuple[int, int],
        mode: str,
    ):
        self.before, self.redo, self.size, self.mode = before, redo, size, mode
        self.source: Encoded = before.source
        self.moves: tuple[Move, ...] | None = None
        if before.moves is not None and moves is not None:
            self.moves = before.moves + moves
        self._image: Image.Image | None = None

    def image(self) -> Image.Image:
        """Return the image as the library makes it."""
        with self.source.lock:
            if self._image is None:
                before = _value(self.before)
                with switched(False):
                    self._image = self.redo(before)
            return self._image

    def forget(self) -> None:
        """Make the image anew if it is needed again."""
        self._image = None


AnyImage = Encoded | ImageStep


class PixelStep:
    """A tensor [C, H, W] that waits and that an engine can make: an image as a tensor, and ops on it.

    Args:
        before: the image, or the tensor that the function was called on.
        redo: the function, with all its other arguments.
        moves: the ops of this function.
        shape, dtype: of the result.

    Attributes:
        source, moves: as those of an image.
    """

    __slots__ = ("before", "dtype", "moves", "redo", "shape", "source")

    def __init__(
        self,
        before: AnyImage | PixelStep,
        redo: Callable[[Any], Tensor],
        moves: tuple[Move, ...],
        shape: tuple[int, ...],
        dtype: torch.dtype,
    ):
        self.before, self.redo, self.shape, self.dtype = before, redo, shape, dtype
        self.source: Encoded = before.source
        self.moves: tuple[Move, ...] | None = None if before.moves is None else before.moves + moves

    @property
    def size(self) -> tuple[int, int]:
        """(height, width)"""
        _, height, width = self.shape
        return height, width

    def tensor(self) -> Tensor:
        """Return a new tensor, as the library makes it."""
        with self.source.lock:
            before = _value(self.before)
            with switched(False):
                return self.redo(before)

    @property
    def can_be_made(self) -> bool:
        """Whether an engine shall make it: nothing has been decoded yet, and all functions are known."""
        source = self.source
        return not source.looked and not source.sent and self.moves is not None


def _value(step: AnyImage | PixelStep) -> Any:
    return step.tensor() if isinstance(step, PixelStep) else step.image()


class Row(NamedTuple):
    """An image of a job, which stands for a step where an engine makes it."""

    job: int
    row: int


class CallStep:
    """A tensor that waits for others: the result of a function of torch that takes little time, such as ``stack``.

    It is called later, where the others are made.

    Args:
        function, args, kwargs: the call. Steps stand in the place of tensors that wait.
        shape, dtype: of the result.
    """

    __slots__ = ("args", "dtype", "function", "kwargs", "shape")

    def __init__(
        self,
        function: Callable[..., Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        shape: tuple[int, ...],
        dtype: torch.dtype,
    ):
        self.function, self.args, self.kwargs, self.shape, self.dtype = function, args, kwargs, shape, dtype

    def tensor(self) -> Tensor:
        """Return a new tensor."""
        return self.call(lambda step: step.tensor())

    def call(self, value: Callable[[Any], Tensor]) -> Tensor:
        """Call the function with the values of the steps."""
        args, kwargs = self.replaced(value)
        with switched(False):
            made: Tensor = self.function(*args, **kwargs)
            return made

    def replaced(self, of: Callable[[Any], Any]) -> tuple[Any, Any]:
        """Return the arguments with ``of(step)`` in the place of steps."""
        return _replaced((tuple(self.args), dict(self.kwargs)), of)  # type: ignore[no-any-return]

    def parts(self) -> list[Any]:
        """Return the steps among the arguments."""
        found: list[Any] = []
        self.replaced(found.append)
        return found

    @property
    def can_be_made(self) -> bool:
        return all(part.can_be_made for part in self.parts())


class Results(Protocol):
    """Makes the tensors of a batch."""

    def result(self, number: int) -> Tensor:
        """Return one tensor, as the reference makes it."""


class SentStep:
    """A tensor that waits in another process than the one in which its images were opened.

    Args:
        recipe: how it is made.
        number: its number among the recipe's results.
    """

    __slots__ = ("dtype", "number", "recipe", "shape")
    can_be_made = False

    def __init__(self, recipe: Results, number: int, shape: tuple[int, ...], dtype: torch.dtype):
        self.recipe, self.number, self.shape, self.dtype = recipe, number, shape, dtype

    def tensor(self) -> Tensor:
        """Return a new tensor, as the reference makes it."""
        return self.recipe.result(self.number)

    def parts(self) -> list[Any]:
        return []


AnyTensor = PixelStep | CallStep | SentStep


def _replaced(value: Any, of: Callable[[Any], Any]) -> Any:
    if isinstance(value, (PixelStep, CallStep, Row)):
        return of(value)
    if type(value) in (list, tuple):
        return type(value)(_replaced(part, of) for part in value)
    if type(value) is dict:
        return {name: _replaced(part, of) for name, part in value.items()}
    return value
