"""Functions of user code among transforms, and what they return."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image
from torch import Tensor

from ..errors import ConfigError
from ..global_rng import lent, seed_all
from ..transforms.lambda_ import name_of
from ..transforms.ops.returned import Returned
from .isolation import Isolated
from .same_names import Refused

__all__ = ["Chain", "Failed", "given", "returned"]

_TRIED = ((256, 320), (347, 283))
"""(height, width) of images that functions are tried on, if those of the dataset have several sizes."""


@dataclass(frozen=True)
class Chain:
    """Functions one after another, as one."""

    parts: tuple[Callable[[Any], Any], ...]

    def __call__(self, image: Any) -> Any:
        for part in self.parts:
            image = part(image)
        return image

    def __repr__(self) -> str:
        return " then ".join(map(name_of, self.parts))


class Failed(Exception):
    """A function that raised when it was tried."""


def given(before: Sequence[Callable[[Any], Any]], channels: int, size: tuple[int, int] | None) -> str:
    """The type of what a function gets, as :class:`Returned` has it; arguments as in :func:`returned`. ``""`` if what
    stands before it fails."""
    try:
        with Isolated(*before) as isolated:
            return _tried(lambda image: image, isolated.made, channels, size or _TRIED[0], 0)[0][0]
    except (Failed, Refused):
        return ""


def returned(
    function: Callable[[Any], Any], before: Sequence[Callable[[Any], Any]], channels: int, size: tuple[int, int] | None
) -> Returned | None:
    """What a function makes of images of noise, after the script's own transforms ``before`` it; ``None`` if it keeps
    their kind, size and data type.

    Args:
        channels: of the images as decoded, 1 or 3.
        size: (height, width) if it is the same for all.

    Raises:
        Failed: one of them raised.
        Refused: what it returns depends on the image, or cannot be one row of a batch of an engine.
    """
    with Isolated(function, *before) as isolated:
        function, *before = isolated.made
        first_size, other_size = (size,) * 2 if size else _TRIED
        seen = [_tried(function, before, channels, first_size, 0)]
        isolated.begin()
        seen.append(_tried(function, before, channels, other_size, 1))
        isolated.check()
    if all(given == made for given, made in seen):
        return None
    first, *others = (made for _, made in seen)
    if all(made == first for made in others):
        return _returned(*first)
    with_size = {(made[0], _with_size(given[1], made[1])) for given, made in seen}
    if len(with_size) == 1 and "H" in (form := with_size.pop())[1]:
        return _returned(*form)
    both = " and ".join(f"{_text(*made)} of {_text(*given)}" for given, made in seen)
    raise Refused(
        f"what it returns depends on the image: {both}; put a Resize or a crop of fixed size before it", "varying-size"
    )


def _returned(type_: str, shape: tuple[Any, ...]) -> Returned:
    try:
        return Returned.of(_text(type_, shape))
    except ConfigError:
        raise Refused(
            f"it returns {_text(type_, shape)}, and engines have tensors of uint8, float16 and float32, and PIL images "
            "of mode RGB and L",
            "varying-size",
        ) from None


Form = tuple[str, tuple[Any, ...]]
"""Type and shape, see :class:`Returned`."""


def _tried(
    function: Callable[[Any], Any],
    before: Sequence[Callable[[Any], Any]],
    channels: int,
    size: tuple[int, int],
    seed: int,
) -> tuple[Form, Form]:
    """(what it got, what it returned)"""
    pixels = np.random.default_rng(seed).integers(0, 256 >> (2 * seed), (*size, channels), np.uint8)
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
    return given, _form(made)


def _form(value: Any) -> Form:
    if isinstance(value, Image.Image):
        return value.mode, (value.height, value.width)
    if isinstance(value, Tensor):
        return str(value.dtype).removeprefix("torch."), tuple(value.shape)
    return f"an object of type {type(value).__name__}", ()


def _with_size(given: tuple[Any, ...], made: tuple[Any, ...]) -> tuple[Any, ...]:
    """The shape, with letters if its last two numbers are those of the image."""
    return (*made[:-2], "H", "W") if len(made) >= 2 and made[-2:] == given[-2:] else made


def _text(type_: str, shape: tuple[Any, ...]) -> str:
    return f"{type_}[{', '.join(map(str, shape))}]" if shape else type_
