"""One rank of a training that goes on from its checkpoint, and may die. Started by ``test_elastic.py``.

Rank 0 keeps the checkpoint: the loader's state, and which samples were trained on until then. The step in which a rank
dies is not in it, as that of a model would not be.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch.distributed as dist
from support import EVAL, seen
from torch.utils.data.distributed import DistributedSampler

from gpupipe import DataLoader, Shard
from gpupipe.datasets import ImageFolder


def make_loader(root: str, engine: str, sampler: bool, batch_size: int) -> DataLoader:
    dataset = ImageFolder(root, EVAL)
    common: dict[str, Any] = {"batch_size": batch_size, "num_workers": 1, "engine": engine, "device": "cpu", "seed": 9}
    if sampler:
        return DataLoader(dataset, sampler=DistributedSampler(dataset), **common)  # type: ignore[arg-type,var-annotated]
    return DataLoader(dataset, shuffle=True, shard=Shard.from_env(), **common)


def main(root: str, checkpoint: str, settings: dict[str, Any], epochs: int, dies: list[int] | None) -> None:
    """``dies``: (rank, step), counted from where this run began."""
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    rank, place = dist.get_rank(), Path(checkpoint)
    loader = make_loader(root, **settings)
    done: list[list[int]] = [[] for _ in range(epochs)]
    if place.exists():
        kept = json.loads(place.read_text())
        done = kept["done"]
        loader.load_state_dict(kept["loader"])
    step = 0
    for epoch in range(loader.state_dict()["epoch"], epochs):
        if hasattr(loader.sampler, "set_epoch"):
            loader.sampler.set_epoch(epoch)
        for batch in loader:
            mine = seen(batch)[: loader.valid]
            if dies == [rank, step]:
                os.kill(os.getpid(), signal.SIGKILL)
            everybody: list[Any] = [None] * dist.get_world_size()
            dist.all_gather_object(everybody, mine)  # as gradients are exchanged
            done[epoch] += [i for part in everybody for i in part]
            step += 1
            if rank == 0:
                partial = place.with_suffix(".partial")
                partial.write_text(json.dumps({"loader": loader.state_dict(), "done": done, "step": step}))
                partial.replace(place)
            dist.barrier()
    loader.close()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*json.loads(sys.argv[1]))
