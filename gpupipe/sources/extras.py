"""Packages that one format needs and gpupipe does not."""

from __future__ import annotations

import importlib
from typing import Any

from ..errors import MissingDependency

__all__ = ["need"]


def need(module: str, extra: str, why: str) -> Any:
    """A module that comes with ``gpupipe-loader[extra]``, imported when it is needed.

    Raises :class:`MissingDependency` saying how to install it.
    """
    try:
        return importlib.import_module(module)
    except ImportError as e:
        package, name = f"gpupipe-loader[{extra}]", module.partition(".")[0]
        raise MissingDependency(f"{why}, and {name} cannot be imported ({e}): pip install '{package}'") from None
