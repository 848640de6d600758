"""Library functions that a script has replaced by its own."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import FunctionType, ModuleType
from typing import Any

import torch
from PIL import Image

__all__ = ["replaced"]

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
    for name, value in getattr(obj, "__dict__", {}).items():
        if callable(value) and callable(getattr(cls, name, None)):
            yield f"{cls.__name__}.{name} of this object"
    for base in cls.__mro__:
        if base is torch.nn.Module:
            break  # profilers and others wrap its methods, which then call the original
        if _library(base.__module__) in _LIBRARIES:
            yield from _in_class(base)
    yield from _in_class(Image.Image)
    for module in _FUNCTIONS:
        if module in sys.modules:
            yield from _in_module(sys.modules[module])


def _in_class(cls: type) -> Iterator[str]:
    for name, value in vars(cls).items():
        if name not in _HARMLESS and _is_foreign(getattr(value, "__func__", value)):
            yield f"{cls.__name__}.{name}"


def _in_module(module: ModuleType) -> Iterator[str]:
    for name, value in vars(module).items():
        if _is_foreign(value):
            yield f"{module.__name__}.{name}"


def _is_foreign(value: Any) -> bool:
    """Tell whether another module defines the code. A decorator may change ``__module__``, but not the code's
    globals."""
    return isinstance(value, FunctionType) and _library(str(value.__globals__.get("__name__"))) not in _SOURCES


def _library(module: str) -> str:
    return module.partition(".")[0]
