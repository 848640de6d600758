"""Packages that a single format needs and that gpupipe does not depend on."""

from __future__ import annotations

import importlib
import json
from typing import Any

from ..errors import MissingDependency


def need(module: str, extra: str, why: str) -> Any:
    """Import a module that comes with ``gpupipe-loader[extra]`` on first use.

    Raises :class:`MissingDependency` with the command that installs it.
    """
    try:
        return importlib.import_module(module)
    except ImportError as e:
        package, name = f"gpupipe-loader[{extra}]", module.partition(".")[0]
        raise MissingDependency(f"{why}, and {name} cannot be imported ({e}): pip install '{package}'") from None


class NotJsonError(ValueError):
    """A text is not valid JSON."""


def parse_json(text: str | bytes) -> Any:
    """Parse JSON like :func:`json.loads`. Raises :class:`NotJsonError`, also for values that are nested too deeply."""
    try:
        return json.loads(text)
    except RecursionError:
        raise NotJsonError("its values are nested too deeply") from None
    except ValueError as e:
        raise NotJsonError(str(e)) from None
