"""Several ranks of one script on this machine, as torchrun starts them."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from interpreter import Interpreter

__all__ = ["launch", "run_ranks"]


def launch(warm: Interpreter, script: Path, world: int, out: Path, *arguments: Any) -> list[Any]:
    """What every rank wrote to ``out/<rank>.json``. Fails if a rank fails, or has not ended in time.

    The script gets the arguments, and ``out`` after them, as one JSON list in ``sys.argv[1]``.
    """
    run_ranks(warm, world, script, json.dumps([*arguments, str(out)], default=str))
    return [json.loads((out / f"{rank}.json").read_text()) for rank in range(world)]


def run_ranks(warm: Interpreter, world: int, *argv: object, timeout: float = 90, dies: int | None = None) -> list[str]:
    """What each rank of a script, which gets the arguments after it, wrote to its standard output.

    Fails if a rank fails, or has not ended in time, with where it stood then. If one is to die of SIGKILL, the others
    are ended after it, as torchrun does.
    """
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    common = {
        "WORLD_SIZE": str(world),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "GLOO_SOCKET_IFNAME": "lo",
        "CUDA_VISIBLE_DEVICES": "",
    }
    with ExitStack() as stack:
        ranks = [
            stack.enter_context(
                warm.start(*argv, env={**os.environ, **common, "RANK": str(rank), "LOCAL_RANK": str(rank)})
            )
            for rank in range(world)
        ]
        until = time.monotonic() + timeout
        # One that failed leaves the others waiting for it.
        while time.monotonic() < until and any(r.poll() is None for r in ranks):
            if any(r.returncode for r in ranks):
                break
            time.sleep(0.02)
        if dies is not None:
            code = ranks[dies].wait(10)
            assert code == -signal.SIGKILL, f"rank {dies} of {world} ended with {code}:\n{ranks[dies].stderr}"
            return [r.stdout for r in ranks]
        failed = [rank for rank in range(world) if ranks[rank].poll()]
        for rank in ranks:
            rank.abort()
        # First those that failed by themselves, then those that waited, for them or for ever.
        codes = {rank: ranks[rank].wait(10) for rank in (*failed, *range(world))}
        assert not any(codes.values()), "\n".join(
            f"rank {rank} of {world} ended with {code}:\n{ranks[rank].stdout}{ranks[rank].stderr}"
            for rank, code in codes.items()
        )
        return [r.stdout for r in ranks]
