"""Recognizing an object by the module and the name of its class."""

from __future__ import annotations

from types import FunctionType
from typing import Any

from ..printable import representation
from ..reasons import without_addresses


def exact_name(obj: Any, *modules: str) -> str:
    """Return the name of the object's class if one of the modules or one below them defines that class, otherwise
    ``""``. A class that inherits from such a class does not count."""
    cls = type(obj)
    return cls.__name__ if any(f"{cls.__module__}.".startswith(f"{module}.") for module in modules) else ""


def class_name(obj: Any) -> str:
    """Return ``module.Class`` of an object."""
    return f"{type(obj).__module__}.{type(obj).__qualname__}"


def shown(obj: Any) -> str:
    """Return ``repr(obj)`` shortened to one line, without addresses. A function appears as its name, a lambda with its
    line number."""
    if isinstance(obj, FunctionType):
        line = f":{obj.__code__.co_firstlineno}" if obj.__name__ == "<lambda>" else ""
        return obj.__qualname__ + line
    try:
        text = without_addresses(" ".join(representation(obj).split()))
    except Exception:  # a script's __repr__ must not break the report that shows it
        text = f"<{type(obj).__name__}>"
    return text if len(text) <= 120 else f"{text[:117]}..."
