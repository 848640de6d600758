"""Copies of user code with marks in place of the library transforms that it holds."""

from __future__ import annotations

import copy
import functools
import typing
from collections.abc import Callable, Iterator, Mapping
from pathlib import PurePath
from types import BuiltinFunctionType, CellType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import IterableDataset

from ..datasets.sample_form import rebuilt
from ..transforms import Compose, Transform
from . import albumentations
from .classes import known_class
from .code import assigns_outside, codes_of, global_names, is_full, is_installed, own_classes

CACHED = type(functools.lru_cache(len))
"""Type of functions that ``functools`` keeps results of."""
_DEEP = 5
_MANY = 1000
"""Length above which a list is a list of samples."""
_CLOSED = (
    str, bytes, int, float, complex, type(None), type, FunctionType, BuiltinFunctionType, MethodType, ModuleType,
    np.ndarray, np.generic, torch.Tensor, torch.dtype, torch.device, torch.Generator, Image.Image,
    torch.jit.ScriptModule, PurePath, CACHED,
)  # fmt: skip
"""Types that contain no transform that could be exchanged."""

MakeMark = Callable[[Any], Any]


def is_transform(value: Any) -> bool:
    """Tell whether a value is a transform of a library or of gpupipe."""
    if isinstance(value, (Transform, Compose)):
        return True
    cls = known_class(value, "torchvision.transforms", "torch.nn.modules.container", "timm.data", albumentations.MODULE)
    # InterpolationMode, an enum of these modules, is not callable.
    return cls is not None and callable(value) and not isinstance(value, type)


def marked_function(function: Any, mark: MakeMark) -> tuple[Any, list[Any]]:
    """Copy a function, a method or a ``functools.partial`` with marks in its enclosed variables and its default
    arguments. Return the copy and the transforms that the marks stand for.

    Only the objects that lead to a transform are copied; the copy shares all others. A function that assigns to such
    variables stays as it is, because the assignment would not be visible outside.
    """
    marks = _Marks(mark)
    return marks.called(function), marks.found


def marked_dataset(ds: Any, mark: MakeMark) -> tuple[Any, list[Any], list[tuple[Any, Any]]]:
    """Copy a dataset with marks, also in the global variables that the script's methods and functions name and in their
    enclosed variables. Return the copy, the transforms, and (copy, original) of each object that was copied."""
    marks = _MarksInCode(mark)
    return marks.value(ds, 0), marks.found, marks.copied


def held(function: Any) -> Iterator[Any]:
    """Iterate over what :func:`marked_function` examines: default arguments and enclosed variables of a function."""
    if isinstance(function, functools.partial):
        yield from (*function.args, *function.keywords.values())
        yield from held(function.func)
    elif isinstance(function, FunctionType):
        yield from (function.__globals__[name] for name in named(function))
        yield from kept(function)


def kept(function: FunctionType) -> Iterator[Any]:
    """Iterate over default arguments and enclosed variables."""
    yield from (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())
    yield from (cell.cell_contents for cell in function.__closure__ or () if is_full(cell))


def named(function: FunctionType) -> list[str]:
    """Return the names of existing global variables that a function, or one defined in it, names."""
    names = {name for code in codes_of(function.__code__) for name in global_names(code)}
    return sorted(names & function.__globals__.keys())


