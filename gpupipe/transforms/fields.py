"""Fields of transforms that convert and check their values.

A field names a converter, which checks the given value and returns the value to keep::

    @frozen
    class CenterCrop(Transform):
        size: Pair = Converted(pair)  # accepts int | Sequence[int], keeps tuple[int, int]

A converter gets the value and a prefix for errors, such as ``CenterCrop: size``. Checks that involve several fields
belong in ``__post_init__``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import (
    Any,
    Generic,
    Literal,
    Protocol,
    TypeAlias,
    TypeVar,
    cast,
    dataclass_transform,
    get_args,
    overload,
)

import numpy as np

from ..errors import ConfigError, unexpected_argument
from .ops import Dtype

T = TypeVar("T")
Given = TypeVar("Given")
Kept = TypeVar("Kept")

_REQUIRED: Any = object()


class Converted(Generic[Given, Kept]):
    """A dataclass field that keeps ``convert(value, what)`` of the value it is given.

    This is a data descriptor, which dataclasses support: they read the default from the class and set the field as any
    other. A transform stays a frozen dataclass, and type checkers know both the accepted and the kept type.
    """

    def __init__(self, convert: Callable[[Given, str], Kept], *, default: Given = _REQUIRED):
        self._convert = convert
        self._default = default

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, instance: None, owner: type) -> Given: ...
    @overload
    def __get__(self, instance: object, owner: type) -> Kept: ...
    def __get__(self, instance: object | None, owner: type) -> Given | Kept:
        if instance is not None:
            kept: Kept = instance.__dict__[self._name]
            return kept
        if self._default is _REQUIRED:
            raise AttributeError(self._name)  # tells the dataclass that there is no default
        return self._default

    def __set__(self, instance: object, value: Given) -> None:
        instance.__dict__[self._name] = self._convert(value, f"{type(instance).__name__}: {self._name}")


@dataclass_transform(frozen_default=True, field_specifiers=(Converted,))
def frozen(cls: type[T]) -> type[T]:
    """Make a frozen dataclass that inherits ``repr``, ``==`` and ``hash`` from :class:`~gpupipe.transforms.Transform`.

    Generating these methods for each class would take a tenth of the import time.
    """
    made: Any = dataclass(frozen=True, repr=False, eq=False)(cls)
    init = made.__init__
    names = list(init.__annotations__)

    @wraps(init)
    def __init__(self: T, /, *args: Any, **kwargs: Any) -> None:
        for name in kwargs:
            if name not in names:
                raise unexpected_argument(init.__qualname__, name, names)
        init(self, *args, **kwargs)

    made.__init__ = __init__
    return cast("type[T]", made)


class TorchvisionEnum(Protocol):
    """A member of an enumeration of torchvision, such as ``InterpolationMode.BICUBIC``."""

    @property
    def value(self) -> Any:
        """The name."""


InterpolationName: TypeAlias = Literal["nearest", "nearest-exact", "bilinear", "bicubic", "box", "hamming", "lanczos"]

Color = tuple[float, ...]
"""One number for all channels, or one number per channel."""

Pair: TypeAlias = Converted["int | Sequence[int]", tuple[int, int]]
Probability: TypeAlias = Converted[float, float]
Range: TypeAlias = Converted[Sequence[float], tuple[float, float]]
Interpolation: TypeAlias = Converted[TorchvisionEnum | InterpolationName, str]
Names: TypeAlias = Converted[
    TorchvisionEnum | InterpolationName | Sequence[TorchvisionEnum | InterpolationName], "str | tuple[str, ...]"
]
Flag: TypeAlias = Converted["bool | None", bool]
Fill: TypeAlias = Converted["float | Sequence[float] | None", Color]
OptionalFill: TypeAlias = Converted["float | Sequence[float] | None", "Color | None"]


def items(value: Any) -> tuple[Any, ...]:
    """Return the items of a list argument; a single value counts as a list of one."""
    return tuple(value) if isinstance(value, Iterable) and not isinstance(value, str) else (value,)


def is_integer(value: Any) -> bool:
    """Return whether a value is an integer. ``True`` is one to Python, but a mistake in place of a number."""
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def pair(value: int | Sequence[int], what: str) -> tuple[int, int]:
    """Convert torchvision's size argument to (height, width); a single number means a square."""
    numbers = items(value)
    if len(numbers) == 1:
        numbers = numbers * 2
    if len(numbers) != 2 or not all(is_integer(n) and n > 0 for n in numbers):
        raise ConfigError(f"{what} must be a positive integer or a pair (height, width) of them, not {value!r}")
    return int(numbers[0]), int(numbers[1])


def probability(value: float, what: str) -> float:
    # bool is a subclass of int, but True as a probability is a mistake.
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0.0 <= value <= 1.0:
        raise ConfigError(f"{what} must be a number between 0 and 1, not {value!r}")
    return float(value)


