"""What torch's loader does at the edges of an epoch: a collate function that raises, no samples, whole batches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from own_datasets import Photos
from torch.utils.data import DataLoader as TorchLoader, Dataset, TensorDataset

from gpupipe import DataLoader
from gpupipe.datasets import Arrays


def raising(samples: list[Any]) -> list[int]:
    found = [int(sample[-1]) for sample in samples]
    if 3 in found:
        raise ValueError("three")
    return found


def seen(loader: Any) -> list[Any]:
    batches, found = iter(loader), list[Any]()
    while True:
        try:
            found.append(next(batches))
        except StopIteration:
            return found
        except ValueError as e:
            found.append("three" in str(e))


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("engine", ["torch", "dali", "torch's own"])
def test_an_epoch_goes_on_after_a_collate_fn_that_raised(engine: str, workers: int) -> None:
    data: Any = TensorDataset(torch.zeros(7, 2), torch.arange(7))
    want = seen(TorchLoader(data, 2, num_workers=workers, collate_fn=raising))
    assert want == [[0, 1], True, [4, 5], [6]]
    named: Any = "torch" if engine == "torch's own" else engine
    if engine != "torch's own":
        data = Arrays(np.zeros((7, 8, 8, 3), np.uint8), np.arange(7))
    with DataLoader(data, 2, num_workers=workers, collate_fn=raising, engine=named, device="cpu") as loader:
        assert seen(loader) == want
        assert seen(loader) == want


class Empty(Dataset[Any]):
    def __len__(self) -> int:
        return 0

    def __getitem__(self, i: int) -> Any:
        raise IndexError(i)


def test_a_dataset_without_samples_has_no_batches(tmp_path: Path) -> None:
    for data in (Empty(), TensorDataset(torch.zeros(0, 2)), Photos(tmp_path)):
        loader = DataLoader(data, 2, device="cpu")
        assert len(loader) == 0 and list(loader) == []
        with pytest.raises(ValueError, match="num_samples should be a positive integer"):
            DataLoader(data, 2, shuffle=True, device="cpu")
