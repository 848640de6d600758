"""The formats: every module of this folder that has a class of its own name."""

from __future__ import annotations

import pkgutil
from importlib import import_module
from typing import Any

__all__ = ["load"]

_FOLDER = __name__.rpartition(".")[0]
_MODULES = {it.name.replace("_", ""): it.name for it in pkgutil.iter_modules(import_module(_FOLDER).__path__)}


def load(name: str) -> Any:
    """The dataset class of a name. Raises :class:`AttributeError` if no format has that name."""
    module = _MODULES.get(name.lower())
    found = None if module is None else getattr(import_module(f"{_FOLDER}.{module}"), name, None)
    if found is None:
        raise AttributeError(f"module 'gpupipe.datasets' has no attribute {name!r}")
    return found
