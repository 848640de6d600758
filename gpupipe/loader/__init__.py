"""``DataLoader``, the class that a training script iterates over. The other modules implement it."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .dataloader import DataLoader

__all__ = ["DataLoader"]


def __getattr__(name: str) -> Any:
    if name == "DataLoader":
        return importlib.import_module(".dataloader", __name__).DataLoader
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
