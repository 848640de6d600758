"""Selects the client that reads a kind of URL in this process."""

from __future__ import annotations

import importlib.util
import os

from ...errors import ConfigError, MissingDependency
from .clients import Client, Obstore
from .helper import Helper

_OBSTORE = {"s3", "s3a", "gs", "az", "azure", "adl", "abfs", "abfss", "http", "https"}
"""Schemes that obstore supports."""

_started_in: int | None = None
"""Process in which a client was first made. After a fork its threads do not exist, and waiting for them would
never end."""


def client_for(scheme: str, connections: int, timeout: float) -> Client:
    """Return the client for a kind of URL in this process. Raises :class:`ConfigError` and
    :class:`MissingDependency`."""
    global _started_in
    if _started_in not in (None, os.getpid()):
        return Helper(scheme, connections, timeout)
    _started_in = os.getpid()
    if scheme not in _OBSTORE:
        raise ConfigError(f"{scheme}:// cannot be read; stores are {', '.join(sorted(_OBSTORE))}")
    if importlib.util.find_spec("obstore") is None:
        raise MissingDependency(f"{scheme}:// is read by obstore: pip install 'gpupipe-loader[remote]'")
    return Obstore(connections, timeout)
