"""Functions that low layers call and higher layers provide. ``gpupipe/__init__.py`` registers them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["one_sample"]


def _nothing(dataset: Any, index: int) -> tuple[Any, Any]:
    raise RuntimeError("gpupipe/__init__.py did not run: import gpupipe before its parts")


one_sample: Callable[[Any, int], tuple[Any, Any]] = _nothing
"""Return ``(transformed image, label)`` of one sample of a dataset, computed by the reference engine."""
