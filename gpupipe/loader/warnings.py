"""Warnings of loaders, each of which a process says once."""

from __future__ import annotations

import logging

__all__ = ["warn_once"]

_SAID: set[str] = set()


def warn_once(text: str) -> None:
    """Not again if the same loader is made anew, as some scripts do in every epoch."""
    if text not in _SAID:
        _SAID.add(text)
        logging.getLogger("gpupipe").warning(text)
