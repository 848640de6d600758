"""Functions of user code among transforms, and what they return."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from types import FunctionType, MethodType
from typing import Any

import numpy as np
from PIL import Image
from torch import Tensor

from ..errors import ConfigError
from ..global_rng import lent, seed_all
from ..transforms import Compose
from ..transforms.lambda_ import name_of
from ..transforms.ops.returned import Returned
from ..transforms.ops.structure import calls_in
from .code import is_full
from .isolation import Isolated
from .reach import RESETS, calls_reached
from .same_names import UnsupportedError

_TRIED = ((256, 320), (347, 283))
"""(height, width) of the images that functions are tried on, if the dataset's images have several sizes."""


@dataclass(frozen=True)
class Chain:
    """Functions applied one after another, as one function."""

    parts: tuple[Callable[[Any], Any], ...]

    def __call__(self, image: Any) -> Any:
        for part in self.parts:
            image = part(image)
        return image

    def __repr__(self) -> str:
        return " then ".join(map(name_of, self.parts))


class Failed(Exception):
    """A function raised when it was tried."""


def given(before: Sequence[Callable[[Any], Any]], channels: int, size: tuple[int, int] | None) -> str:
    """Return the type of a function's input, as in :class:`Returned`; the arguments are those of :func:`returned`.
    Return ``""`` if an earlier transform fails."""
    try:
        with Isolated(*before) as isolated:
            return _tried(lambda image: image, isolated.made, channels, size or _TRIED[0], 0)[0][0]
    except (Failed, UnsupportedError):
        return ""


def returned(
    function: Callable[[Any], Any], before: Sequence[Callable[[Any], Any]], channels: int, size: tuple[int, int] | None
) -> Returned | None:
    """Return what a function makes of images of noise that first go through the script's own transforms ``before`` it;
    ``None`` if it keeps kind, size and data type.

    Args:
        channels: channels of the decoded images, 1 or 3.
        size: (height, width) if it is common to all images.

    Raises:
        Failed: one of them raised.
        UnsupportedError: what it returns depends on the image or cannot be a row of an engine's batch, or it seeds
            random generators, from which transforms draw.
    """
    if resets := calls_reached(function) & RESETS:
        raise UnsupportedError(f"it sets the state of a random generator ({', '.join(sorted(resets))})", "own-seeds")
    with Isolated(function, *before) as isolated:
        function, *before = isolated.made
        first_size, other_size = (size,) * 2 if size else _TRIED
        seen = [_tried(function, before, channels, first_size, 0)]
        # A first call may build or open something; further ones must change nothing.
        isolated.begin()
        seen.append(_tried(function, before, channels, other_size, 1))
        with suppress(Failed):  # with a nearly black picture a function may divide by zero
            seen.append(_tried(function, before, channels, first_size, 2))
        isolated.check()
    if all(given == made for given, made in seen):
        return None
    first, *others = (made for _, made in seen)
    if all(made == first for made in others):
        return _returned(*first)
    # If the result is as large as the image, letters stand for its size, and all trials agree.
    with_size = {(made[0], _with_size(given[1], made[1])) for given, made in seen}
    if len(with_size) == 1 and "H" in (form := with_size.pop())[1]:
        return _returned(*form)
    both = " and ".join(f"{_text(*made)} from {_text(*given)}" for given, made in seen)
    raise UnsupportedError(
        f"what it returns depends on the image: {both}; put a Resize or a crop of fixed size before it", "varying-size"
    )


def _returned(type_: str, shape: tuple[Any, ...]) -> Returned:
    try:
        return Returned.of(_text(type_, shape))
    except ConfigError:
        raise UnsupportedError(
            f"it returns {_text(type_, shape)}, and engines have tensors of uint8, float16 and float32, and PIL images "
            "of mode RGB and L",
            "varying-size",
        ) from None


TypeAndShape = tuple[str, tuple[Any, ...]]
"""Type and shape; see :class:`Returned`."""


