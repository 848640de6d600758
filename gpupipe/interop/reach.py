"""Functions that a dataset's ``__getitem__`` may reach, and what they name."""

from __future__ import annotations

import dis
import functools
import random
from collections.abc import Iterator, Mapping
from itertools import pairwise
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch

from .code import codes_of, global_names, is_full, is_installed, own_classes
from .marks import CACHED, held, is_transform, kept, named

RESETS = {
    "fork_rng", "isolate_rng", "manual_seed", "manual_seed_all", "seed", "seed_everything", "set_determinism",
    "set_rng_state", "set_seed", "set_state", "setstate",
}  # fmt: skip
"""Names of functions that reset a random generator."""
_FEW = 100
_DEEP = 6
_AROUND = ("torch.utils.data", "torchvision.transforms", "torch.nn.modules.container")
"""Libraries whose objects may hold the script's functions and datasets."""
_COMPARISONS = ("IS_OP", "COMPARE_OP", "CONTAINS_OP")
_ENDS = (*_COMPARISONS, "POP_", "RAISE_VARARGS", "RETURN_", "STORE_")
"""Beginnings of the names of instructions that end what code does with a value."""
_NOTHING = ("CACHE", "EXTENDED_ARG", "NOP", "PRECALL", "RESUME")
_NO_IMAGES = {"bool", "bytes", "complex", "dict", "float", "frozenset", "int", "list", "range", "set", "str", "tuple"}
"""Classes that cannot be the class of an image."""
_CALLABLE = (FunctionType, BuiltinFunctionType, MethodType)
_NO_VARIABLES = (type, FunctionType, BuiltinFunctionType, ModuleType, functools.partial)
GENERATORS = (random.Random, np.random.Generator, np.random.RandomState, torch.Generator)
_GLOBAL = tuple(getattr(function, "__self__", None) for function in (random.random, np.random.get_state))
"""Generators behind the functions of ``random`` and ``numpy.random``."""


def draws_globally(function: Any) -> bool:
    """Tell whether it is a function of ``random`` or ``numpy.random``, such as ``randint`` after ``from numpy.random
    import randint``. It is a method of a generator, whose state does not belong to the object that holds it."""
    is_method = isinstance(function, (BuiltinFunctionType, MethodType))
    return is_method and any(function.__self__ is one for one in _GLOBAL)


def owner_of(method: Any) -> Any:
    """Return the object of a method in C that may change: a random generator, as for ``random.Random(0).random``, or a
    list, dictionary or set, as for ``table.get``. Return ``None`` for anything else, and for the generators of
    ``random`` and ``numpy.random`` themselves."""
    owner = method.__self__ if isinstance(method, BuiltinFunctionType) else None
    may_change = isinstance(owner, (*GENERATORS, list, dict, set)) and not draws_globally(method)
    return owner if may_change else None


def reached(ds: Any) -> Iterator[CodeType]:
    """Iterate over the code of ``__getitem__``, the methods of its class that it names, and the functions of its
    modules, without code of installed libraries."""
    for function in functions_reached(ds):
        yield from codes_of(function.__code__)


def variables_reached(of: Any) -> Iterator[tuple[dict[str, Any], str]]:
    """Iterate over (module's variables, name) of each global variable that is named by the code of a dataset, a
    callable object or a function. Functions, classes and modules do not count."""
    for function in functions_reached(of):
        names = {name for code in codes_of(function.__code__) for name in global_names(code)}
        for name in sorted(names & function.__globals__.keys()):
            value = function.__globals__[name]
            is_variable = not isinstance(value, _NO_VARIABLES) or owner_of(value) is not None
            if is_variable and not draws_globally(value):
                yield function.__globals__, name


def has_own_code(ds: Any) -> bool:
    """Tell whether a dataset runs code of the script, or has a class of it."""
    return next(own_classes(type(ds)), None) is not None or next(functions_reached(ds), None) is not None


