"""Packages that one format needs and gpupipe does not."""

from __future__ import annotations

import importlib
import json
from typing import Any

from ..errors import MissingDependency

__all__ = ["NotJsonError", "need", "parse_json"]


def need(module: str, extra: str, why: str) -> Any:
    """A module that comes with ``gpupipe-loader[extra]``, imported when it is needed.

    Raises :class:`MissingDependency` saying how to install it.
    """
    try:
        return importlib.import_module(module)
    except ImportError as e:
        package, name = f"gpupipe-loader[{extra}]", module.partition(".")[0]
        raise MissingDependency(f"{why}, and {name} cannot be imported ({e}): pip install '{package}'") from None


class NotJsonError(ValueError):
    """A text is no JSON."""


def parse_json(text: str | bytes) -> Any:
    """As :func:`json.loads`. Raises :class:`NotJsonError`, also for values that lie too deep in each other."""
    try:
        return json.loads(text)
    except RecursionError:
        raise NotJsonError("its values lie too deep in each other") from None
    except ValueError as e:
        raise NotJsonError(str(e)) from None
