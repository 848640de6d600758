"""Closed user code: everything that the code can see beside the image is known, so it will do again what it did once.

Code is *closed* if it reaches nothing but numbers, texts, the random functions that are replaced while it runs,
functions of Pillow, torch and numpy, transforms, and other closed user code. A clock, a file, a random generator of
its own or ``print`` makes it open.
"""

from __future__ import annotations

import builtins
import dis
import functools
import random
from collections.abc import Iterator, Mapping
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch
from PIL import Image

from .code import codes_of
from .draws import FUNCTIONS
from .marks import is_transform

_LIBRARIES = ("PIL", "abc", "math", "numbers", "numpy", "random", "torch", "torchvision", "typing")
_BUILTINS = frozenset(
    ("abs", "all", "any", "bool", "callable", "dict", "enumerate", "float", "getattr", "hasattr", "int", "isinstance",
     "issubclass", "len", "list", "map", "max", "min", "object", "range", "reversed", "round", "set", "sorted", "str",
     "sum", "super", "tuple", "type", "zip", "Ellipsis", "NotImplemented")
)  # fmt: skip
_GENERATORS = (random.Random, np.random.RandomState, np.random.Generator, np.random.BitGenerator, torch.Generator)
CONSTANTS = (int, float, complex, str, bytes, type(None), np.generic, torch.dtype, torch.device)
_FUNCTIONS = (
    torch.tensor, torch.as_tensor, torch.from_numpy, torch.is_tensor, torch.add, torch.sub, torch.mul, torch.div,
    torch.clamp, np.array, np.asarray, np.ascontiguousarray, np.transpose, np.sqrt, np.clip,
)  # fmt: skip
_OF_ANY_CLASS = ("__abstractmethods__", "__annotate_func__", "__annotations__", "__dict__", "__orig_bases__",
                 "__parameters__", "__slotnames__", "__static_attributes__", "__weakref__", "_abc_impl")  # fmt: skip
_LARGE = 1 << 16
"""Size in bytes above which an array is not a setting."""
_MOST = 1000
"""Largest number of things that code may reach."""


class NotClosed(Exception):
    """User code can see something that may change unnoticed."""


class Outside:
    """Everything that a piece of user code reaches; see :func:`outside`."""

    def __init__(self) -> None:
        self.constants: list[Any] = []
        """Numbers, texts, functions and classes that the code reads from outside of what it holds. They may be
        replaced."""
        self.namespaces: list[dict[str, Any]] = []
        """Variables of the modules that define the functions."""
        self._done: list[Any] = []

    def _is_new(self, value: Any) -> bool:
        # By identity, because values may be unhashable or have an __eq__ of their own.
        if any(value is other for other in self._done):
            return False
        if len(self._done) == _MOST:
            raise NotClosed("it reaches too many things")
        self._done.append(value)
        return True

    # ---- what it holds

    def held(self, value: Any) -> None:
        """Add a value of an attribute or an argument. :mod:`gpupipe.interop.snapshot` sees when it changes."""
        if isinstance(value, CONSTANTS) or is_transform(value) or not self._is_new(value):
            return
        if isinstance(value, (list, tuple)):
            for part in value:
                self.held(part)
        elif isinstance(value, Mapping):
            _check_looked_up(value)
            for part in value.values():
                self.held(part)
        elif isinstance(value, (np.ndarray, torch.Tensor)):
            # An array of objects may hold anything.
            if value.nbytes > _LARGE or (isinstance(value, np.ndarray) and value.dtype.hasobject):
                raise NotClosed("it holds a large array")
        elif isinstance(value, (FunctionType, functools.partial, type, BuiltinFunctionType)):
            self.called(value)
        elif callable(value) and not isinstance(value, MethodType):
            self.instance(value)
        # Every module of torch holds an empty set, for the names of buffers that are not saved.
        elif not (isinstance(value, (set, frozenset)) and not value):
            raise NotClosed(f"it holds a {type(value).__name__}")

    def instance(self, value: Any) -> None:
        """Add an instance of a class of user code, or a module of torch's."""
        if not hasattr(value, "__dict__"):
            raise NotClosed(f"{type(value).__name__} has no __dict__ that shows what it holds")
        self.of_type(type(value))
        for part in vars(value).values():
            self.held(part)

    # ---- what it calls

    def called(self, value: Any) -> None:
        if is_of_library(value):
            if not _is_known(value):
                raise NotClosed(f"it uses {_module(value)}.{value.__name__}")
        elif isinstance(value, functools.partial):
            self.called(value.func)
            self.held([*value.args, *value.keywords.values()])
        elif isinstance(value, MethodType):
            self.called(value.__func__)
            self.held(value.__self__)
        elif isinstance(value, type):
            self.of_type(value)
            # of_type() leaves __init__ out, because it usually has run already. Calling the class runs it.
            self._function_of(value, "__init__")
        elif isinstance(value, FunctionType):
            self.function(value)
        else:
            raise NotClosed(f"it calls {getattr(value, '__qualname__', value)}")

    def of_type(self, cls: type) -> None:
        if not self._is_new(cls):
            return
        if is_of_library(cls):
            if not _is_known(cls):
                raise NotClosed(f"it has a {cls.__name__}")
            return
        for base in cls.__mro__:
            if base is object or is_of_library(base):
                continue
            for name, part in vars(base).items():
                self._of_class(name, part)

    def _of_class(self, name: str, part: Any) -> None:
        if isinstance(part, (staticmethod, classmethod)):
            part = part.__func__
        if isinstance(part, property):
            for function in (part.fget, part.fset, part.fdel):
                self._of_class(name, function)
        elif isinstance(part, FunctionType):
            self.constants.append(part)
            if name not in ("__init__", "__repr__", "__str__"):  # they run earlier or make texts
                self.function(part)
        elif isinstance(part, (*CONSTANTS, tuple)):
            self.constant(part)
        elif name not in _OF_ANY_CLASS:
            raise NotClosed(f"its class has {name}")

    def _function_of(self, cls: type, name: str) -> None:
        found = getattr(cls, name, None)
        if isinstance(found, FunctionType) and not is_of_library(found):
            self.function(found)

    def function(self, function: FunctionType) -> None:
        if not self._is_new(function):
            return
        # While the code runs, random functions that its module imported by name are replaced there, too.
        self.namespaces.append(function.__globals__)
        for default in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
            self.constant(default)
        cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
        for code in codes_of(function.__code__):
            for value in _read(code, function.__globals__, cells):
                self.constant(value)

    def constant(self, value: Any) -> None:
        """Add a value that the code reads from outside."""
        self.constants.append(value)
        if isinstance(value, tuple):
            for part in value:
                self.constant(part)
        elif isinstance(value, (FunctionType, type, BuiltinFunctionType)) or is_of_library(value):
            self.called(value)
        elif not isinstance(value, CONSTANTS) and not is_transform(value):
            raise NotClosed(f"it reads a {type(value).__name__} from outside")


