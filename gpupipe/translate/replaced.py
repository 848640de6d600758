"""Library functions that a script has replaced by its own."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from operator import is_
from types import FunctionType, ModuleType
from typing import Any
from weakref import WeakKeyDictionary

import torch
from PIL import Image

_LIBRARIES = ("timm", "torch", "torchvision")
"""Libraries whose classes are recognized by name."""
_SOURCES = {"PIL", "gpupipe", *_LIBRARIES, *sys.stdlib_module_names}
"""Libraries that may define functions in these classes. Decorators come from the standard library or torch, and
gpupipe's ``convert`` of images does what Pillow's does."""
_FUNCTIONS = (
    "PIL.Image",
    "PIL.ImageEnhance",
    "PIL.ImageFilter",
    "PIL.ImageOps",
    "torchvision.datasets.folder",
    "torchvision.transforms._functional_pil",
    "torchvision.transforms._functional_tensor",
    "torchvision.transforms.functional",
    "torchvision.transforms.v2.functional",
)
"""Modules with functions that transforms and datasets call."""
_HARMLESS = ("__init__", "__repr__", "__str__", "extra_repr", "show")
"""Methods that make no image. What the first of them sets is read."""


def replaced(obj: Any) -> str:
    """Return the name of a library function that ``obj`` calls and that a script has replaced, such as
    ``RandomCrop.get_params``; ``""`` if there is none."""
    return next(_replaced(obj), "")


def _replaced(obj: Any) -> Iterator[str]:
    cls = type(obj)
    # An attribute hides a method of the class, as after transform.forward = my_function.
    for name, value in getattr(obj, "__dict__", {}).items():
        if callable(value) and callable(getattr(cls, name, None)):
            yield f"{cls.__name__}.{name} of this object"
    for base in cls.__mro__:
        if base is torch.nn.Module:
            break  # profilers and others wrap its methods, which then call the original
        if _library(base.__module__) in _LIBRARIES:
            yield from _foreign(base)
    # Transforms of PIL images call Pillow's methods in the end.
    yield from _foreign(Image.Image)
    for module in _FUNCTIONS:
        if module in sys.modules:
            yield from _foreign(sys.modules[module])


def _foreign(owner: type | ModuleType) -> list[str]:
    """Return the names of the foreign functions of a class or module. Loaders ask dozens of times when they start, and
    comparing with the values that were there last is fifty times as fast as looking at each."""
    values = list(vars(owner).values())
    last, names = _LAST.get(owner, ([], []))
    if len(last) != len(values) or not all(map(is_, last, values)):
        names = [f"{owner.__name__}.{name}" for name, value in vars(owner).items() if is_foreign(name, value)]
        _LAST[owner] = values, names
    return names


_LAST: WeakKeyDictionary[type | ModuleType, tuple[list[Any], list[str]]] = WeakKeyDictionary()


def is_foreign(name: str, value: Any) -> bool:
    """Tell whether another module defines the code. A decorator may change ``__module__``, but not the code's
    globals."""
    function = getattr(value, "__func__", value)
    if name in _HARMLESS or not isinstance(function, FunctionType):
        return False
    return _library(str(function.__globals__.get("__name__"))) not in _SOURCES


def _library(module: str) -> str:
    return module.partition(".")[0]
