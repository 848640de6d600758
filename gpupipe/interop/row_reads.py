"""What a run of a dataset's code has read, to see whether another run could differ."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import BuiltinFunctionType, FunctionType
from typing import Any

import torch

from .code import is_full
from .replaced import is_foreign
from .row_values import Values
from .snapshot import digest

_MISSING = object()
_COMPARED = (int, float, complex, str, bytes)
"""Types whose values are compared; of all others the identity is."""


class Reads:
    """Things that were read, and what they were. Comparing them takes a few microseconds, and a little more for arrays
    and lists of indices."""

    def __init__(self) -> None:
        self._read: list[tuple[Callable[[], Any], Any]] = []
        self._add(torch.get_default_dtype)

    def _add(self, read: Callable[..., Any], *args: Any) -> Any:
        read = partial(read, *args)
        value = read()
        self._read.append((read, value))
        return value

    def changed(self) -> bool:
        """Tell whether anything is no longer what it was."""
        return any(not _is_same(read(), value) for read, value in self._read)

    # ---- what is read

    def variable(self, variables: Any, name: str) -> Any:
        """Read a variable of a module or an attribute of an object. Raises KeyError if there is none."""
        value = self._add(variables.get, name, _MISSING)
        if value is _MISSING:
            raise KeyError(name)
        return value

    def missing(self, attributes: dict[str, Any], name: str) -> None:
        """Note that an object has no attribute of its own with a name."""
        self._add(attributes.get, name, _MISSING)

    def member(self, cls: type, name: str) -> tuple[type, Any]:
        """Return the class that defines a member, and the member; ``object`` and ``None`` if no class does."""
        found: tuple[type, Any] = self._add(_member, cls, name)
        return found

    def attribute(self, owner: Any, name: str) -> Any:
        """Read an attribute of a module or of a class."""
        value = getattr(owner, name)
        if isinstance(value, (FunctionType, BuiltinFunctionType)) and not is_foreign("", value):
            # gpupipe itself replaces functions of libraries for a while.
            self._add(lambda: is_foreign("", getattr(owner, name, _MISSING)))
        else:
            self._add(getattr, owner, name, _MISSING)
        return value

    def function(self, function: FunctionType) -> None:
        self._add(_parts, function)

    def type_of(self, value: Any) -> type:
        kind: type = self._add(type, value)
        return kind

    def length(self, ds: Any) -> int:
        count: int = self._add(len, ds)
        return count

    def items(self, values: Any) -> None:
        """Read what a short list holds."""
        self._add(lambda: tuple(map(id, values)))

    def layout(self, value: Any) -> None:
        """Read where the values of an array or a tensor are, and how they lie there."""
        self._add(_layout, value)

    def indices(self, values: Values) -> None:
        """Read all values of which other ones depend, as those of a permutation."""
        last: Values | None = values
        while last is not None:
            if last.numbers is not None:
                self._add(lambda now, then: now == then, last.numbers, last.numbers.copy())
            else:
                self._add(digest, last.array)
            last = last.key


def _is_same(value: Any, other: Any) -> bool:
    if value is other or type(value) is not type(other):
        return value is other
    if isinstance(value, tuple):
        return len(value) == len(other) and all(map(_is_same, value, other))
    return isinstance(value, _COMPARED) and bool(value == other)


def _member(cls: type, name: str) -> tuple[type, Any]:
    return next(((base, vars(base)[name]) for base in cls.__mro__ if name in vars(base)), (object, None))


def _parts(function: FunctionType) -> tuple[int, ...]:
    """Return what makes a function, by identity."""
    cells = [cell.cell_contents if is_full(cell) else None for cell in function.__closure__ or ()]
    defaults = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    return tuple(map(id, [function.__code__, *defaults, *cells]))


def _layout(value: Any) -> tuple[Any, ...]:
    if isinstance(value, torch.Tensor):
        return value.data_ptr(), tuple(value.shape), value.stride(), str(value.dtype), value.requires_grad
    return value.__array_interface__["data"], value.shape, value.strides, value.dtype.str
