"""One rank of a training script. Started by ``test_loops.py`` and ``test_checkpoint.py``, as torchrun would."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from support import EVAL, seen
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from gpupipe import DataLoader, Shard
from gpupipe.datasets import ImageFolder

ROWS = 8
LOOK_SECONDS = 30.0


def features(images: Tensor) -> Tensor:
    """u8[B, 3, 32, 32] to f64[B, 48]: small, and different for every picture."""
    return nn.functional.avg_pool2d(images.double() / 255, ROWS).flatten(1)


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(48, 1).double()


def make_loader(root: str, **arguments: Any) -> DataLoader:
    return DataLoader(
        ImageFolder(root, EVAL),
        shard=Shard.from_env(),
        device="cpu",
        **{"batch_size": 4, "engine": "torch", **arguments},
    )


def accumulate(root: str, _: Path, batch_size: int, every: int) -> Any:
    """Weights after an epoch that adds up the gradients of ``every`` batches, and exchanges them only then."""
    loader = make_loader(root, batch_size=batch_size, shuffle=True, drop_last=True, seed=3)
    net = model()
    parallel: Any = DistributedDataParallel(net) if dist.get_world_size() > 1 else net
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for step, (images, _target) in enumerate(loader):
        exchange = step % every == every - 1
        quiet = parallel.no_sync() if not exchange and parallel is not net else contextlib.nullcontext()
        with quiet:
            (parallel(features(images)).square().mean() / every).backward()
        if exchange:
            optimizer.step()
            optimizer.zero_grad()
    return {"weights": [w for p in net.parameters() for w in p.flatten().tolist()], "steps": len(loader)}


def early(root: str, out: Path) -> Any:
    """Rank 0 leaves its loop after one batch, and waits until the others have come to the end of theirs."""
    rank, world = dist.get_rank(), dist.get_world_size()
    loader = make_loader(root, batch_size=2, shuffle=True, num_workers=0)
    count = 0
    for _ in loader:
        count += 1
        if rank == 0:
            break
    state = loader.state_dict()
    (out / f"ended{rank}").touch()
    deadline = time.monotonic() + LOOK_SECONDS
    # Looking for files, because waiting in a collective would answer those of a loader that has them.
    while rank == 0 and any(not (out / f"ended{r}").exists() for r in range(world)):
        assert time.monotonic() < deadline, "the other ranks wait for the one that stopped"
        time.sleep(0.05)
    dist.barrier()
    second = [i for batch in loader for i in seen(batch)[: loader.valid]]
    return {"batches": count, "len": len(loader), "state": state, "second": second}


def evaluate(root: str, _: Path) -> Any:
    """Sums over all ranks: of the outputs, of their squares, of the samples' numbers, and the number of samples."""
    loader = make_loader(root)
    net = model()
    sums = torch.zeros(4, dtype=torch.float64)
    with torch.inference_mode():
        for images, target in loader:
            output, target = net(features(images))[: loader.valid, 0], target[: loader.valid].double()
            sums += torch.stack([output.sum(), output.square().sum(), target.sum(), torch.tensor(float(len(output)))])
    if dist.get_world_size() > 1:
        dist.all_reduce(sums)
    return sums.tolist()


def save(root: str, out: Path) -> Any:
    """Two steps, then a checkpoint: of the loader itself, and of its state as a value."""
    loader = make_loader(root, shuffle=True, seed=5)
    done = []
    for step, batch in enumerate(loader):
        done += seen(batch)[: loader.valid]
        if step == 1:
            break
    dcp.save({"model": model().state_dict(), "loader": loader}, checkpoint_id=out / "object")
    dcp.save({"loader": loader.state_dict()}, checkpoint_id=out / "value")
    return {"done": done, "state": loader.state_dict()}


def load(root: str, _: Path, folder: str) -> Any:
    """The rest of the epoch from each of the two checkpoints, step by step."""
    rest = []
    for form in ("object", "value"):
        loader = make_loader(root, shuffle=True, seed=0)  # another seed: the checkpoint brings its own
        where = Path(folder, form)
        if form == "object":
            dcp.load({"loader": loader}, checkpoint_id=where)
        else:
            values = {"loader": loader.state_dict()}
            dcp.load(values, checkpoint_id=where)
            loader.load_state_dict(values["loader"])
        rest.append([seen(batch)[: loader.valid] for batch in loader])
    return rest


TASKS: dict[str, Callable[..., Any]] = {
    "accumulate": accumulate, "early": early, "evaluate": evaluate, "save": save, "load": load,
}  # fmt: skip


def main(root: str, tasks: list[list[Any]], out: str) -> None:
    dist.init_process_group("gloo", timeout=timedelta(seconds=60))
    results = [TASKS[name](root, Path(out), *arguments) for name, *arguments in tasks]
    dist.barrier()  # gloo ends a process that is torn down while another still talks to it
    dist.destroy_process_group()
    Path(out, f"{os.environ['RANK']}.json").write_text(json.dumps(results))


if __name__ == "__main__":
    main(*json.loads(sys.argv[1]))
