"""Fields of transforms: what a user may give, and the one form in which it is kept.

A field names its converter, which checks what is given and returns what is kept::

    @frozen
    class CenterCrop(Transform):
        size: Pair = Converted(pair)  # takes int | Sequence[int], and is tuple[int, int] from then on

Converters get the value and the words that an error begins with, such as ``CenterCrop: size``. What concerns several
fields at once is checked in ``__post_init__``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar, cast, get_args, overload

import numpy as np

from ..errors import ConfigError
from .ops import Dtype

if TYPE_CHECKING:
    from typing import dataclass_transform
else:

    def dataclass_transform(**_: Any) -> Any:  # Python 3.10 has none, and it only tells type checkers something
        return lambda decorator: decorator


__all__ = [
    "Colour",
    "Converted",
    "Fill",
    "Flag",
    "Interpolation",
    "Names",
    "Pair",
    "Probability",
    "Range",
    "antialias",
    "dtype",
    "fill",
    "flag",
    "frozen",
    "increasing",
    "interpolation",
    "interpolations",
    "items",
    "number",
    "numbers",
    "optional_fill",
    "pair",
    "probability",
]

T = TypeVar("T")
Given = TypeVar("Given")
Kept = TypeVar("Kept")

_REQUIRED: Any = object()


class Converted(Generic[Given, Kept]):
    """A field that keeps ``convert(value, what)`` of what it is given.

    It is a data descriptor, which dataclasses support: they take what it gives for the class as the default, and set it
    as any other field. So a transform stays a frozen dataclass, and type checkers know both types.
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
            raise AttributeError(self._name)  # which tells a dataclass that there is no default
        return self._default

    def __set__(self, instance: object, value: Given) -> None:
        instance.__dict__[self._name] = self._convert(value, f"{type(instance).__name__}: {self._name}")


@dataclass_transform(frozen_default=True, field_specifiers=(Converted,))
def frozen(cls: type[T]) -> type[T]:
    """A frozen dataclass that has ``repr``, ``==`` and ``hash`` from :class:`~gpupipe.transforms.Transform`, and not
    code of its own for each of them, which would take a tenth of the time that an import takes."""
    return dataclass(frozen=True, repr=False, eq=False)(cls)


Colour = tuple[float, ...]
"""One number for all channels, or one each."""

Pair: TypeAlias = Converted["int | Sequence[int]", tuple[int, int]]
Probability: TypeAlias = Converted[float, float]
Range: TypeAlias = Converted[Sequence[float], tuple[float, float]]
Interpolation: TypeAlias = Converted[Any, str]
Names: TypeAlias = Converted[Any, "str | tuple[str, ...]"]
Flag: TypeAlias = Converted["bool | None", bool]
Fill: TypeAlias = Converted["float | Sequence[float] | None", Colour]


def items(value: Any) -> tuple[Any, ...]:
    """What a list argument holds; one value that is no list stands for a list of itself."""
    return tuple(value) if isinstance(value, Iterable) and not isinstance(value, str) else (value,)


def pair(value: int | Sequence[int], what: str) -> tuple[int, int]:
    """(height, width) of a torchvision size argument: one number means a square."""
    numbers = items(value)
    if len(numbers) == 1:
        numbers = numbers * 2
    if len(numbers) != 2 or not all(isinstance(n, (int, np.integer)) and n > 0 for n in numbers):
        raise ConfigError(f"{what} must be a positive integer or a pair (height, width) of them, not {value!r}")
    return int(numbers[0]), int(numbers[1])


def probability(value: float, what: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0.0 <= value <= 1.0:
        raise ConfigError(f"{what} must be a number between 0 and 1, not {value!r}")
    return float(value)


def number(*, least: float) -> Callable[[Any, str], float]:
    """Converter to a finite number of at least ``least``."""

    def convert(value: Any, what: str) -> float:
        if isinstance(value, bool) or not isinstance(value, (int, float, np.number)) or not least <= value < np.inf:
            limit = f" of at least {least:g}" if np.isfinite(least) else ""
            raise ConfigError(f"{what} must be a number{limit}, not {value!r}")
        return float(value)

    return convert


def numbers(*counts: int) -> Callable[[Any, str], tuple[float, ...]]:
    """Converter to as many numbers as one of ``counts``."""

    def convert(value: Any, what: str) -> tuple[float, ...]:
        values = items(value)
        if len(values) not in counts or not all(isinstance(v, (int, float, np.number)) for v in values):
            raise ConfigError(f"{what} must be {' or '.join(map(str, counts))} number(s), not {value!r}")
        return tuple(float(v) for v in values)

    return convert


def increasing(value: Sequence[float], what: str) -> tuple[float, float]:
    """(low, high) above zero."""
    bounds = items(value)
    if len(bounds) != 2 or not 0 < bounds[0] <= bounds[1]:
        raise ConfigError(f"{what} must be (low, high) with 0 < low <= high, not {value!r}")
    return float(bounds[0]), float(bounds[1])


def fill(value: float | Sequence[float] | None, what: str) -> Colour:
    """A colour; ``None`` is black."""
    values = (0.0,) if value is None else items(value)
    if len(values) not in (1, 3) or not all(isinstance(v, (int, float)) for v in values):
        raise ConfigError(f"{what} must be a number or three of them, not {value!r}")
    return tuple(float(v) for v in values)


def optional_fill(value: float | Sequence[float] | None, what: str) -> Colour | None:
    """A colour; ``None`` stays, because to the maps of tensors it is not the same as black."""
    return None if value is None else numbers(1, 3)(value, what)


def flag(value: Any, what: str) -> bool:
    return bool(value)


def antialias(value: bool | None, what: str) -> bool:
    """Only ``False`` is no; torchvision's ``None`` means its default."""
    return value is not False


_INTERPOLATIONS = ("nearest", "nearest-exact", "bilinear", "bicubic", "box", "hamming", "lanczos")


def interpolation(value: Any, what: str) -> str:
    """torchvision's ``InterpolationMode`` or its name, as a name."""
    name = getattr(value, "value", value)
    if name not in _INTERPOLATIONS:
        raise ConfigError(f"interpolation must be one of {', '.join(_INTERPOLATIONS)}, not {value!r}")
    return str(name)


def interpolations(value: Any, what: str) -> str | tuple[str, ...]:
    """One name, or several of which each image draws one."""
    names = tuple(interpolation(v, what) for v in items(value))
    return names[0] if len(names) == 1 else names


def dtype(value: Any, what: str) -> Dtype:
    """A torch dtype or its name, as a name."""
    name = str(value).removeprefix("torch.")
    if name not in get_args(Dtype):
        raise ConfigError(f"dtype must be one of {', '.join(get_args(Dtype))}, not {value!r}")
    return cast(Dtype, name)
