"""A state goes on from every step with each kind of sampler: before the first batch, after the last, between epochs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import (
    BatchSampler,
    DistributedSampler,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from gpupipe import DataLoader, Shard
from gpupipe.datasets import Arrays

N = 11
WEIGHTS = [1.0] * 5 + [2.0] * 6


def generator() -> torch.Generator:
    return torch.Generator().manual_seed(3)


class Own:
    """Gives fewer samples than its length says."""

    def __iter__(self) -> Iterator[int]:
        return iter([3, 1, 2, 0, 7, 6, 5])

    def __len__(self) -> int:
        return 9


class OfEpochs:
    epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        return iter(np.random.default_rng(self.epoch).permutation(N).tolist())

    def __len__(self) -> int:
        return N


class Cut:
    def __iter__(self) -> Iterator[list[int]]:
        return iter([[0, 1, 2], [3], [4, 5, 6]])

    def __len__(self) -> int:
        return 3


SAMPLERS: dict[str, Callable[[Any], dict[str, Any]]] = {
    "none": lambda data: {},
    "shuffle": lambda data: {"shuffle": True},
    "drop_last": lambda data: {"shuffle": True, "drop_last": True},
    "rank": lambda data: {"shuffle": True, "shard": Shard(1, 2)},
    "rank, drop_last": lambda data: {"shuffle": True, "shard": Shard(1, 2), "drop_last": True},
    "sequential": lambda data: {"sampler": SequentialSampler(data)},
    "random": lambda data: {"sampler": RandomSampler(data, generator=generator())},
    "more": lambda data: {"sampler": RandomSampler(data, num_samples=17, generator=generator())},
    "replacement": lambda data: {"sampler": RandomSampler(data, True, 17, generator())},
    "subset": lambda data: {"sampler": SubsetRandomSampler([1, 2, 5, 8, 9], generator())},
    "weighted": lambda data: {"sampler": WeightedRandomSampler(WEIGHTS, 14, generator=generator())},
    "weighted once": lambda data: {"sampler": WeightedRandomSampler(WEIGHTS, 7, False, generator())},
    "distributed": lambda data: {"sampler": DistributedSampler(data, 2, 1)},
    "distributed, drop_last": lambda data: {"sampler": DistributedSampler(data, 3, 0, drop_last=True)},
    "list": lambda data: {"sampler": [3, 3, 1, 0, 9, 8, 7]},
    "own": lambda data: {"sampler": Own()},
    "of epochs": lambda data: {"sampler": OfEpochs()},
    "BatchSampler": lambda data: {"batch_sampler": BatchSampler(RandomSampler(data, generator=generator()), 3, False)},
    "BatchSampler, drop_last": lambda data: {"batch_sampler": BatchSampler(Own(), 3, True)},
    "batches": lambda data: {"batch_sampler": Cut()},
}


def make(engine: str, name: str, **more: Any) -> DataLoader:
    """A loader as a script has it when it begins again."""
    data: Any = TensorDataset(torch.zeros(N, 2), torch.arange(N))
    if engine == "torch's own":
        more = {"seed": 4, **more}  # or orders are drawn when their epochs begin
    else:
        data = Arrays(np.zeros((N, 8, 8, 3), np.uint8), np.arange(N))
    arguments = SAMPLERS[name](data)
    size = {} if "batch_sampler" in arguments else {"batch_size": 3}
    named: Any = "torch" if engine == "torch's own" else engine
    torch.manual_seed(7)
    return DataLoader(data, engine=named, device="cpu", **{**size, **arguments, **more})


def labels(batch: Any) -> list[int]:
    images, target = batch
    return [int(i) for i in (target if isinstance(images, torch.Tensor) else images.indices)]


def epochs(loader: DataLoader, count: int) -> Iterator[tuple[int, list[int]]]:
    """(epoch, labels) of every batch."""
    for epoch in range(count):
        for batch in loader:
            yield epoch, labels(batch)


def check(engine: str, name: str, only: slice = slice(None)) -> None:
    with make(engine, name) as loader:
        states, seen = [loader.state_dict()], list[list[int]]()
        for _, batch in epochs(loader, 2):
            seen.append(batch)
            states.append(loader.state_dict())
        states.append(loader.state_dict())
    places = [*range(len(seen) + 1), len(seen)]
    for at, state in list(zip(places, states, strict=True))[only]:
        with make(engine, name) as loader:
            torch.manual_seed(8)
            loader.load_state_dict(state)
            # From the very end of an epoch, what is left of it is empty, as from its last batch on.
            rest = [batch for _, batch in islice(epochs(loader, 3), len(seen) - at)]
        assert rest == seen[at:], f"from batch {at} on"


@pytest.mark.parametrize("name", SAMPLERS)
@pytest.mark.parametrize("engine", ["null", "torch's own"])
def test_from_every_step(engine: str, name: str) -> None:
    check(engine, name)


@pytest.mark.parametrize("name", ["shuffle", "own", "batches"])
@pytest.mark.parametrize("engine", ["torch", "dali"])
def test_from_some_steps_in_engines_that_read_ahead(engine: str, name: str) -> None:
    check(engine, name, slice(0, None, 3))


def test_an_end_that_no_batch_has_is_refused() -> None:
    with make("null", "batches") as loader:
        list(loader)
        state = loader.state_dict()
        for delivered in (1, 8):
            loader.load_state_dict({**state, "delivered": delivered})
            with pytest.raises(
                Exception, match=f"{delivered} samples into an epoch, where no batch of the batch sampler ends"
            ):
                next(iter(loader))
