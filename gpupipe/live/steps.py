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

from ..kernels.picture import CONVERT
from ..transforms.ops import Op, Replay
from .switch import switched

if TYPE_CHECKING:
    from ..reading.kept import OpenFile
    from .trays import Data

MODES = ("RGB", "L")
"""Modes of images that engines make."""

Numbers = tuple[tuple[str, Any], ...]
"""Pairs of a name and a number, or a tuple of numbers."""


def mapped(value: Any, of: Callable[[Any], Any]) -> Any:
    """Return arguments of a call with ``of(part)`` in the place of every part of lists, tuples and dictionaries."""
    if type(value) in (tuple, list):
        return type(value)([mapped(part, of) for part in value])
    if type(value) is dict:
        return {name: mapped(part, of) for name, part in value.items()}
    return of(value)


_FIXED = {int, float, str, bool, type(None), torch.dtype}
"""Types of most arguments, which nothing changes."""


def frozen(value: Any, *, tensors: bool = True) -> Any:
    """Return arguments of a call that is made later, with copies of what a script may change until then.

    ``tensors``: whether to copy tensors, too.
    """
    kind = type(value)
    if kind in _FIXED:
        return value
    if kind is tuple or kind is list:
        return kind([part if type(part) in _FIXED else frozen(part, tensors=tensors) for part in value])
    if kind is dict:
        return {name: frozen(part, tensors=tensors) for name, part in value.items()}
    if kind is Tensor:
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


class Waits:
    """Something that waits."""

    __slots__ = ()


class Encoded(Waits):
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
    depth = 0
    is_known = True

    def __init__(self, data: Data, size: tuple[int, int], mode: str, file: OpenFile | None = None):
        self.data, self.size, self.mode, self.file = data, size, mode, file
        self.moves: tuple[Move, ...] | None = ()
        self.looked = self.sent = False
        self.lock = threading.RLock()
        self._image: Image.Image | None = None

    @property
    def source(self) -> Encoded:
        return self

    @property
    def origin(self) -> None:
        return None

    def image(self) -> Image.Image:
        """Return the image as Pillow decodes it."""
        with self.lock:
            if self._image is None:
                with switched(False):
                    made = JpegImagePlugin.JpegImageFile(io.BytesIO(self.data))
                    made.load()
                self._image = made
            return self._image


_UNKNOWN = object()
DEEPEST = 64
"""Calls of calls, at most: each takes several of the frames that Python allows."""


class Called(Waits):
    """The result of a call of a library's function, which is made later.

    Args:
        function, args, kwargs: the call. Steps stand in the place of images and tensors that wait.
    """

    __slots__ = ("args", "function", "kwargs")

    def __init__(self, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]):
        self.function, self.args, self.kwargs = function, args, kwargs

    def call(self, value: Callable[[Any], Any]) -> Any:
        """Call the function with the values of the steps."""
        args, kwargs = self.replaced(value)
        with switched(False):
            return self.function(*args, **kwargs)

    def replaced(self, of: Callable[[Any], Any]) -> tuple[Any, Any]:
        """Return the arguments with ``of(step)`` in the place of steps."""

        def part_of(part: Any) -> Any:
            return of(part) if isinstance(part, _STEPS) else part

        return mapped(tuple(self.args), part_of), mapped(dict(self.kwargs), part_of)

    def parts(self) -> list[Any]:
        """Return the steps among the arguments."""
        found: list[Any] = []
        self.replaced(found.append)
        return found


