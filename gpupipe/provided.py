"""Functions that low layers call and higher layers provide. ``gpupipe/__init__.py`` registers them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__all__ = ["one_sample"]


def _nothing(dataset: Any, index: int) -> Any:
    raise RuntimeError("gpupipe/__init__.py did not run: import gpupipe before its parts")


one_sample: Callable[[Any, int], Any] = _nothing
"""Return one sample of a dataset, with its image transformed by the reference engine."""
