"""Engines: ``Dali``, ``Torch`` and ``Null``, each a frozen set of options for ``DataLoader(engine=...)``."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .dali import Dali
    from .null import Null
    from .torch import Torch

__all__ = ["Dali", "Null", "Torch"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(importlib.import_module(f".{name.lower()}", __name__), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
