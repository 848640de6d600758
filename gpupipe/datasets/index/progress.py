"""Progress of a scan, on stderr: one line that changes on a terminal, and otherwise lines, as in the log of a job."""

from __future__ import annotations

import os
import sys
from time import monotonic as _now
from types import TracebackType

_FIRST = 1.0
"""Seconds until the first line."""
_EVERY = {True: 0.2, False: 30.0}
"""Seconds between lines, on a terminal and elsewhere."""


class Progress:
    """Progress of a scan, as a context manager. A scan that is over within a second shows nothing.

    On a terminal a line appears and leaves no trace. Elsewhere one line appears after a second, another one every 30
    seconds, and the last one at the end. Of several ranks on one machine, only the first shows lines.
    """

    def __init__(self, what: str, total: int | None = None):
        self._what, self._total, self._done = what, total, 0
        self._terminal = sys.stderr is not None and sys.stderr.isatty()
        self._began = _now()
        shows = sys.stderr is not None and os.environ.get("LOCAL_RANK", "0") == "0"
        self._next_line = self._began + _FIRST if shows else float("inf")

    def __call__(self, done: int) -> None:
        """Report how much is done so far."""
        self._done = done
        now = _now()
        if now > self._next_line:
            self._next_line = now + _EVERY[self._terminal]
            of = f" of {self._total:,}" if self._total else ""
            speed = f", {done / (now - self._began):,.0f} files/s" if self._terminal else ""
            self._line(f"{done:,}{of} files{speed}")

    def _line(self, text: str) -> None:
        start, end = ("\r\x1b[K", "") if self._terminal else ("", "\n")
        print(f"{start}gpupipe: {self._what}: {text}", end=end, file=sys.stderr, flush=True)

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, kind: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None) -> None:
        now = _now()
        if now > self._began + _FIRST and self._next_line != float("inf"):
            if self._terminal:
                print("\r\x1b[K", end="", file=sys.stderr, flush=True)
            else:
                self._line(f"{self._done:,} files in {now - self._began:.1f} s")
