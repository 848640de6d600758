"""The socket from which a worker process gives out the memory of its tensors, without a file.

torch lets multiprocessing listen on a socket in a temporary folder, which stays if the worker is killed. Linux has
names of sockets that are no files, and end with the process. Every user of the machine can reach these, so all but the
user of the worker (and root) are sent away before a byte is read; multiprocessing then asks for its key as ever.

Everything that is known here of multiprocessing's private names is in this file.
"""

from __future__ import annotations

import multiprocessing
import os
import secrets
import socket
import struct
import sys
import threading
from multiprocessing import resource_sharer
from multiprocessing.connection import Connection, Listener
from types import TracebackType
from typing import Any

__all__ = ["listen_without_a_file"]

_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid: struct ucred


def listen_without_a_file() -> None:
    """Start the socket of this process, a worker that has just begun. Elsewhere than on Linux it will be a file."""
    sys.excepthook = _report_error
    if not sys.platform.startswith("linux"):
        return
    sharer: Any = resource_sharer._resource_sharer  # type: ignore[attr-defined]
    name = f"\0gpupipe-{os.getpid()}-{secrets.token_hex(8)}"
    listener: Any = Listener(name, "AF_UNIX", 128, multiprocessing.current_process().authkey)
    listener._listener.accept = lambda: _accept(listener._listener._socket)
    sharer._listener, sharer._address = listener, listener.address
    sharer._thread = threading.Thread(target=sharer._serve, name="gpupipe-tensors", daemon=True)
    sharer._thread.start()


def _accept(listening: socket.socket) -> Connection:
    while True:
        found, _ = listening.accept()
        given = found.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        _, user, _ = _CREDENTIALS.unpack(given)
        if user in (0, os.geteuid()):
            found.setblocking(True)
            return Connection(found.detach())
        found.close()


def _report_error(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """``sys.excepthook`` of a worker. A parent that was interrupted while it took over the memory of a tensor has left
    in the middle of it, and multiprocessing's thread that gives out the memory would print that."""
    here = threading.current_thread() is resource_sharer._resource_sharer._thread  # type: ignore[attr-defined]
    if not (here and issubclass(kind, (OSError, EOFError))):
        sys.__excepthook__(kind, error, trace)