def positive(value: float, what: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < np.inf:
        raise ConfigError(f"{what} must be a positive number, not {value!r}")
    return float(value)


def number(*, least: float) -> Callable[[Any, str], float]:
    """Return a converter to a finite number of at least ``least``."""

    def convert(value: Any, what: str) -> float:
        if isinstance(value, bool) or not isinstance(value, (int, float, np.number)) or not least <= value < np.inf:
            limit = f" of at least {least:g}" if np.isfinite(least) else ""
            raise ConfigError(f"{what} must be a number{limit}, not {value!r}")
        return float(value)

    return convert


def numbers(*counts: int) -> Callable[[Any, str], tuple[float, ...]]:
    """Return a converter to a tuple whose length is one of ``counts``."""

    def convert(value: Any, what: str) -> tuple[float, ...]:
        values = items(value)
        if len(values) not in counts or not all(isinstance(v, (int, float, np.number)) for v in values):
            raise ConfigError(f"{what} must be {' or '.join(map(str, counts))} number(s), not {value!r}")
        return tuple(float(v) for v in values)

    return convert


def floats(value: Any, what: str) -> tuple[float, ...]:
    """Convert to a tuple of any length."""
    return tuple(float(v) for v in items(value))


def interval(
    least: float = -np.inf, most: float = np.inf, *, above: float = -np.inf, single: bool = False
) -> Callable[[Any, str], tuple[float, float]]:
    """Return a converter to (low, high) within limits, with ``above`` < low; ``single``: or one number for both."""

    def convert(value: Any, what: str) -> tuple[float, float]:
        bounds = items(value)
        ends = bounds * 2 if single and len(bounds) == 1 else bounds
        if len(ends) != 2 or not least <= ends[0] <= ends[1] <= most or not above < ends[0] or ends[1] == np.inf:
            below = f"{above:g} < " if above > -np.inf else f"{least:g} <= " if least > -np.inf else ""
            limit = f" <= {most:g}" if most < np.inf else ""
            number = "a number or " if single else ""
            raise ConfigError(f"{what} must be {number}(low, high) with {below}low <= high{limit}, not {value!r}")
        return float(ends[0]), float(ends[1])

    return convert


def whole(least: int, most: float = np.inf) -> Callable[[Any, str], int]:
    """Return a converter to an integer from ``least`` to ``most``."""

    def convert(value: Any, what: str) -> int:
        if not is_integer(value) or not least <= value <= most:
            limit = f"of at least {least}" if most == np.inf else f"from {least} to {most:.0f}"
            raise ConfigError(f"{what} must be an integer {limit}, not {value!r}")
        return int(value)

    return convert


def optional(convert: Callable[[Any, str], T]) -> Callable[[Any, str], T | None]:
    """Return a converter that keeps ``None``."""
    return lambda value, what: None if value is None else convert(value, what)


def color(value: float | Sequence[float], what: str) -> Color:
    values = items(value)
    if len(values) not in (1, 3) or not all(isinstance(v, (int, float, np.number)) for v in values):
        raise ConfigError(f"{what} must be a number or three of them, not {value!r}")
    return tuple(float(v) for v in values)


def fill(value: float | Sequence[float] | None, what: str) -> Color:
    """Convert to a color; ``None`` means black."""
    return color(0.0 if value is None else value, what)


optional_fill = optional(color)
"""Affine maps of tensors treat ``None`` differently from black."""


def flag(value: Any, what: str) -> bool:
    return bool(value)


def antialias(value: bool | None, what: str) -> bool:
    """Convert torchvision's ``antialias``: only ``False`` disables it, and ``None`` means the default, ``True``."""
    return value is not False


_INTERPOLATIONS: tuple[str, ...] = get_args(InterpolationName)


def interpolation(value: Any, what: str) -> str:
    """Convert torchvision's ``InterpolationMode``, or the name of one, to the name."""
    name = getattr(value, "value", value)
    if name not in _INTERPOLATIONS:
        raise ConfigError(f"interpolation must be one of {', '.join(_INTERPOLATIONS)}, not {value!r}")
    return str(name)


def interpolations(value: Any, what: str) -> str | tuple[str, ...]:
    """Convert to one name, or to several from which each image draws one."""
    names = tuple(interpolation(v, what) for v in items(value))
    return names[0] if len(names) == 1 else names


def dtype(value: Any, what: str) -> Dtype:
    """Convert a torch dtype, or the name of one, to the name."""
    name = str(value).removeprefix("torch.")
    if name not in get_args(Dtype):
        raise ConfigError(f"dtype must be one of {', '.join(get_args(Dtype))}, not {value!r}")
    return cast(Dtype, name)
