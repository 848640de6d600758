"""Progress of a scan: a bar on a terminal, and otherwise lines on stderr, such as in the log of a cluster's job."""

from __future__ import annotations

import os
import sys
from time import monotonic as _now
from types import TracebackType
from typing import Any

_FIRST, _EVERY = 1.0, 30.0
"""Seconds until the first line, and between lines."""


class Progress:
    """Progress of a scan, as a context manager. A scan that is over within a second shows nothing.

    On a terminal a bar appears and leaves no trace. Elsewhere one line appears after a second, another one every 30
    seconds, and the last one at the end. Of several ranks on one machine, only the first shows lines.
    """

    def __init__(self, what: str, total: int | None = None):
        self._what, self._total, self._done = what, total, 0
        self._bar: Any = None
        self._task: Any = None
        self._terminal = sys.stderr is not None and sys.stderr.isatty()
        self._began = _now()
        first_rank = os.environ.get("LOCAL_RANK", "0") == "0"
        self._next_line = self._began + _FIRST if first_rank and not self._terminal else float("inf")

    def __call__(self, done: int) -> None:
        """Report how much is done so far."""
        self._done = done
        now = _now()
        if self._bar is None and self._terminal and now - self._began > 0.5:
            self._show()
        if now > self._next_line:
            self._next_line = now + _EVERY
            self._line(f"{done:,} of {self._total:,} files" if self._total else f"{done:,} files")
        if self._bar is not None:
            self._bar.update(self._task, completed=done)

    def _show(self) -> None:
        from rich.console import Console
        from rich.progress import (
            BarColumn,
            MofNCompleteColumn,
            Progress as Bar,
            ProgressColumn,
            Task,
            TextColumn,
            TimeRemainingColumn,
        )

        class Speed(ProgressColumn):
            def render(self, task: Task) -> str:
                return f"{task.speed or 0:,.0f} files/s"

        self._bar = Bar(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            Speed(),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        self._bar.start()
        self._task = self._bar.add_task(self._what, total=self._total)

    def _line(self, text: str) -> None:
        if sys.stderr is not None:
            print(f"gpupipe: {self._what}: {text}", file=sys.stderr, flush=True)

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, kind: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None) -> None:
        if self._bar is not None:
            self._bar.stop()
        now = _now()
        if now > self._began + _FIRST and self._next_line != float("inf"):
            self._line(f"{self._done:,} files in {now - self._began:.1f} s")
