"""A job of torchrun that loses and gets machines: 4, then 2, then 3 ranks. Started by ``test_launchers.py``.

Four agents of ``torchrun --nnodes 1:4`` on this machine, with one process each, and a loader with a global batch. Two
agents and their processes die of SIGKILL in the middle of the first epoch; later another agent joins. Checkpoints are
saved every third step.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

EVERY = 3
SECONDS_PER_STEP = 0.3
SECONDS_WITH_TWO = 2.0
"""The third agent needs some ten seconds to join."""


def train(folder: Path, root: Path) -> None:
    """The script that torchrun starts."""
    from datetime import timedelta

    import torch
    import torch.distributed as dist
    from continued import EPOCHS, Notes, loader_of

    from gpupipe import World

    dist.init_process_group("gloo", timeout=timedelta(seconds=20))
    world, saved = World.here(), folder / "checkpoint.json"
    notes, loader = Notes(folder / "notes", world), loader_of(root, world)
    if saved.exists():
        loader.load_state_dict(json.loads(saved.read_text()))
    notes.begin(loader)
    step = 0
    for _ in range(loader.state_dict()["epoch"], EPOCHS):
        for images, labels in loader:
            dist.all_reduce(torch.ones(1))  # as gradients are exchanged
            notes.batch(loader, images, labels)
            step += 1
            if step % EVERY == 0:
                if world.rank == 0:
                    partial = saved.with_suffix(".partial")
                    partial.write_text(json.dumps(loader.state_dict()))
                    partial.replace(saved)
                dist.barrier()
            time.sleep(SECONDS_WITH_TWO if world.world_size == 2 else SECONDS_PER_STEP)
    loader.close()
    dist.barrier()
    dist.destroy_process_group()


class Job:
    """A job of torchrun with agents that come and go."""

    def __init__(self, folder: Path, root: Path):
        self._folder, self._root = folder, root
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            self._port = s.getsockname()[1]
        self.agents: list[subprocess.Popen[bytes]] = []
        (folder / "notes").mkdir()

    def add(self) -> None:
        command = [
            sys.executable, "-m", "torch.distributed.run", "--nnodes", "1:4", "--nproc-per-node", "1",
            "--max-restarts", "10", "--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{self._port}",
            "--rdzv-id", "job", "--local-addr", "127.0.0.1", "--monitor-interval", "0.2",
            "--rdzv-conf", "last_call_timeout=8,keep_alive_interval=1,keep_alive_max_attempt=4,join_timeout=60",
            __file__, str(self._folder), str(self._root),
        ]  # fmt: skip
        # A group of its own, so that a machine can be lost as a whole.
        env = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "CUDA_VISIBLE_DEVICES": ""}
        # Without this, an agent that joins waits forever, because torch 2.13 publishes the address only once.
        env["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
        log = (self._folder / f"agent{len(self.agents)}.log").open("wb")
        self.agents.append(subprocess.Popen(command, env=env, stdout=log, stderr=log, start_new_session=True))

    def has_store(self) -> bool:
        """Return whether the first agent has the store of the rendezvous, with which the job would end."""
        with socket.socket() as s:
            return s.connect_ex(("127.0.0.1", self._port)) == 0

    def lose(self, agent: subprocess.Popen[bytes]) -> None:
        """Kill an agent and its process, as if their machine were gone."""
        import psutil

        family = [agent.pid, *(child.pid for child in psutil.Process(agent.pid).children(recursive=True))]
        for pid in family:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        agent.wait()

    def batches(self, ranks: int) -> int:
        """Return how many batches rank 0 has delivered in a group of this size."""
        lines = [text for file in (self._folder / "notes").glob("*.jsonl") for text in file.read_text().splitlines()]
        found = [json.loads(text) for text in lines if text.endswith("}")]
        return sum(1 for one in found if one["ranks"] == ranks and one["rank"] == 0 and "samples" in one)

    def until(self, reached: Callable[[], bool], seconds: float = 120) -> None:
        end = time.monotonic() + seconds
        while not reached():
            if time.monotonic() > end:
                raise SystemExit(f"nothing came in {seconds:.0f} s; see {self._folder}/agent*.log\n{self.logs()}")
            time.sleep(0.05)

    def logs(self) -> str:
        return "\n".join(file.read_text()[-1500:] for file in sorted(self._folder.glob("agent*.log")))

    def close(self) -> None:
        for agent in self.agents:
            if agent.poll() is None:
                self.lose(agent)


def run() -> dict[str, Any]:
    """Train once while agents die and join. Returns what became of every sample."""
    from continued import judge, photos

    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as made:
        folder = Path(made)
        root = photos(folder / "photos")
        with contextlib.closing(Job(folder, root)) as job:
            job.add()
            job.until(job.has_store)
            for _ in range(3):
                job.add()
            job.until(lambda: job.batches(4) >= 5)
            for agent in job.agents[2:]:
                job.lose(agent)
            job.until(lambda: job.batches(2) >= 4)
            job.add()
            job.until(lambda: job.batches(3) >= 1)
            alive = [job.agents[0], job.agents[1], job.agents[4]]
            job.until(lambda: all(agent.poll() is not None for agent in alive))
            if any(agent.returncode for agent in alive):
                raise SystemExit(job.logs())
        return judge(folder / "notes", root)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        train(*map(Path, sys.argv[1:]))
    else:
        os.environ["PYTHONPATH"] = os.pathsep.join(sys.path)
        print(json.dumps(run()))
