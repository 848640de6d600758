"""A process that talks to stores on behalf of a forked process. The clients have threads, which do not survive a fork.

A worker process that used its parent's client would wait forever. The helper (:mod:`.helper_process`) is a plain
program on pipes, like the processes that probe images, and ends with the process that started it.
"""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
import threading
from collections.abc import Sequence
from typing import Any

from ..storage import Found
from .clients import ByteRange, Client

_BOOT = """
import sys, json
sys.path[:], given = map(json.loads, sys.argv[1:])
from gpupipe.sources.remote.helper_process import serve
serve(*given)
"""


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

    def _ask(self, what: str, *given: Any) -> Any:
        with self._lock:
            assert self._process.stdin is not None and self._process.stdout is not None
            try:
                pickle.dump((what, given), self._process.stdin)
                self._process.stdin.flush()
                answer = pickle.load(self._process.stdout)
            except (OSError, EOFError, ValueError, pickle.PickleError):
                answer = ConnectionError(f"the process that reads from stores ended with status {self._process.poll()}")
        if isinstance(answer, OSError):
            raise answer
        return answer

    def look(self, urls: Sequence[str]) -> list[Found | OSError]:
        found: list[Found | OSError] = self._ask("look", list(urls))
        return found

    def names(self, folder: str, start: str, deep: bool) -> list[str]:
        names: list[str] = self._ask("names", folder, start, deep)
        return names

    def fetch(self, ranges: Sequence[ByteRange]) -> list[memoryview | OSError]:
        found = self._ask("fetch", list(ranges))
        return [it if isinstance(it, OSError) else memoryview(it) for it in found]
