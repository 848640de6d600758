"""Plugins that open image formats for Pillow: functions that a script, or a package that it imports, has registered.

Other processes do not have them, so what is found there depends on more than the file.
"""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Callable
from typing import IO, Any

from PIL import Image

_PREFIX = 16
"""Bytes that Pillow shows a plugin."""

Opener = tuple[str, Any, Any]
"""Name of the format, class of its images, and function that accepts the first bytes of a file or ``None``."""


def plugins() -> list[Opener]:
    """Return what was registered beside Pillow's own plugins, in the order in which Pillow asks."""
    return [
        (name, *Image.OPEN[name])
        for name in Image.ID
        if name in Image.OPEN and not str(getattr(Image.OPEN[name][0], "__module__", "")).startswith("PIL.")
    ]


def origins() -> list[list[str]]:
    """Return the format and the origin of every plugin, as JSON values. Another version is another origin."""
    return [[name, *_origin(factory)] for name, factory, _ in plugins()]


def _origin(factory: Any) -> tuple[str, str, str]:
    module = str(getattr(factory, "__module__", ""))
    version = getattr(sys.modules.get(module.partition(".")[0]), "__version__", None)
    if not isinstance(version, str):
        version = _file_of(module)
    return module, str(getattr(factory, "__qualname__", type(factory).__qualname__)), version


def _file_of(module: str) -> str:
    """Return the file of a module with its time, because a script has no version."""
    file = getattr(sys.modules.get(module), "__file__", None)
    try:
        return f"{file} {os.stat(file).st_mtime_ns}" if file else ""
    except OSError:
        return str(file)


def accepted(file: IO[bytes], among: list[Opener]) -> bool:
    """Return whether a plugin may open a file."""
    head = file.read(_PREFIX)
    return any(accept is None or _accepts(accept, head) for _, _, accept in among)


def _accepts(accept: Callable[[bytes], Any], head: bytes) -> bool:
    try:
        answer = accept(head)
    except Exception:  # Pillow continues after most of them, and so it may open the file
        return True
    return bool(answer) and not isinstance(answer, str)  # a text says why it is refused


def pickled() -> bytes | None:
    """Return the plugins for :func:`register`, or ``None`` if they cannot be sent to another process."""
    try:
        return pickle.dumps(plugins())
    except Exception:  # classes of a notebook, functions without a name
        return None


def register(sent: bytes) -> None:
    """Register the plugins of another process in this one."""
    for name, factory, accept in pickle.loads(sent):
        Image.register_open(name, factory, accept)