def transforms_outside(ds: Any) -> Iterator[Any]:
    """Iterate over transforms, and containers of them, that a dataset's code names as global variables or encloses, or
    that its classes hold."""
    if not hasattr(type(ds), "__getitem__"):
        return
    parts = [part for function in functions_reached(ds) for part in held(function)]
    for part in (*parts, *(member for cls in own_classes(type(ds)) for member in vars(cls).values())):
        inner = part if isinstance(part, (Mapping, list, tuple)) else [part]
        # The values of a WeakKeyDictionary have no length.
        if len(inner) <= _FEW and any(map(is_transform, inner.values() if isinstance(inner, Mapping) else inner)):
            yield part


class Reach:
    """What the code of a dataset names, encloses or finds in its classes."""

    def __init__(self, ds: Any):
        self.functions = list(functions_reached(ds))
        self._classes = list(dict.fromkeys(cls for one in _objects(ds, 0, set()) for cls in own_classes(type(one))))
        self._names = [(function.__globals__, named(function)) for function in self.functions]

    def values(self) -> list[Any]:
        """Return the functions and their global variables, what they enclose, and the members of their classes, as they
        are now."""
        found: list[Any] = []
        for variables, names in self._names:
            found += map(variables.get, names)
        for function in self.functions:
            found += kept(function)
        for cls in self._classes:
            found += vars(cls).values()
        return found


def functions_reached(value: Any) -> Iterator[FunctionType]:
    """Iterate over the functions of a function or an object, and of objects of the script's classes that it holds, such
    as the dataset that a wrapper reads. The methods of these objects, and functions of the script's modules and
    classes, count if any of the code names them."""
    # Not by their code, which the functions of one decorator share although each encloses another function.
    seen: set[FunctionType] = set()
    names, owners, todo = set[str](), list[Mapping[str, Any]](), list[Any]()
    for one in _objects(value, 0, set()):
        cls = type(one)
        todo += [one, *(getattr(cls, name, None) for name in ("__getitem__", "__call__", "forward"))]
        todo += getattr(one, "__dict__", {}).values()
        owners += [vars(base) for base in own_classes(cls)]
    while todo:
        found = _function_of(todo.pop())
        if isinstance(found, property):
            todo += [found.fget, found.fset, found.fdel]
        elif _is_own(found) and not any(vars(found) is known for known in owners):
            owners.append(vars(found))
            todo += [vars(found)[name] for name in names & vars(found).keys()]
        if not isinstance(found, FunctionType) or found in seen or is_installed(found.__code__.co_filename):
            continue
        seen.add(found)
        yield found
        todo += [cell.cell_contents for cell in found.__closure__ or () if is_full(cell)]
        for part in codes_of(found.__code__):
            todo += [found.__globals__.get(name) for name in global_names(part)]
            # A name in the code may be that of a method, as in self._read.
            new = {*part.co_names} - names
            names |= new
            todo += [inside[name] for inside in owners for name in new & inside.keys()]


def _is_own(value: Any) -> bool:
    """Tell whether it is a module or a class of the script."""
    if isinstance(value, ModuleType):
        return not is_installed(getattr(value, "__file__", None))
    return isinstance(value, type) and next(own_classes(value), None) is value


def _function_of(value: Any) -> Any:
    """Return the function of a method or of a cached function, and any other value itself."""
    if isinstance(value, (MethodType, staticmethod, classmethod)):
        return _function_of(value.__func__)
    return _function_of(value.__wrapped__) if isinstance(value, CACHED) else value


