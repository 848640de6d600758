"""Recognizing an object by the module and the name of its class."""

from __future__ import annotations

import functools
from types import FunctionType
from typing import Any

from ..printable import representation
from ..reasons import without_addresses

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
"""Members that a subclass may define without changing what its base class does."""


def known_class(obj: Any, *modules: str) -> type | None:
    """Return the first class of ``obj``, starting from its own, that is defined in one of the modules or below them."""
    return _known_class(type(obj), modules)  # type: ignore[arg-type]


@functools.lru_cache(1024)
def _known_class(kind: type, modules: tuple[str, ...]) -> type | None:
    for cls in kind.__mro__:
        if any(cls.__module__ == m or cls.__module__.startswith(f"{m}.") for m in modules):
            return cls
    return None


def exact_name(obj: Any, module: str) -> str:
    """Return the name of the object's class if the module or one below it defines that class, otherwise ``""``. A class
    that inherits from such a class does not count."""
    return type(obj).__name__ if known_class(obj, module) is type(obj) else ""


def changed_methods(obj: Any, base: type) -> list[str]:
    """Return the members that the subclasses between ``obj`` and ``base`` define and that could change its behavior;
    empty for ``base`` itself."""
    found = []
    for cls in type(obj).__mro__:
        if cls is base:
            break
        found += [f"{cls.__qualname__}.{name}" for name in vars(cls) if name not in _HARMLESS]
    return found


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
