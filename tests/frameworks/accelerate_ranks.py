"""One of two ranks of a script with Accelerate. Started by ``test_accelerate.py``, as ``accelerate launch`` would."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import conftest  # noqa: F401
import torch
from accelerate import Accelerator
from records import features, make
from torch import nn

from gpupipe import DataLoader, Shard


def rest(accelerator: Accelerator, loader: DataLoader) -> list[int]:
    """The real samples of all ranks, step by step."""
    found: list[int] = []
    for _, target in loader:
        padded = torch.full_like(target, -1)
        padded[: loader.valid] = target[: loader.valid]
        found += accelerator.gather(padded).tolist()
    return [i for i in found if i >= 0]


def main(out: str) -> None:
    accelerator = Accelerator(cpu=True)
    train = make(batch_size=4, shard=Shard.from_env())
    assert train.shard == Shard(accelerator.process_index, 2)
    net = nn.Linear(3, 1)
    model, optimizer, train = accelerator.prepare(net, torch.optim.SGD(net.parameters(), 0.1), train)
    accelerator.register_for_checkpointing(train)
    trained: list[Any] = []
    for images, target in train:
        accelerator.backward(model(features(images)).mean())
        optimizer.step()
        optimizer.zero_grad()
        trained.append([target.tolist(), train.valid])
        if len(trained) == 1:
            accelerator.save_state(out + "/checkpoint")

    val = accelerator.prepare(make(batch_size=4, shuffle=False, shard=Shard.from_env()))
    sums, gathered = torch.zeros(2, dtype=torch.int64), []
    for _, target in val:
        sums += torch.tensor([int(target[: val.valid].sum()), val.valid])
        gathered += accelerator.gather_for_metrics(target).tolist()
    exact = accelerator.reduce(sums).tolist()

    accelerator.load_state(out + "/checkpoint")
    resumed = rest(accelerator, train)
    seen = {"trained": trained, "exact": exact, "gathered": gathered, "resumed": resumed}
    Path(out, f"{accelerator.process_index}.json").write_text(json.dumps(seen))
    # Else torch's DistributedDataParallel is the last to let go of the process group, with Python's lock, at the end of
    # this function, and may wait for ever for a thread of gloo's that wants the lock.
    model, optimizer = accelerator.free_memory(model, optimizer)
    accelerator.wait_for_everyone()  # gloo ends a process that is torn down while another still talks to it
    accelerator.end_training()


if __name__ == "__main__":
    main(*json.loads(sys.argv[1]))