def outside(function: Any) -> Outside:
    """Return everything that a function or a callable object reaches. Raise :class:`NotClosed` if some of it is
    unknown."""
    found = Outside()
    if isinstance(function, (FunctionType, MethodType, functools.partial)):
        found.called(function)
    else:
        found.instance(function)
    return found


def _module(thing: Any) -> str:
    """Return the name of the module that defines a function or a class."""
    module = getattr(thing, "__module__", None)
    if module is None and (owner := getattr(thing, "__self__", None)) is not None:
        # Such as random.random, which is a method of a generator, and torch.rand, which belongs to a class in C.
        module = getattr(owner, "__module__", None) or type(owner).__module__
    return str(module or "")


def is_of_library(thing: Any) -> bool:
    """Tell whether a library defines a function or a class."""
    is_either = isinstance(thing, (FunctionType, BuiltinFunctionType, MethodType, type, np.ufunc))
    return is_either and _module(thing).partition(".")[0] in _LIBRARIES


def _is_known(thing: Any) -> bool:
    """Tell whether a library's function or class always returns the same for the same arguments. Files, the number of a
    worker and settings of the process do not."""
    # These draw, but from the plan's numbers while the code runs.
    if _is_replaced(thing):
        return True
    module = _module(thing)
    library = module.partition(".")[0]
    if isinstance(thing, type):
        kinds = {"torch": (torch.nn.Module, torch.Tensor), "numpy": (np.generic, np.ndarray)}.get(library, (object,))
        return issubclass(thing, kinds) and not issubclass(thing, _GENERATORS)
    # Much of these libraries draws, reads files or depends on settings, so only what is listed counts as known.
    if library in ("torch", "numpy", "random"):
        return module == "torch.nn.functional" or any(thing is one for one in _FUNCTIONS)
    # Image.open reads a file, and so do torchvision.io and torchvision.datasets.
    return thing is not Image.open and (library != "torchvision" or module.startswith("torchvision.transforms."))


def _is_replaced(function: Any) -> bool:
    return any(function is getattr(module, name) for module, name in FUNCTIONS)


# ---- what code reads

_BETWEEN = ("CACHE", "EXTENDED_ARG", "NOP", "PRECALL", "PUSH_NULL", "RESUME")
"""Instructions that read a variable without changing it."""
_MISSING = object()


@functools.lru_cache(maxsize=256)
def _steps(code: CodeType) -> list[dis.Instruction]:
    return [step for step in dis.get_instructions(code) if step.opname not in _BETWEEN]


