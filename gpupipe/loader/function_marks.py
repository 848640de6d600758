"""Fingerprints that tell functions apart across processes."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import partial
from types import CodeType, FunctionType, MethodType
from typing import Any

_VALUES = (int, float, complex, str, bytes, bool, type(None), type(Ellipsis))


def mark_of(function: Callable[..., Any]) -> str:
    """Return eight digits that depend on a function's bytecode, constants, defaults and enclosed values.

    They are equal in every process of one version of Python. Values whose representation depends on the process count
    by their type.
    """
    return hashlib.blake2b(repr(_form(function, ())).encode(), digest_size=4).hexdigest()


def _form(value: Any, within: tuple[int, ...]) -> Any:
    if isinstance(value, _VALUES):
        return repr(value)
    if id(value) in within:
        return "recursive"
    within = (*within, id(value))
    if isinstance(value, (list, tuple)):
        return [_form(item, within) for item in value]
    if isinstance(value, (set, frozenset)):  # their order depends on the process
        return sorted(repr(_form(item, within)) for item in value)
    if isinstance(value, dict):
        return [(_form(key, within), _form(item, within)) for key, item in value.items()]
    if isinstance(value, CodeType):
        # File and line numbers do not count, because they change nothing that the code does.
        return [value.co_code, value.co_names, _form(value.co_consts, within)]
    if isinstance(value, FunctionType):
        cells = [_form(_content(cell), within) for cell in value.__closure__ or ()]
        return [_form(part, within) for part in (value.__code__, value.__defaults__, value.__kwdefaults__)] + cells
    if isinstance(value, MethodType):
        return [_form(value.__func__, within), _form(value.__self__, within)]
    if isinstance(value, partial):
        return [_form(part, within) for part in (value.func, value.args, value.keywords)]
    if isinstance(value, type):
        return f"{value.__module__}.{value.__qualname__}"
    call = next((vars(cls)["__call__"] for cls in type(value).__mro__ if "__call__" in vars(cls)), None)
    held = getattr(value, "__dict__", {}) if isinstance(call, FunctionType) else {}
    return [_form(type(value), within), _form(call, within) if held else None, _form(held, within)]


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # still empty
        return None
