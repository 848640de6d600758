"""Catches calls of functions of Pillow and torchvision while a script's own code makes samples.

A caught function keeps its identity: its code is exchanged, not the name that refers to it. So callers that imported it
by name before gpupipe was imported are caught too, and a function that a script puts in its place is the script's. This
is the only module of gpupipe that changes other libraries.

Everything is caught once per process and stays so. While the switch is off, a caught function costs one more call.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType, FunctionType
from typing import Any

import torch


class _Here(threading.local):
    on = False


_HERE = _Here()
_caught: dict[FunctionType, FunctionType] = {}
"""Functions as they were, by the functions that are caught."""


def is_on() -> bool:
    """Return whether images that this thread opens wait."""
    return _HERE.on


@contextmanager
def switched(on: bool) -> Iterator[None]:
    """Turn the switch on or off in this thread."""
    was, _HERE.on = _HERE.on, on
    try:
        yield
    finally:
        _HERE.on = was


def turn_on_for_good() -> None:
    """Turn the switch on in all threads of this process, a worker process."""
    _Here.on = _HERE.on = True


def catch(function: Any, instead: Callable[..., Any], *, always: bool = False) -> None:
    """Let calls of a function go to ``instead(function as it was, *args, **kwargs)`` while the switch is on.

    Args:
        function: a Python function of another library. Anything else, such as an object that a script put in its place,
            is left alone.
        always: whether calls go to ``instead`` while the switch is off, too.
    """
    if not isinstance(function, FunctionType) or function in _caught or not _is_a_librarys(function):
        return
    code = function.__code__
    really = FunctionType(code, function.__globals__, function.__name__, function.__defaults__, function.__closure__)
    really.__kwdefaults__ = function.__kwdefaults__
    _caught[function] = really
    first = code.co_varnames[0] if code.co_argcount else None

    def call(*args: Any, **kwargs: Any) -> Any:
        if not args and first in kwargs:
            args = (kwargs.pop(first),)
        # A compiler that follows the call gets to see the library's own code.
        if torch.compiler.is_compiling():
            return really(*args, **kwargs)
        return instead(really, *args, **kwargs)

    name = f"_gpupipe_{len(_caught)}_"
    function.__globals__.update({f"{name}call": call, f"{name}really": really, "_gpupipe_here": _HERE})
    function.__signature__ = inspect.signature(really)  # type: ignore[attr-defined]
    function.__code__ = _redirected(code, name, always)


def uncaught(function: Any) -> Any:
    """Return a function as its library defines it."""
    return _caught.get(function, function)


def _is_a_librarys(function: FunctionType) -> bool:
    """Return whether a function was not made by a script, which may have assigned its own one to a library."""
    return function.__module__.partition(".")[0] in ("PIL", "torch", "torchvision", "timm")


def _redirected(code: CodeType, name: str, always: bool) -> CodeType:
    """Return code that calls the functions with ``name`` among the globals, with as many free variables as ``code``.

    It seems to come from the same lines, which TorchScript reads.
    """
    free = [f"c{k}" for k in range(len(code.co_freevars))]
    call = f"{name}call(*args, **kwargs)"
    body = call if always else f"{call} if _gpupipe_here.on else {name}really(*args, **kwargs)"
    source = (
        f"def outer({', '.join(free)}):\n"
        "    def function(*args, **kwargs):\n"
        f"        return {body}\n"
        f"        {'; '.join(free)}\n"
        "    return function\n"
    )
    made: dict[str, Any] = {}
    exec(compile(source, code.co_filename, "exec"), made)
    function: FunctionType = made["outer"](*free)
    return function.__code__.replace(
        co_name=code.co_name, co_qualname=code.co_qualname, co_firstlineno=code.co_firstlineno
    )