class ImageStep(Called):
    """A PIL image that waits: the result of a function of a library on others, all made of one encoded image.

    Args:
        function, args, kwargs: see :class:`Called`.
        moves: the ops by which an engine does the same to the first argument, the only one that waits; ``None`` if
            there are none, and an engine calls the function.
        size: (height, width) of the result.
        mode: of the result. Engines compute gray images in three equal channels, and make no others than these.

    Attributes:
        source: the encoded image.
    """

    __slots__ = ("_image", "_moves", "_origin", "depth", "mode", "size", "source")

    def __init__(
        self,
        function: Callable[..., Image.Image],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        moves: tuple[Move, ...] | None,
        size: tuple[int, int],
        mode: str,
    ):
        super().__init__(function, args, kwargs)
        self.size, self.mode = size, mode
        before: Any = args[0] if isinstance(args[0], Waits) else self.parts()[0]
        self.source: Encoded = before.source
        self._moves: tuple[Move, ...] | None = None
        if moves is not None and before.moves is not None:
            self._moves = before.moves + moves
        self._image: Image.Image | None = None
        self._origin: AnyImage | object | None = _UNKNOWN
        self.depth = 1 + max(part.depth for part in (self.parts() if moves is None else [before]))

    @property
    def origin(self) -> AnyImage | None:
        """The nearest image that an engine can make, and that all pixels come from."""
        if self._origin is _UNKNOWN:
            lines = []
            for part in self.parts():
                line, step = list[Any](), None if isinstance(part, PixelStep) else part
                while step is not None:
                    if step.is_known:
                        line.append(step)
                    step = step.origin
                lines.append(line)
            self._origin = next((step for step in lines[0] if all(step in line for line in lines[1:])), None)
        return self._origin  # type: ignore[return-value]

    @property
    def is_known(self) -> bool:
        """Whether an engine can make it."""
        return self._moves is not None or (self.mode in MODES and self.origin is not None)

    @property
    def moves(self) -> tuple[Move, ...] | None:
        """The ops from the encoded image on; ``None`` if an engine cannot do them."""
        if self._moves is None and self.mode in MODES and (origin := self.origin) is not None:
            assert origin.moves is not None
            numbers = ("calls", Again(self, origin)), ("height", self.size[0]), ("width", self.size[1])
            self._moves = *origin.moves, Move(Replay, numbers, (), self.size)
        return self._moves

    @moves.setter
    def moves(self, moves: tuple[Move, ...]) -> None:
        self._moves = moves

    def image(self) -> Image.Image:
        """Return the image as the library makes it."""
        with self.source.lock:
            if self._image is None:
                self._image = self.call(_value)
            return self._image

    def forget(self) -> None:
        """Make the image anew if it is needed again."""
        self._image = None


class _Origin(Waits):
    """Stands for the image that calls begin with."""

    __slots__ = ()


class Again:
    """Calls of functions of libraries between two images, as a function that an engine calls.

    Args:
        step: the last image.
        origin: the first one.
    """

    def __init__(self, step: ImageStep, origin: AnyImage):
        self._mode, known = origin.mode, {id(origin): _Origin()}

        def written(part: Any) -> Any:
            if id(part) not in known:
                known[id(part)] = Called(part.function, *part.replaced(written))  # type: ignore[assignment]
            return known[id(part)]

        self._last = written(step)

    def __call__(self, image: Image.Image) -> Image.Image:
        """Return the last image in RGB, given the first one in RGB."""
        known: dict[int, Image.Image] = {}

        def made(part: Any) -> Image.Image:
            if isinstance(part, _Origin):
                return first
            if id(part) not in known:
                known[id(part)] = part.call(made)
            return known[id(part)]

        with switched(False):
            first = CONVERT(image, self._mode)
            return CONVERT(made(self._last), "RGB")


AnyImage = Encoded | ImageStep


class PixelStep(Waits):
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
    depth = 0

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

    def then(
        self, redo: Callable[[Tensor], Tensor], moves: tuple[Move, ...], dtype: torch.dtype | None = None
    ) -> PixelStep:
        """Return the result of another function, which keeps the channels."""
        size = moves[-1].size if moves else self.size
        return PixelStep(self, redo, moves, (self.shape[0], *size), dtype or self.dtype)

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

    @property
    def depth(self) -> int:
        return 0


_STEPS = Waits, Row


class CallStep(Called):
    """A tensor that waits for others: the result of a function of torch that takes little time, such as ``stack``.

    It is called later, where the others are made.

    Args:
        function, args, kwargs: see :class:`Called`.
        shape, dtype: of the result.
    """

    __slots__ = ("depth", "dtype", "shape")

    def __init__(
        self,
        function: Callable[..., Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        shape: tuple[int, ...],
        dtype: torch.dtype,
    ):
        super().__init__(function, args, kwargs)
        self.shape, self.dtype = shape, dtype
        self.depth: int = 1 + max((part.depth for part in self.parts()), default=0)

    def tensor(self) -> Tensor:
        """Return a new tensor."""
        made: Tensor = self.call(lambda step: step.tensor())
        return made

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
    can_be_made, depth = False, 0

    def __init__(self, recipe: Results, number: int, shape: tuple[int, ...], dtype: torch.dtype):
        self.recipe, self.number, self.shape, self.dtype = recipe, number, shape, dtype

    def tensor(self) -> Tensor:
        """Return a new tensor, as the reference makes it."""
        return self.recipe.result(self.number)

    def parts(self) -> list[Any]:
        return []


AnyTensor = PixelStep | CallStep | SentStep
