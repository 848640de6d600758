"""DALI's modules, imported when one of their functions is first used.

Importing DALI takes longer than the rest of a loader's start, and a loader can tell where DALI's graph ends without it.
:mod:`.engine` imports DALI for good, with the first batch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__all__ = ["conditional", "fn", "math", "types"]


class _Module:
    def __init__(self, name: str):
        self._name = name

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module(self._name), name)


if TYPE_CHECKING:
    from nvidia.dali import fn, math, types
    from nvidia.dali.fn import _conditional as conditional  # type: ignore[attr-defined]
else:
    fn, math, types = (_Module(f"nvidia.dali.{name}") for name in ("fn", "math", "types"))
    conditional = _Module("nvidia.dali.fn._conditional")
