"""Selects the client that reads a kind of URL in this process."""

from __future__ import annotations

import contextlib
import os

from ...errors import MissingDependency
from .clients import Client, Fsspec, Obstore
from .helper import Helper

_OBSTORE = {"s3", "s3a", "gs", "az", "azure", "adl", "abfs", "abfss", "http", "https"}
"""Schemes that obstore supports."""

_started_in: int | None = None
"""Process in which a client was first made. After a fork its threads do not exist, and waiting for them would
never end."""


def client_for(scheme: str, connections: int, timeout: float) -> Client:
    """Return the client for a kind of URL in this process. Raises :class:`MissingDependency`."""
    global _started_in
    if _started_in not in (None, os.getpid()):
        return Helper(scheme, connections, timeout)
    _started_in = os.getpid()
    if scheme in _OBSTORE and _installed("obstore"):
        return Obstore(connections, timeout)
    if _installed("fsspec"):
        import fsspec

        # It knows schemes whose package is not installed.
        with contextlib.suppress(ImportError, ValueError):
            fsspec.get_filesystem_class(scheme)
            return Fsspec(connections)
    hint = (
        "pip install 'gpupipe-loader[remote]'"
        if scheme in _OBSTORE
        else f"install fsspec, and its package for {scheme}"
    )
    raise MissingDependency(f"{scheme}:// cannot be read by any installed package: {hint}")


def _installed(name: str) -> bool:
    import importlib.util

    return importlib.util.find_spec(name) is not None