def _read(code: CodeType, names: dict[str, Any], cells: dict[str, Any]) -> Iterator[Any]:
    """Iterate over what code reads from outside of itself. For a module, this is what the code reads in it."""
    steps = _steps(code)
    for at, step in enumerate(steps):
        name = str(step.argval)
        if step.opname in ("STORE_GLOBAL", "DELETE_GLOBAL"):
            raise NotClosed(f"it assigns to the global variable {name}")
        if step.opname == "LOAD_NAME":  # in the body of a class, whose names may come from any scope
            raise NotClosed("it defines a class while it runs")
        if step.opname in ("STORE_DEREF", "DELETE_DEREF") and name in cells:
            raise NotClosed(f"it assigns to {name}, which belongs to an enclosing function")
        if step.opname == "IMPORT_NAME":
            raise NotClosed(f"it imports {name} while it runs")
        if step.opname == "LOAD_GLOBAL":
            value = names.get(name, _MISSING)
            if value is _MISSING:
                _check_builtin(name)
                continue
        elif step.opname in ("LOAD_DEREF", "LOAD_CLASSDEREF", "LOAD_FROM_DICT_OR_DEREF") and name in cells:
            if name == "__class__":  # super() without arguments reads it
                continue
            value = _content(cells[name], name)
        else:
            continue
        parts = []
        # np.random.rand is a name and two attributes. What counts is the function at the end, not the module.
        for after in steps[at + 1 :]:
            if after.opname not in ("LOAD_ATTR", "LOAD_METHOD"):
                break
            parts.append(str(after.argval))
        yield from _found(value, name, parts)


def _found(value: Any, path: str, parts: list[str]) -> Iterator[Any]:
    """Iterate over the objects that a name and the attributes after it refer to."""
    for name in parts:
        if not isinstance(value, ModuleType):
            break
        module, path = value, f"{path}.{name}"
        value = getattr(module, name, _MISSING)
        if value is _MISSING:
            raise NotClosed(f"there is no {path}")
    # Whoever gets the module may take anything from it.
    if isinstance(value, ModuleType):
        raise NotClosed(f"it passes on the module {path} itself")
    yield value


def _check_looked_up(table: Any) -> None:
    """Raise :class:`NotClosed` if looking up a key may change the table, as in a ``defaultdict`` that numbers names."""
    if hasattr(type(table), "__missing__"):
        raise NotClosed(f"it holds a {type(table).__name__}, which may change when a key is looked up")


def _content(cell: Any, name: str) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        raise NotClosed(f"{name} has no value yet") from None


def _check_builtin(name: str) -> None:
    value = getattr(builtins, name, _MISSING)
    is_error = isinstance(value, type) and issubclass(value, BaseException)
    if name not in _BUILTINS and not is_error:
        raise NotClosed(f"it uses {name}")


# ---- functions that always return the same for the same number, so that a table can hold their results

_HOLDERS = (Mapping, list, tuple, np.ndarray, torch.Tensor)
_STORES = ("STORE_ATTR", "STORE_SUBSCR", "DELETE_ATTR", "DELETE_SUBSCR")
_CHANGES = {"add", "append", "appendleft", "clear", "discard", "extend", "insert", "pop", "popitem", "popleft",
            "remove", "reverse", "setdefault", "sort", "update"}  # fmt: skip
"""Methods of lists, sets and dictionaries that change them."""
_LOOKS = ("__contains__", "__getitem__", "count", "get", "index", "item", "take")
"""Methods of tables that only look something up."""


class _Reached(Outside):
    """Also collects tables that a function looks into; :class:`~gpupipe.interop.snapshot.Snapshot` sees when they
    change."""

    def constant(self, value: Any) -> None:
        if isinstance(value, _HOLDERS):
            self.held(value)
        else:
            super().constant(value)

    def function(self, function: FunctionType) -> None:
        super().function(function)
        for code in codes_of(function.__code__):
            # Bytecode shows no types, so any method with one of these names counts as a change.
            if any(step.opname in _STORES for step in dis.get_instructions(code)) or _CHANGES & {*code.co_names}:
                raise NotClosed("it changes what it holds")


def check_pure(function: Any) -> None:
    """Raise :class:`NotClosed` with the reason if a function draws random numbers or changes what it holds, or may do
    so."""
    is_of_table = isinstance(function, BuiltinFunctionType) and isinstance(function.__self__, _HOLDERS)
    if is_of_table:
        _check_looked_up(function.__self__)
    if function is int or (is_of_table and function.__name__ in _LOOKS):
        return
    found = _Reached()
    if isinstance(function, (FunctionType, MethodType, BuiltinFunctionType, functools.partial)):
        found.called(function)
    else:
        found.instance(function)
    check_draws(found)


def check_draws(found: Outside) -> None:
    """Raise :class:`NotClosed` if code reaches a random function. Closed code may draw because its draws are replaced
    elsewhere, but nothing replaces them here."""
    for module, name in FUNCTIONS:
        if any(value is getattr(module, name) for value in found.constants):
            raise NotClosed(f"it draws random numbers with {module.__name__}.{name}()")