class _Marks:
    def __init__(self, mark: MakeMark):
        self.found: list[Any] = []
        self.copied: list[tuple[Any, Any]] = []
        """(copy, original) of objects."""
        self._mark = mark
        self._done: dict[int, Any] = {}

    def value(self, value: Any, depth: int) -> Any:
        if id(value) in self._done:
            return self._done[id(value)]
        if isinstance(value, _CLOSED) or depth > _DEEP:
            return self.closed(value)
        # The outermost object is user code, even if its class derives from a library's.
        if depth and is_transform(value):
            self.found.append(value)
            made = self._mark(value)
        elif isinstance(value, (list, tuple)):
            made = self._sequence(value, depth)
        elif isinstance(value, Mapping):
            made = self._mapping(value, depth)
        else:
            made = self.object(value, depth) if hasattr(value, "__dict__") else value
        # An object is noted only after its parts, so a cycle ends at _DEEP.
        self._done[id(value)] = made
        return made

    def closed(self, value: Any) -> Any:
        return value

    def _sequence(self, value: Any, depth: int) -> Any:
        parts = [self.value(part, depth + 1) for part in value] if len(value) <= _MANY else value
        return rebuilt(value, parts) if any(map(_are_different, parts, value)) else value

    def _mapping(self, value: Mapping[Any, Any], depth: int) -> Any:
        if len(value) > _MANY:
            return value
        pairs = {key: self.value(part, depth + 1) for key, part in value.items()}
        return pairs if any(pairs[key] is not value[key] for key in pairs) else value

    def object(self, value: Any, depth: int) -> Any:
        own = vars(value)
        parts = {name: self.value(part, depth + 1) for name, part in own.items()}
        changed = {name: part for name, part in parts.items() if part is not own[name]}
        if isinstance(value, torch.nn.Module):  # which keeps modules among its attributes separately
            modules = {name: self.value(part, depth + 1) for name, part in own["_modules"].items()}
            replaced = {name: part for name, part in modules.items() if part is not own["_modules"][name]}
            if replaced:  # a mark is not a module
                changed["_modules"] = {name: part for name, part in modules.items() if name not in replaced}
                changed |= replaced
        if not changed:
            return value
        other = self.copy(value)
        other.__dict__.update(changed)
        return other

    def copy(self, value: Any) -> Any:
        other = shallow(value)
        self.copied.append((other, value))
        return other

    def called(self, function: Any) -> Any:
        if isinstance(function, functools.partial):
            inside = self.called(function.func)
            arguments = [self.value(part, 1) for part in function.args]
            named = {key: self.value(part, 1) for key, part in function.keywords.items()}
            return functools.partial(inside, *arguments, **named)
        if isinstance(function, MethodType):
            return MethodType(function.__func__, self.value(function.__self__, 1))
        return self.function(function) if isinstance(function, FunctionType) else self.value(function, 0)

    def variable(self, value: Any) -> Any:
        """Mark the value of a global variable."""
        return self.value(value, 1)

    def enclosed(self, value: Any) -> Any:
        """Mark a default argument or an enclosed variable."""
        return self.value(value, 1)

    def function(self, function: FunctionType) -> FunctionType:
        if assigns_outside(function.__code__):
            return function
        variables = {name: self.variable(function.__globals__[name]) for name in named(function)}
        variables = {name: value for name, value in variables.items() if value is not function.__globals__[name]}
        defaults = tuple(self.enclosed(value) for value in function.__defaults__ or ())
        by_name = {name: self.enclosed(value) for name, value in (function.__kwdefaults__ or {}).items()}
        cells = tuple(map(self._cell, function.__closure__ or ()))
        same = not any(map(_are_different, (*defaults, *by_name.values()), _defaults_of(function)))
        if not variables and same and not any(map(_are_different, cells, function.__closure__ or ())):
            return function
        outside = _Outside(function.__globals__, variables)
        made = FunctionType(function.__code__, outside, function.__name__, defaults or None, cells)
        functools.update_wrapper(made, function)
        # update_wrapper() has set it, and would lead back to the function without marks.
        del made.__wrapped__  # type: ignore[attr-defined]
        made.__kwdefaults__ = by_name or None
        return made

    def _cell(self, cell: CellType) -> CellType:
        if not is_full(cell):
            return cell
        made = self.enclosed(cell.cell_contents)
        return cell if made is cell.cell_contents else CellType(made)


