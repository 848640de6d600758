"""What gpupipe should read, in torch's own DataLoader."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from support import warned
from torch.utils.data import DataLoader as TorchLoader, Dataset as TorchDataset, DistributedSampler, Subset

import gpupipe
from gpupipe import GpupipeWarning, transforms as T
from gpupipe.datasets import Arrays


def pixels() -> Any:
    return Arrays(np.zeros((8, 6, 6, 3), np.uint8), range(8), transform=T.Compose([T.CenterCrop(4), T.ToTensor()]))


@pytest.mark.parametrize("wrapped", [lambda x: x, lambda x: Subset(Subset(x, [1, 3, 5]), [0, 1, 2])])
def test_it_is_told_once(wrapped: Any) -> None:
    dataset = wrapped(pixels())
    with pytest.warns(
        GpupipeWarning, match=r"torch's DataLoader iterates over a dataset of gpupipe: .*read-by-torch"
    ) as seen:
        found = [labels.tolist() for _, labels in TorchLoader(dataset, 2)]
    assert len(seen) == 1 and sum(map(len, found)) == len(dataset)


def test_one_sample_is_not_a_loop() -> None:
    with warned() as told:
        assert pixels()[3][1] == 3
    assert told == []


class Own(TorchDataset[Any]):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, i: int) -> Any:
        return torch.full((3, 4, 4), float(i)), i


def rebuilt(loader: Any, **others: Any) -> TorchLoader[Any]:
    """What ``ray.train.torch.prepare_data_loader`` makes of a loader on several workers."""
    sampler = DistributedSampler(loader.dataset, num_replicas=2, rank=0, shuffle=False)
    for name in ("collate_fn", "worker_init_fn", "generator", "timeout"):
        others[name] = getattr(loader, name)
    return TorchLoader(loader.dataset, loader.batch_size, sampler=sampler, **others)


def test_a_loader_that_is_built_from_the_attributes_of_another_warns_once() -> None:
    with gpupipe.DataLoader(Own(), batch_size=2) as loader:
        other = rebuilt(loader)
        with pytest.warns(
            GpupipeWarning, match=r"reads the dataset of a gpupipe loader: .*Shard.from_env.*\[rebuilt\]"
        ) as seen:
            found = [labels.tolist() for _, labels in [*other, *other]]
        assert len(seen) == 1 and found == [[0, 2], [4, 6]] * 2


def test_the_training_process_says_it() -> None:
    with gpupipe.DataLoader(Own(), batch_size=2) as loader:
        other = rebuilt(loader, num_workers=2)
        with pytest.warns(GpupipeWarning, match="reads the dataset of a gpupipe loader") as seen:
            found = [labels.tolist() for _, labels in other]
        assert len(seen) == 1 and found == [[0, 2], [4, 6]]


@pytest.mark.slow
def test_calling_it_and_copying_the_loader_say_nothing() -> None:
    with gpupipe.DataLoader(Own(), batch_size=2) as loader, warned() as told:
        assert loader.collate_fn([loader.dataset[3]])[1].tolist() == [3]
        copied = gpupipe.DataLoader(loader.dataset, collate_fn=loader.collate_fn)
        assert len(list(copied)) == len(list(loader)) * 2 and copied.engine == loader.engine
        assert copied.collate_fn is not loader.collate_fn
        copied.close()
    assert [text for text in told if "rebuilt" in str(text)] == []
