"""Check whether DALI can be imported, without importing it."""

from __future__ import annotations

import importlib.util


def installed() -> bool:
    """Return whether DALI can be imported."""
    try:
        return importlib.util.find_spec("nvidia.dali") is not None
    except ModuleNotFoundError:
        return False
