"""User functions in a pipeline."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from typing import Any, ClassVar

from ..errors import ConfigError
from ..printable import representation
from .fields import Converted, frozen
from .numbers import everywhere, seeds
from .ops import Call
from .ops.op import F64
from .transform import Images, Ops, Transform

__all__ = ["Lambda"]


def _callable(value: Any, what: str) -> Callable[[Any], Any]:
    if not callable(value):
        raise ConfigError(f"{what} must be callable, not {value!r}")
    return value  # type: ignore[no-any-return]


@frozen
class Lambda(Transform):
    """Call a function on every image. A function in the list of a :class:`Compose` becomes a ``Lambda``.

    As in torchvision, the function gets a PIL image before ``ToTensor``, ``ToImage`` and ``PILToTensor``, and a tensor
    [C, H, W] after them. It may modify its argument, and returns the same kind, size and data type. Its draws from the
    global generators of torch, numpy and Python depend only on seed, epoch and sample, and leave the generators
    unchanged.

    Both engines run the function on the host, for every device. DALI then decodes on the CPU, at most the window of a
    first crop. Threads run the transforms before and after the function, and the function itself runs in the thread
    that asks for the batch. For clips it is called for each frame, with the same draws for all frames of a clip.

    Args:
        lambd: the function. State, pipeline and fingerprint identify it by its qualified name, and a ``lambda`` by its
            line. A change of its body goes unnoticed.

    >>> Lambda(abs)
    Lambda(abs)
    """

    DRAWS: ClassVar[int] = 1

    lambd: Converted[Callable[[Any], Any], Callable[[Any], Any]] = Converted(_callable)

    def resolve(self, u: F64, images: Images) -> tuple[Ops, Images]:
        name = name_of(self.lambd)
        return (Call(everywhere(len(u)), seeds(u[:, 0]), function=self.lambd, name=name, kind=images.kind),), images

    def __repr__(self) -> str:
        return f"Lambda({name_of(self.lambd)})"


def name_of(function: Any) -> str:
    """Return a name that is the same in every process: the qualified name, with the line for a ``lambda``, never an
    address."""
    if isinstance(function, functools.partial):
        given = [*map(_value, function.args), *(f"{k}={_value(v)}" for k, v in sorted(function.keywords.items()))]
        return f"partial({', '.join([name_of(function.func), *given])})"
    owner = getattr(function, "__self__", None)
    if owner is not None and not isinstance(owner, type) and hasattr(function, "__func__"):
        return f"{name_of(owner)}.{function.__name__}"
    name = getattr(function, "__qualname__", None)
    if name is None:  # a callable object
        cls = type(function)
        try:
            shown = representation(function)
        except Exception:  # raised by a script's __repr__
            return _qualified(cls, cls.__qualname__)
        return _qualified(cls, cls.__qualname__) if _ADDRESS.search(shown) else shown
    line = f":{function.__code__.co_firstlineno}" if function.__name__ == "<lambda>" else ""
    return _qualified(function, name) + line


_ADDRESS = re.compile(r"\b0x[0-9a-fA-F]{4,}")


def _qualified(thing: Any, name: str) -> str:
    module = getattr(thing, "__module__", None)
    return name if module in (None, "builtins") else f"{module}.{name}"


def _value(value: Any) -> str:
    return name_of(value) if callable(value) or _ADDRESS.search(repr(value)) else repr(value)
