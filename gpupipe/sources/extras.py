"""Packages that a single format needs and that gpupipe does not depend on."""

from __future__ import annotations

import importlib
import json
import os
from collections.abc import Iterable
from typing import IO, Any

from ..errors import MissingDependency

_LARGEST = 64 << 20
"""Maximum number of bytes of a JSON file: a list of some 500,000 shards. Its values may take twenty times as many."""


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


def read_json(file: IO[bytes]) -> Any:
    """Read a JSON file, such as the list of shards of a dataset. Raises :class:`NotJsonError`, also for a file that is
    too large or nested too deeply, and :class:`OSError`."""
    text = file.read(_LARGEST + 1)
    if len(text) > _LARGEST:
        raise NotJsonError(f"it has more than {_LARGEST >> 20} MiB; name the shards themselves")
    return parse_json(text)


def file_names(names: Iterable[Any]) -> list[str]:
    """Return names of files from a JSON file as texts. Raises :class:`ValueError` for one that no file can have."""
    found = [str(name) for name in names]
    for name in found:
        os.fsencode(name)  # JSON can hold halves of characters
    return found
