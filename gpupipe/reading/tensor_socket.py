"""A socket without a file, through which a worker process shares the memory of its tensors.

torch makes multiprocessing listen on a socket in a temporary folder, which remains if the worker is killed. Linux has
socket names that are not files and end with the process. Every user of the machine can reach these, so connections of
users other than the worker's (and root) are closed before a byte is read; multiprocessing then checks its key as usual.
All use of multiprocessing's private names is in this file.
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

_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid: struct ucred


def listen_without_a_file() -> None:
    """Start the socket of this process, a new worker. On other systems than Linux it remains a file."""
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
    """``sys.excepthook`` of a worker, which hides errors of multiprocessing's thread that shares memory.

    They occur if a parent is interrupted while it takes over the memory of a tensor.
    """
    here = threading.current_thread() is resource_sharer._resource_sharer._thread  # type: ignore[attr-defined]
    if not (here and issubclass(kind, (OSError, EOFError))):
        sys.__excepthook__(kind, error, trace)
