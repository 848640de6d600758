"""Progress of a scan: a bar on a terminal, otherwise one line in the log."""

from __future__ import annotations

import logging
import sys
import time
from types import TracebackType
from typing import Any

__all__ = ["Progress"]

_log = logging.getLogger("gpupipe")


class Progress:
    """Progress bar, as a context manager. It appears on a terminal's stderr after half a second and leaves no trace."""

    def __init__(self, what: str, total: int | None = None):
        self._what, self._total, self._done = what, total, 0
        self._bar: Any = None
        self._task: Any = None
        self._terminal = sys.stderr is not None and sys.stderr.isatty()
        self._began = time.monotonic()

    def __call__(self, done: int) -> None:
        """Report ``done`` files so far."""
        self._done = done
        if self._bar is None and self._terminal and time.monotonic() - self._began > 0.5:
            self._show()
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

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, kind: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None) -> None:
        if self._bar is not None:
            self._bar.stop()
        seconds = time.monotonic() - self._began
        if seconds > 2 and not self._terminal:
            _log.info("%s: %s files in %.1f s", self._what, f"{self._done:,}", seconds)
