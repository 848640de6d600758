"""Program of the process that talks to stores on behalf of a forked one; see :mod:`.helper`."""

from __future__ import annotations

import os
import signal
import sys

from .choose import client_for
from .clients import ByteRange
from .helper import receive, send, told


def serve(scheme: str, connections: int, timeout: float) -> None:
    """Answer requests from stdin on stdout until stdin is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which then closes stdin
    requests, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # keep a client's prints out of the answers
    client = client_for(scheme, connections, timeout)
    while (asked := receive(requests)) is not None:
        (what, given), _ = asked
        if what == "look":
            found = client.look(given)
            send(answers, [told(it) if isinstance(it, OSError) else list(it) for it in found])
        elif what == "fetch":
            got = client.fetch([ByteRange(*r) for r in given])
            errors = [told(it) if isinstance(it, OSError) else None for it in got]
            send(answers, errors, [b"" if isinstance(it, OSError) else it for it in got])
        else:
            try:
                send(answers, [True, client.names(*given)])
            except OSError as e:
                send(answers, [False, told(e)])
