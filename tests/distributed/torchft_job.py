"""A job of torchft that loses and gets replicas between steps: 3, then 2, then 3 of them. Started by
``test_launchers.py``.

One process per replica on this machine, gloo, and a loader with a global batch that is resharded by
``loader.reshard(Shard(rank, count))`` whenever the quorum changes. A replica dies of SIGKILL in the middle of the first
epoch; the others go on without starting again, and another one joins later and gets the state from them. A step that a
death spoils is not committed: the loader goes back to the state before it.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

SECONDS_PER_STEP = 0.3
SECONDS_WITH_TWO = 1.5
"""A new replica needs some seconds to join."""


def train(folder: Path, root: Path, name: str) -> None:
    """One replica."""
    import torch
    import torch.distributed as dist
    from continued import EPOCHS, _samples, loader_of
    from torchft import Manager, ProcessGroupGloo

    from gpupipe import Shard, World

    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    loader = loader_of(root, World(source="torchft"))
    committed = {"loader": loader.state_dict()}

    def load(state: dict[str, Any]) -> None:
        committed.update(state)
        loader.load_state_dict(state["loader"])

    manager = Manager(
        pg=ProcessGroupGloo(timeout=timedelta(seconds=5)), state_dict=lambda: dict(committed), load_state_dict=load,
        min_replica_size=1, use_async_quorum=False, timeout=timedelta(seconds=10), rank=0, world_size=1,
        store_addr="127.0.0.1", store_port=store.port, replica_id=name, quorum_timeout=timedelta(seconds=60),
    )  # fmt: skip
    file = (folder / f"{name}.jsonl").open("a", buffering=1)
    batches, shard = None, None
    while committed["loader"]["epoch"] < EPOCHS:
        manager.start_quorum()
        count = manager.num_participants()
        now = Shard(manager.participating_rank() or 0, count)
        if now != shard:
            loader.reshard(now)
            batches, shard = None, now
        batches = iter(loader) if batches is None else batches
        while (batch := next(batches, None)) is None:
            batches = iter(loader)
        manager.allreduce(torch.ones(1)).wait()  # as gradients are exchanged
        if manager.should_commit():
            committed["loader"] = state = loader.state_dict()
            place = {"epoch": state["epoch"], "delivered": state["delivered"], "rank": now.rank, "ranks": count}
            images, labels = batch
            samples = _samples(images, labels, loader.valid)
            file.write(json.dumps({"time": time.time(), **place, "samples": samples}) + "\n")
        else:
            loader.load_state_dict(committed["loader"])
            batches = None
        time.sleep(SECONDS_WITH_TWO if count == 2 else SECONDS_PER_STEP)
    manager.shutdown(wait=False)
    loader.close()


def lines_of(folder: Path) -> list[dict[str, Any]]:
    texts = [text for file in folder.glob("*.jsonl") for text in file.read_text().split("\n")[:-1]]
    return sorted(map(json.loads, texts), key=lambda line: line["time"])


def judge(folder: Path, root: Path) -> dict[str, Any]:
    """Return what became of every sample."""
    from continued import EPOCHS, N, _whole

    lines = lines_of(folder)
    parts: dict[tuple[int, int], list[dict[str, Any]]] = {}
    for line in lines:
        parts.setdefault((line["epoch"], line["delivered"]), []).append(line)
    joined = {
        place: [sample for line in sorted(of, key=lambda line: line["rank"]) for sample in line["samples"]]
        for place, of in parts.items()
    }
    whole, lost, twice = _whole(root), 0, 0
    for epoch in range(EPOCHS):
        counts = Counter(i for place, samples in joined.items() if place[0] == epoch for i, _ in samples)
        lost += sum(counts[i] == 0 for i in range(N))
        twice += sum(count - 1 for count in counts.values() if count > 1)
    sizes = [line["ranks"] for line in lines]
    changes = [k for k in range(1, len(sizes)) if sizes[k] != sizes[k - 1]]
    return {
        "ranks": [sizes[0], *(sizes[k] for k in changes)],
        "lost": lost,
        "twice": twice,
        "batches": len(whole),
        "equal_batches": sum(joined.get(place) == samples for place, samples in whole.items()),
    }


def run() -> dict[str, Any]:
    from continued import photos
    from torchft.coordination import LighthouseServer

    replicas: list[subprocess.Popen[bytes]] = []
    lighthouse = LighthouseServer("127.0.0.1:0", 1, join_timeout_ms=4000, quorum_tick_ms=100, heartbeat_timeout_ms=1500)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as made, contextlib.ExitStack() as stack:
        folder = Path(made)
        root = photos(folder / "photos")
        env = {**os.environ, "TORCHFT_LIGHTHOUSE": lighthouse.address(), "OMP_NUM_THREADS": "1"}
        env |= {"GLOO_SOCKET_IFNAME": "lo", "CUDA_VISIBLE_DEVICES": ""}

        def add() -> None:
            command = [sys.executable, __file__, str(folder), str(root), f"replica{len(replicas)}"]
            log = (folder / f"{len(replicas)}.log").open("wb")
            replicas.append(subprocess.Popen(command, env=env, stdout=log, stderr=log))
            stack.callback(replicas[-1].kill)

        def until(reached: Callable[[], bool], seconds: float = 100) -> None:
            end = time.monotonic() + seconds
            while not reached():
                if time.monotonic() > end:
                    raise SystemExit("\n".join(file.read_text()[-2500:] for file in sorted(folder.glob("*.log"))))
                time.sleep(0.05)

        def steps(ranks: int) -> int:
            return len({(x["epoch"], x["delivered"]) for x in lines_of(folder) if x["ranks"] == ranks})

        for _ in range(3):
            add()
        until(lambda: steps(3) >= 4)
        replicas[1].send_signal(signal.SIGKILL)
        until(lambda: steps(2) >= 3)
        before = steps(3)
        add()
        until(lambda: steps(3) >= before + 3)
        left = [replicas[0], replicas[2], replicas[3]]
        until(lambda: all(one.poll() is not None for one in left))
        if any(one.returncode for one in left):
            raise SystemExit("\n".join(file.read_text()[-2500:] for file in sorted(folder.glob("*.log"))))
        found = judge(folder, root)
    lighthouse.shutdown()
    return found


if __name__ == "__main__":
    if len(sys.argv) > 1:
        train(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
    else:
        os.environ["PYTHONPATH"] = os.pathsep.join(sys.path)
        print(json.dumps(run()))
