"""One rank that makes loaders unlike the others'. Started by ``test_agreement.py``, as torchrun would."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch.distributed as dist
from support import EVAL, TRAIN, all_seen, warned
from torch.utils.data import Dataset
from torch.utils.data.distributed import DistributedSampler

from gpupipe import DataLoader, Shard
from gpupipe.datasets import ImageFolder
from gpupipe.errors import ConfigError
from gpupipe.loader import agreement


class Numbers(Dataset[tuple[int, int]]):
    """Nothing that gpupipe's engines could run."""

    def __len__(self) -> int:
        return 7

    def __getitem__(self, i: int) -> tuple[int, int]:
        return i, i


def load(dataset: Any, **arguments: Any) -> DataLoader:
    common: dict[str, Any] = {"batch_size": 4, "seed": 5, "engine": "torch", "device": "cpu", "on_error": "raise"}
    shard = {} if "sampler" in arguments else {"shard": Shard.from_env(), "shuffle": True}
    return DataLoader(dataset, **{**common, **shard, **arguments})


def outcome(dataset: Any, **arguments: Any) -> dict[str, Any]:
    """What an epoch of a loader gives: its samples, and what it raises."""
    return epoch_of(load(dataset, **arguments))


def epoch_of(loader: DataLoader) -> dict[str, Any]:
    with loader:
        try:
            return {"seen": all_seen(loader), "error": ""}
        except ConfigError as e:
            again = ""
            try:
                next(iter(loader))
            except ConfigError as e2:
                again = str(e2)
            return {"seen": [], "error": str(e), "again": again == str(e)}


def stale(root: str, rank: int) -> dict[str, Any]:
    """The last rank loads what it saved when there were fewer of them, the others the state of the last run."""
    states = []
    with load(ImageFolder(root, EVAL), engine="null", shard=None) as alone:
        for _ in alone:
            states.append(alone.state_dict())
    loader = load(ImageFolder(root, EVAL))
    loader.load_state_dict(states[0 if rank == 2 else 1])
    return epoch_of(loader)


@contextmanager
def short_patience(seconds: float) -> Iterator[None]:
    before, agreement.PATIENCE = agreement.PATIENCE, seconds
    try:
        yield
    finally:
        agreement.PATIENCE = before


def absent(root: str, rank: int) -> dict[str, Any]:
    """The last rank comes when the others have had their epoch, and has another seed."""
    late = rank == dist.get_world_size() - 1
    with short_patience(0.3), warned() as said:
        if late:
            dist.barrier()
        found = outcome(ImageFolder(root, EVAL), seed=6 if late else 5)
        if not late:
            dist.barrier()
    return {**found, "said": said}


TASKS: dict[str, Callable[[str, str, int], Any]] = {
    "same": lambda root, other, rank: outcome(ImageFolder(root, EVAL)),
    "seed": lambda root, other, rank: outcome(ImageFolder(root, EVAL), seed=70 + rank),
    "batch_size": lambda root, other, rank: outcome(ImageFolder(root, EVAL), batch_size=4 + rank // 2),
    "order": lambda root, other, rank: outcome(ImageFolder(root, EVAL), shuffle=rank != 1),
    "drop_last": lambda root, other, rank: outcome(ImageFolder(root, EVAL), drop_last=rank == 1),
    "dataset": lambda root, other, rank: outcome(ImageFolder(other if rank == 1 else root, EVAL)),
    "pipeline": lambda root, other, rank: outcome(ImageFolder(root, TRAIN if rank == 1 else EVAL)),
    "scaled": lambda root, other, rank: outcome(ImageFolder(root, EVAL), scaled=rank == 1),
    "cache": lambda root, other, rank: outcome(ImageFolder(root, EVAL), cache="ram" if rank == 1 else None),
    "on_error": lambda root, other, rank: outcome(ImageFolder(root, EVAL), on_error="raise" if rank else "skip"),
    "part": lambda root, other, rank: outcome(ImageFolder(root, EVAL), shard=Shard(0, dist.get_world_size())),
    "delivered": lambda root, other, rank: stale(root, rank),
    "torch's own": lambda root, other, rank: outcome(Numbers(), engine="auto", batch_size=2 + rank // 2),
    # What a script may do on purpose.
    "sampler": lambda root, other, rank: outcome(
        ImageFolder(root, EVAL),
        seed=rank,
        batch_size=2 + rank,
        sampler=DistributedSampler(ImageFolder(root, EVAL), shuffle=False),  # type: ignore[arg-type,var-annotated]
    ),
    "groups": lambda root, other, rank: outcome(ImageFolder(root, EVAL), seed=rank, shard=Shard(rank % 2, 2)),
    "alone": lambda root, other, rank: outcome(ImageFolder(root, EVAL), seed=rank, shard=None),
    "absent": lambda root, other, rank: absent(root, rank),
}  # fmt: skip


def main(root: str, other: str, names: list[str], out: str) -> None:
    rank = int(os.environ["RANK"])
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    results = [TASKS[name](root, other, rank) for name in names]
    dist.barrier()  # gloo ends a process that is torn down while another still talks to it
    dist.destroy_process_group()
    Path(out, f"{rank}.json").write_text(json.dumps(results))


if __name__ == "__main__":
    main(*json.loads(sys.argv[1]))