def _objects(value: Any, depth: int, seen: set[int]) -> Iterator[Any]:
    """Iterate over an object and the functions and objects of the script's classes that it holds, also within objects
    of libraries."""
    if id(value) in seen or depth > _DEEP:
        return
    seen.add(id(value))
    if not depth or _has_code(type(value)):
        yield value
    parts = value if isinstance(value, (list, tuple)) else getattr(value, "__dict__", {})
    # Longer lists hold samples rather than code.
    if len(parts) <= _FEW:
        for part in parts.values() if isinstance(parts, Mapping) else parts:
            if isinstance(part, (list, tuple, FunctionType)) or _has_code(type(part)):
                yield from _objects(part, depth + 1, seen)


def _has_code(cls: type) -> bool:
    """Tell whether the script wrote a class, or a library's class holds what the script wrote."""
    return cls.__module__.startswith(_AROUND) or next(own_classes(cls), None) is not None


def calls_reached(ds: Any) -> set[str]:
    """Return the names of the functions and methods that the dataset's code calls. A function that was imported by
    another name has both."""
    found = set[str]()
    for function in functions_reached(ds):
        for code in codes_of(function.__code__):
            found.update(_called(code))
            known = (function.__globals__.get(name) for name in global_names(code))
            found.update(str(name) for value in known if (name := _name_of_library(value)))
    return found


def _name_of_library(value: Any) -> str | None:
    return getattr(value, "__name__", None) if isinstance(value, _CALLABLE) else None


def _called(code: CodeType) -> Iterator[str]:
    steps = list(dis.get_instructions(code))
    for before, step in pairwise(steps):
        if step.opname == "LOAD_METHOD" or step.opname.startswith("LOAD_GLOBAL"):
            yield str(step.argval)
        elif step.opname == "LOAD_ATTR" and not before.opname.startswith(("LOAD_FAST", "LOAD_DEREF")):
            yield str(step.argval)  # a module's function, such as numpy.random.seed; self.seed is a value


def asks_for_types(ds: Any) -> bool:
    """Tell whether the dataset's code asks for the ``type()`` or the ``__class__`` of something that may be an image. A
    stand-in has a type of its own."""
    return any(_asks_for_types(code) for code in reached(ds))


def _asks_for_types(code: CodeType) -> bool:
    if not {"type", "__class__"} & {*code.co_names}:
        return False
    steps = [step for step in dis.get_instructions(code) if step.opname not in _NOTHING]
    # Python deletes the name of a caught exception.
    harmless = {"self", "cls", *(step.argval for step in steps if step.opname == "DELETE_FAST")}
    for i, step in enumerate(steps):
        if step.opname.startswith("LOAD_ATTR") and step.argval == "__class__":
            is_plain, after = steps[i - 1].argval in harmless, i + 1
        elif step.opname.startswith("LOAD_GLOBAL") and step.argval == "type":
            after = next((n for n, s in enumerate(steps[i:], i) if s.opname.startswith("CALL")), i) + 1
            is_plain = after == i + 3 and steps[i + 1].argval in harmless
        else:
            continue
        if not is_plain and _is_used(steps, i, after):
            return True
    return False


def _is_used(steps: list[dis.Instruction], start: int, after: int) -> bool:
    """Tell whether code does more with the type of something than to make another one, to show it, or to compare it
    with classes that images do not have. The steps from ``start`` to ``after`` find out the type."""
    # A type is called, as in type(parts)(...), if PUSH_NULL stands before it, or after it since Python 3.13.
    if "PUSH_NULL" in (steps[start - 1].opname if start else "", steps[after].opname):
        return False
    end = next((n for n, s in enumerate(steps[after:], after) if s.opname.startswith(_ENDS)), len(steps) - 1)
    if steps[end].opname in ("RAISE_VARARGS", "POP_TOP"):
        return False
    if steps[end].opname in _COMPARISONS:
        # What type(x) is compared with may stand on either side.
        near = [*steps[max(0, start - 1) : start], *steps[start + 1 : end]]
        others = {str(s.argval) for s in near if s.opname.startswith("LOAD_GLOBAL")}
        # A comparison with str or int is about a path or a label, not about an image.
        return not others or not others <= _NO_IMAGES
    return True