def _tried(
    function: Callable[[Any], Any],
    before: Sequence[Callable[[Any], Any]],
    channels: int,
    size: tuple[int, int],
    seed: int,
) -> tuple[TypeAndShape, TypeAndShape]:
    """Return (input, output) of the function for an image of noise, of darker noise, or of a black image with one
    spot."""
    # Levels below 256 for seed 0, and below 64 for seed 1.
    pixels = np.random.default_rng(seed).integers(0, 256 >> (2 * seed), (*size, channels), np.uint8)
    if seed == 2:
        pixels[:] = 0
        pixels[size[0] // 3 : size[0] // 2, size[1] // 4 : size[1] // 2] = 255
    with lent():
        seed_all(seed)
        try:
            image: Any = Image.fromarray(pixels[:, :, 0] if channels == 1 else pixels)
            for step in before:
                image = step(image)
            given = _form(image)
            made = function(image)
        except Exception as e:
            raise Failed(str(e)) from e
    if isinstance(made, Tensor) and made.requires_grad:
        raise UnsupportedError(
            "what it returns requires gradients, which batches of engines do not have", "own-function"
        )
    return given, _form(made)


def _form(value: Any) -> TypeAndShape:
    if isinstance(value, Image.Image):
        return value.mode, (value.height, value.width)
    if isinstance(value, Tensor):
        return str(value.dtype).removeprefix("torch."), tuple(value.shape)
    return f"an object of type {type(value).__name__}", ()


def _with_size(given: tuple[Any, ...], made: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the shape, with letters in place of its last two numbers if they are the size of the image."""
    return (*made[:-2], "H", "W") if len(made) >= 2 and made[-2:] == given[-2:] else made


def _text(type_: str, shape: tuple[Any, ...]) -> str:
    return f"{type_}[{', '.join(map(str, shape))}]" if shape else type_


# ---- whether two functions are the same


def are_alike(one: Compose, other: Compose) -> bool:
    """Tell whether two pipelines do the same. Functions of a script look equal if they differ only in what they
    hold."""
    mine, theirs = ([call.function for call in calls_in(each.skeleton)] for each in (one, other))
    return one == other and _all_same(mine, theirs, 0)


_DEEP = 5
_VALUES = (int, float, complex, str, bytes, type(None))


def _is_same(one: Any, other: Any, depth: int = 0) -> bool:
    """Tell whether two objects are identical, or made by the same code from the same values, such as two functions from
    one ``lambda``."""
    if one is other:
        return True
    if type(one) is not type(other) or depth > _DEEP:
        return False
    if isinstance(one, _VALUES):
        return bool(one == other)
    if isinstance(one, (set, frozenset)):
        return one == other and all(isinstance(part, _VALUES) for part in one)
    if isinstance(one, FunctionType):
        return one.__code__ == other.__code__ and _all_same(_outside(one), _outside(other), depth + 1)
    if isinstance(one, (tuple, list)):
        return _all_same(one, other, depth + 1)
    if isinstance(one, MethodType):
        return one.__func__ is other.__func__ and _is_same(one.__self__, other.__self__, depth + 1)
    if isinstance(one, partial):
        parts, of_other = ([x.func, x.args, x.keywords] for x in (one, other))
        return _all_same(parts, of_other, depth + 1)
    if any(vars(cls).get("__slots__") for cls in type(one).__mro__):  # they hold more than __dict__ shows
        return False
    own, others = (x if isinstance(x, dict) else getattr(x, "__dict__", None) for x in (one, other))
    if own is None or others is None or [*own] != [*others]:
        return False
    # What pickles itself in a way of its own, such as a tensor or a random generator, holds more than its attributes.
    if any(getattr(type(one), name) is not getattr(object, name) for name in ("__reduce__", "__reduce_ex__")):
        return False
    return _all_same([*own.values()], [*others.values()], depth + 1)


def _all_same(some: Sequence[Any], others: Sequence[Any], depth: int) -> bool:
    return len(some) == len(others) and all(_is_same(a, b, depth) for a, b in zip(some, others, strict=True))


def _outside(function: FunctionType) -> list[Any]:
    """Return the enclosed values and default arguments of a function."""
    cells = [cell.cell_contents if is_full(cell) else cell for cell in function.__closure__ or ()]
    return [
        # Functions of one module share this dictionary, so comparing identities settles it.
        function.__globals__,
        function.__defaults__,
        function.__kwdefaults__ and [*function.__kwdefaults__.items()],
        *cells,
    ]
