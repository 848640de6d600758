"""Stacks of worker processes, which they write on request: from C, without Python's lock.

They are unknown where there is no ``/proc``, which only Linux has.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import time
from contextlib import suppress
from pathlib import Path

_SIGNAL = getattr(signal, "SIGRTMAX", 0) - 3
"""A signal without a meaning, which scripts do not use."""
_ANSWER = 0.5
"""Seconds that a worker has to write its stack."""
_shown = 0
"""Process that does so. A fork inherits the number."""


def show_stack_on_request() -> None:
    """Make this worker write its stack to a file in memory when :func:`stack_of` asks."""
    global _shown
    if hasattr(os, "memfd_create") and _shown != os.getpid():
        _shown = os.getpid()
        faulthandler.register(_SIGNAL, os.memfd_create(_name(_shown)), all_threads=False)


def stack_of(pid: int) -> str:
    """Return the stack of a worker's main thread, innermost function first, or why it is unknown."""
    with suppress(OSError):
        for link in Path(f"/proc/{pid}/fd").iterdir():
            if os.readlink(link).startswith(f"/memfd:{_name(pid)} "):
                return _answer(pid, link)
    return "  its stack is unknown"


def _name(pid: int) -> str:
    # A worker inherits the file of a worker that forked it.
    return f"gpupipe-stack-{pid}"


def _answer(pid: int, file: Path) -> str:
    before = file.stat().st_size
    os.kill(pid, _SIGNAL)
    until, text = time.monotonic() + _ANSWER, b""
    while time.monotonic() < until:
        time.sleep(0.02)
        seen, text = text, file.read_bytes()[before:]
        # The stack is complete when the file has stopped growing.
        if text and text == seen:
            return text.decode(errors="replace").partition("\n")[2].rstrip()
    return "  it does not answer"