class _MarksInCode(_Marks):
    """Also marks the functions of the script that a dataset's code reaches."""

    def __init__(self, mark: MakeMark):
        super().__init__(mark)
        self._variables: dict[int, Any] = {}
        self._enclosed: dict[int, Any] = {}

    def closed(self, value: Any) -> Any:
        if isinstance(value, FunctionType) and not is_installed(value.__code__.co_filename):
            if id(value) not in self._done:
                self._done[id(value)] = value  # for a function that calls itself
                self._done[id(value)] = self.function(value)
            return self._done[id(value)]
        return value

    def variable(self, value: Any) -> Any:
        return self._outside(value, self._variables)

    def enclosed(self, value: Any) -> Any:
        return self._outside(value, self._enclosed)

    def _outside(self, value: Any, done: dict[int, Any]) -> Any:
        # An object that the script shares with others is not copied, so all of them see what is written to it.
        if not isinstance(value, (FunctionType, list, tuple, Mapping)) and not is_transform(value):
            return value
        # A transform that the dataset holds as well gets two marks, because it is two transforms in a process that was
        # started with a copy of the dataset.
        inside, self._done = self._done, done
        try:
            return self.value(value, 1)
        finally:
            self._done = inside

    def object(self, value: Any, depth: int) -> Any:
        other = super().object(value, depth)
        members = self._members(value)
        if not members:
            return other
        return _of_class(self.copy(value) if other is value else other, members)

    def _members(self, value: Any) -> dict[str, Any]:
        """Return the methods and transforms of its classes that change when marked."""
        found: dict[str, Any] = {}
        if not hasattr(type(value), "__getitem__"):
            return found
        members: dict[str, Any] = {}
        for cls in own_classes(type(value)):
            # What a class has comes before what its base classes have, also if nothing in it is marked.
            members = {**vars(cls), **members}
        for name, member in members.items():
            # __init__ has run already.
            made = self._member(member) if name != "__init__" else member
            if made is not member:
                found[name] = made
        return found

    def _member(self, member: Any) -> Any:
        if isinstance(member, FunctionType):
            return self.closed(member)
        if isinstance(member, (staticmethod, classmethod)):
            made = self._member(member.__func__)
            return member if made is member.__func__ else type(member)(made)
        if isinstance(member, property):
            made = self._member(member.fget)
            return member if made is member.fget else member.getter(made)
        return self.variable(member)


class _Outside(dict[str, Any]):
    """Global variables of a module, with some values replaced."""

    def __init__(self, variables: dict[str, Any], others: dict[str, Any]):
        # For relative imports within a function, Python asks for these without __missing__().
        super().__init__({name: value for name, value in variables.items() if name.startswith("__")} | others)
        self._variables = variables

    def __missing__(self, name: str) -> Any:
        return self._variables[name]


class _Class(type):
    """A class that differs from its base class in some members only. Attributes set on it are set on the base class."""

    def __setattr__(cls, name: str, value: Any) -> None:
        setattr(cls.__mro__[1], name, value)

    def __delattr__(cls, name: str) -> None:
        delattr(cls.__mro__[1], name)


def _of_class(value: Any, members: dict[str, Any]) -> Any:
    """Return the object with other members of its class; unchanged if its class runs code when it is inherited from."""
    cls = type(value)
    by = next(vars(base)["__init_subclass__"] for base in cls.__mro__ if "__init_subclass__" in vars(base))
    quiet = [vars(base).get("__init_subclass__") for base in (object, typing.Generic, IterableDataset)]
    # Another metaclass may run code when a class is derived, too.
    if type(cls) is not type or not any(by is one for one in quiet):
        return value
    # Objects can change to the new class only if it has their layout, so it gets no slots of its own.
    kept = {"__module__": cls.__module__, "__qualname__": cls.__qualname__, "__doc__": cls.__doc__, "__slots__": ()}
    # Not through a __setattr__ of the script, such as that of a frozen dataclass.
    object.__setattr__(value, "__class__", _Class(cls.__name__, (cls,), {**kept, **members}))
    return value


def shallow(value: Any) -> Any:
    """Return a shallow copy of an object.

    ``copy.copy`` asks the empty copy for methods, which never ends in a ``__getattr__`` that passes on to an attribute.
    """
    cls: Any = type(value)
    own = {name for base in cls.__mro__[:-1] for name in vars(base)}
    if cls.__new__ is not object.__new__ or own & _COPIES or any(vars(c).get("__slots__") for c in cls.__mro__):
        return copy.copy(value)
    other = object.__new__(cls)
    other.__dict__.update(value.__dict__)
    return other


_COPIES = {
    *("__copy__", "__getnewargs__", "__getnewargs_ex__", "__getstate__", "__reduce__", "__reduce_ex__", "__setstate__"),
}
"""Methods that decide how an object is copied."""


def _are_different(one: Any, other: Any) -> bool:
    return one is not other


def _defaults_of(function: FunctionType) -> tuple[Any, ...]:
    return (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values())
