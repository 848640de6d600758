"""Recognising an object by the module and the name of its class."""

from __future__ import annotations

import functools
from types import FunctionType
from typing import Any

from ..reasons import without_addresses

__all__ = ["changed_methods", "class_name", "exact_name", "known_class", "shown"]

_HARMLESS = {
    "__annotations__",
    "__dict__",
    "__doc__",
    "__firstlineno__",
    "__init__",
    "__module__",
    "__parameters__",
    "__qualname__",
    "__repr__",
    "__static_attributes__",
    "__str__",
    "__weakref__",
    "extra_repr",
}
"""What a subclass may define and still do what its base does."""


def known_class(obj: Any, *modules: str) -> type | None:
    """The first class of ``obj``, going up from its own, that lives in one of the modules or below them."""
    return _known_class(type(obj), modules)  # type: ignore[arg-type]


@functools.lru_cache(1024)
def _known_class(kind: type, modules: tuple[str, ...]) -> type | None:
    for cls in kind.__mro__:
        if any(cls.__module__ == m or cls.__module__.startswith(f"{m}.") for m in modules):
            return cls
    return None


def exact_name(obj: Any, module: str) -> str:
    """The name of the object's class if that lives in the module or below it, not a subclass; otherwise ``""``."""
    return type(obj).__name__ if known_class(obj, module) is type(obj) else ""


def changed_methods(obj: Any, base: type) -> list[str]:
    """What the subclasses between ``obj`` and ``base`` define that could change what it does; empty for ``base``
    itself."""
    found = []
    for cls in type(obj).__mro__:
        if cls is base:
            break
        found += [f"{cls.__qualname__}.{name}" for name in vars(cls) if name not in _HARMLESS]
    return found


def class_name(obj: Any) -> str:
    """``module.Class`` of an object."""
    return f"{type(obj).__module__}.{type(obj).__qualname__}"


def shown(obj: Any) -> str:
    """``repr`` in one line that is not too long, without addresses. A function is shown by its name, a lambda also by
    its line."""
    if isinstance(obj, FunctionType):
        line = f":{obj.__code__.co_firstlineno}" if obj.__name__ == "<lambda>" else ""
        return obj.__qualname__ + line
    try:
        text = without_addresses(" ".join(repr(obj).split()))
    except Exception:  # of a script's class, in the middle of a report about something else
        text = f"<{type(obj).__name__}>"
    return text if len(text) <= 120 else f"{text[:117]}..."
