"""One rank of a run: does its tasks and writes what it saw. Started by ``test_ranks.py``, as torchrun would."""

from __future__ import annotations

import json
import os
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
import torch.distributed as dist
from support import EVAL, seen
from torch.utils.data.distributed import DistributedSampler

from gpupipe import DataLoader, Shard
from gpupipe.datasets import Dataset, ImageFolder


def run(task: dict[str, Any], dataset: Dataset) -> dict[str, Any]:
    """Some epochs of one loader: every batch as [samples, how many are real, how many are real on all ranks]."""
    arguments: dict[str, Any] = {
        "batch_size": task["batch_size"],
        "num_workers": 1,
        "engine": task["engine"],
        "drop_last": task["drop_last"],
        "on_error": task["on_error"],
        "seed": task["seed"],
        "device": "cpu",
    }
    if task["sampler"]:
        sampler: Any = DistributedSampler(dataset, drop_last=task["drop_last"])  # type: ignore[arg-type,var-annotated]
        loader = DataLoader(dataset, sampler=sampler, **arguments)
    else:
        sampler = None
        loader = DataLoader(dataset, shuffle=task["shuffle"], shard=Shard.from_env(), **arguments)
    if task["state"] is not None:
        loader.load_state_dict(task["state"])
    assert loader.shard == Shard(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])), loader.shard
    epochs, states = [], []
    first = loader.state_dict()["epoch"]
    for epoch in range(first, first + task["epochs"]):
        if sampler is not None:
            sampler.set_epoch(epoch)
        batches = []
        for step, batch in enumerate(loader):
            total = torch.tensor([loader.valid])
            if dist.is_initialized():
                # As DDP does after every backward pass: with another number of batches a rank would wait for ever.
                dist.all_reduce(total)
            batches.append([seen(batch), loader.valid, int(total)])
            if step + 1 == task["stop"]:
                break
        states.append(loader.state_dict())
        epochs.append(batches)
    loader.close()
    bad = sorted(sample.index for sample in loader.report().samples)
    found = {"epochs": epochs, "states": states, "len": len(loader), "seed": loader.seed, "bad": bad}
    if dist.is_initialized():
        everywhere = loader.report(all_ranks=True)
        found["bad_of_all"] = {sample.index: sample.count for sample in everywhere.samples}
        found["stats"], found["stats_of_all"] = loader.stats(), loader.stats(all_ranks=True)
    return found


def main(root: str, tasks: list[dict[str, Any]], out: str) -> None:
    results = []
    for task in tasks:
        if task["init"] and not dist.is_initialized():
            dist.init_process_group("gloo", timeout=timedelta(seconds=60))
        results.append(run(task, ImageFolder(root, EVAL)))
    if dist.is_initialized():
        dist.barrier()  # gloo ends a process that is torn down while another still talks to it
        dist.destroy_process_group()
    Path(out, f"{os.environ['RANK']}.json").write_text(json.dumps(results))


if __name__ == "__main__":
    main(*json.loads(sys.argv[1]))
