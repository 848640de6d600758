"""Whether a script's function always returns the same for the same number, so that a table can hold its results."""

from __future__ import annotations

import dis
import functools
from collections.abc import Mapping
from types import BuiltinFunctionType, FunctionType, MethodType
from typing import Any

import numpy as np
import torch

from .closed import NotClosed, Outside
from .code import codes_of
from .draws import FUNCTIONS

__all__ = ["check_pure"]

_HOLDERS = (Mapping, list, tuple, np.ndarray, torch.Tensor)
_STORES = ("STORE_ATTR", "STORE_SUBSCR", "DELETE_ATTR", "DELETE_SUBSCR")
_CHANGES = {"add", "append", "appendleft", "clear", "discard", "extend", "insert", "pop", "popitem", "popleft",
            "remove", "reverse", "setdefault", "sort", "update"}  # fmt: skip
"""Methods of lists, sets and dictionaries that change them."""


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
            if any(step.opname in _STORES for step in dis.get_instructions(code)) or _CHANGES & {*code.co_names}:
                raise NotClosed("it changes what it holds")


def check_pure(function: Any) -> None:
    """Raise :class:`NotClosed` with the reason if a function draws random numbers or changes what it holds, or may do
    so."""
    if function is int or (isinstance(function, BuiltinFunctionType) and isinstance(function.__self__, _HOLDERS)):
        return
    found = _Reached()
    if isinstance(function, (FunctionType, MethodType, BuiltinFunctionType, functools.partial)):
        found.called(function)
    else:
        found.instance(function)
    for module, name in FUNCTIONS:
        if any(value is getattr(module, name) for value in found.constants):
            raise NotClosed(f"it draws random numbers with {module.__name__}.{name}()")
