"""Program of the process that talks to stores on behalf of a forked one; see :mod:`.helper`."""

from __future__ import annotations

import os
import pickle
import signal
import sys
from typing import Any

from .choose import client_for


def serve(scheme: str, connections: int, timeout: float) -> None:
    """Answer requests from stdin on stdout until stdin is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which then closes stdin
    requests, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # keep a client's prints out of the answers
    client = client_for(scheme, connections, timeout)
    while True:
        try:
            what, given = pickle.load(requests)
        except EOFError:
            return
        try:
            answer: Any = getattr(client, what)(*given)
        except OSError as e:
            answer = e
        if what == "fetch":
            answer = [bytes(it) if isinstance(it, memoryview) else it for it in answer]
        pickle.dump(answer, answers)
        answers.flush()
