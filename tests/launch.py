"""Several processes of a script, with the variables that torchrun sets."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

__all__ = ["launch"]


def launch(script: Path, world: int, out: Path, *arguments: Any, timeout: float = 90) -> list[Any]:
    """What every rank wrote to ``out/<rank>.json``. Fails where a rank fails, or has not ended in time.

    The script gets the arguments, and ``out`` after them, as one JSON list in ``sys.argv[1]``.
    """
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    command = [sys.executable, str(script), json.dumps([*arguments, str(out)], default=str)]
    processes = []
    for rank in range(world):
        env = {
            **os.environ,
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(world),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "GLOO_SOCKET_IFNAME": "lo",
            "OMP_NUM_THREADS": "1",
            "CUDA_VISIBLE_DEVICES": "",
        }
        processes.append(
            subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        )
    try:
        until = time.monotonic() + timeout
        # One that failed leaves the others waiting for it.
        while time.monotonic() < until and any(p.poll() is None for p in processes):
            if any(p.returncode for p in processes):
                break
            time.sleep(0.02)
        order = sorted(range(world), key=lambda r: not processes[r].returncode)
        for rank in order:
            if processes[rank].poll() is None:
                processes[rank].kill()
            text, _ = processes[rank].communicate()
            assert processes[rank].returncode == 0, f"rank {rank} of {world}:\n{text}"
    finally:
        for process in processes:
            process.kill()
            with process:  # closes its pipe and waits for its end
                pass
    return [json.loads((out / f"{rank}.json").read_text()) for rank in range(world)]
