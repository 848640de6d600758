"""A process that talks to stores on behalf of a forked process. The clients have threads, which do not survive a fork.

A worker process that used its parent's client would wait forever. The helper (:mod:`.helper_process`) is a plain
program on pipes, like the processes that probe images, and ends with the process that started it.
"""

from __future__ import annotations

import errno
import json
import subprocess
import sys
import threading
from collections.abc import Sequence
from typing import Any, BinaryIO

from ..storage import Found
from .clients import ByteRange, Client

_BOOT = """
import sys, json
sys.path[:], given = map(json.loads, sys.argv[1:])
from gpupipe.sources.remote.helper_process import serve
serve(*given)
"""


def send(stream: BinaryIO, about: Any, parts: Sequence[bytes | memoryview] = ()) -> None:
    """Send a JSON value and some bytes."""
    head = json.dumps([about, [len(part) for part in parts]]).encode()
    stream.write(len(head).to_bytes(8, "little") + head)
    for part in parts:
        stream.write(part)
    stream.flush()


def receive(stream: BinaryIO) -> tuple[Any, list[bytes]] | None:
    """Receive a message; ``None`` if the other side has ended."""
    length = stream.read(8)
    if len(length) < 8:
        return None
    about, lengths = json.loads(stream.read(int.from_bytes(length, "little")))
    parts = [stream.read(n) for n in lengths]
    return (about, parts) if [len(part) for part in parts] == lengths else None


class Helper(Client):
    """Client that asks a helper process, one request at a time. A request may contain many ranges."""

    def __init__(self, scheme: str, connections: int, timeout: float):
        given = (sys.path, [scheme, connections, timeout])
        self._process = subprocess.Popen(
            [sys.executable, "-c", _BOOT, *map(json.dumps, given)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self._lock = threading.Lock()

    def _ask(self, what: str, given: Any) -> tuple[Any, list[bytes]]:
        with self._lock:
            assert self._process.stdin is not None and self._process.stdout is not None
            try:
                send(self._process.stdin, [what, given])  # type: ignore[arg-type]
                answer = receive(self._process.stdout)  # type: ignore[arg-type]
            except (OSError, ValueError):
                answer = None
        if answer is None:
            raise ConnectionError(f"the process that reads from stores ended with status {self._process.poll()}")
        return answer

    def look(self, urls: Sequence[str]) -> list[Found | OSError]:
        found, _ = self._ask("look", list(urls))
        return [Found(*it) if isinstance(it[0], int) else error_of(it) for it in found]

    def names(self, folder: str, start: str = "", deep: bool = True) -> list[str]:
        ((good, found), _) = self._ask("names", [folder, start, deep])
        if not good:
            raise error_of(found)
        names: list[str] = found
        return names

    def fetch(self, ranges: Sequence[ByteRange]) -> list[memoryview | OSError]:
        errors, parts = self._ask("fetch", [list(r) for r in ranges])
        found = zip(errors, parts, strict=True)
        return [memoryview(part) if error is None else error_of(error) for error, part in found]

    def put(self, url: str, data: bytes) -> None:
        raise OSError(errno.ENOTSUP, "a forked process can only read")


def told(error: OSError) -> list[Any]:
    """Convert an error to JSON values."""
    return [type(error).__name__, error.errno, error.strerror or str(error)]


def error_of(told: list[Any]) -> OSError:
    """Convert JSON values back to an error."""
    kind, number, text = told
    if kind == "ConnectionError":
        return ConnectionError(text)
    return OSError(number, text)  # selects FileNotFoundError and other subclasses
