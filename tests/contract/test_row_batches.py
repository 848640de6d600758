"""Batches of rows of arrays without transforms are torch's, bit by bit, made with one call per array."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils import data
from torch.utils.data._utils import collate

from gpupipe import DataLoader
from gpupipe.loader import row_batches

COUNT = 23
IMAGES = torch.rand(COUNT, 3, 5, 4)


def dataset(*more: Tensor) -> data.TensorDataset:
    return data.TensorDataset(IMAGES, torch.arange(COUNT) % 5, *more)


@pytest.fixture
def finished(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each batch of this process was made at once."""
    found = list[bool]()
    made = row_batches.RowBatches.__getitems__

    def watched(self: Any, indices: Any) -> Any:
        batch = made(self, indices)
        found.append(type(batch) is row_batches._Batch)
        return batch

    monkeypatch.setattr(row_batches.RowBatches, "__getitems__", watched)
    return found


def same_as_torchs(given: Any, **options: Any) -> None:
    batches = []
    for make in (data.DataLoader, DataLoader):
        torch.manual_seed(3)
        loader = make(given, 4, **options)
        batches.append([batch for _ in range(2) for batch in loader])
        if isinstance(loader, DataLoader):
            loader.close()
    for theirs, ours in zip(*batches, strict=True):
        assert type(ours) is type(theirs) is list and len(ours) == len(theirs)
        for a, b in zip(theirs, ours, strict=True):
            assert torch.equal(a, b) and a.dtype == b.dtype and a.stride() == b.stride()
            assert a.requires_grad == b.requires_grad and type(a) is type(b) and a.is_shared() == b.is_shared()


OPTIONS: dict[str, dict[str, Any]] = {
    "in order": {},
    "shuffled": {"shuffle": True},
    "whole batches": {"shuffle": True, "drop_last": True},
    "torch's collate": {"collate_fn": data.default_collate},
    "two workers": {"shuffle": True, "num_workers": 2},
    "a sampler": {"sampler": data.WeightedRandomSampler([1.0] * 9, 30)},
}


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("part", ["all", "a subset", "a subset of a subset"])
def test_batches_are_torchs(options: str, part: str, finished: list[bool]) -> None:
    given: Any = dataset(torch.rand(COUNT, dtype=torch.float64) > 0.5)
    if part != "all":
        given = data.random_split(given, [15, 8], torch.Generator().manual_seed(1))[0]
    if part == "a subset of a subset":
        given = data.Subset(given, range(2, 13))
    same_as_torchs(given, **OPTIONS[options])
    assert all(finished) and bool(finished) == (options != "two workers")


class Named(Tensor):
    """A class of its own, whose rows stay of that class."""


ODD: dict[str, Callable[[], data.Dataset[Any]]] = {
    "channels last": lambda: dataset(IMAGES.contiguous(memory_format=torch.channels_last)),
    "a window": lambda: dataset(torch.rand(COUNT, 6)[:, 1:4]),
    "a parameter": lambda: dataset(torch.rand(COUNT, 2, requires_grad=True)),
    "a subclass": lambda: dataset(torch.rand(COUNT, 2).as_subclass(Named)),
    "16 bits": lambda: dataset(torch.arange(COUNT).to(torch.uint16)),
    "indices as a tensor": lambda: data.Subset(dataset(), torch.arange(9)),  # type: ignore[arg-type]
    "indices from the end": lambda: data.Subset(dataset(), range(-9, 0)),
    "a mask": lambda: data.Subset(dataset(), [True]),
}


@pytest.mark.parametrize("odd", ODD)
def test_other_tensors_and_indices_are_read_like_torch(odd: str) -> None:
    same_as_torchs(ODD[odd]())


def test_errors_are_torchs() -> None:
    with pytest.raises(IndexError) as ours:
        list(DataLoader(dataset(), 4, sampler=[1, COUNT]))  # type: ignore[arg-type]
    with pytest.raises(IndexError) as theirs:
        list(data.DataLoader(dataset(), 4, sampler=[1, COUNT]))  # type: ignore[arg-type]
    assert str(ours.value) == str(theirs.value)


def test_tensors_that_change_are_seen(finished: list[bool]) -> None:
    given = dataset()
    loader = DataLoader(given, 4)
    list(loader)
    given.tensors[1].add_(100)
    assert torch.cat([labels for _, labels in loader]).min() >= 100
    given.tensors = (IMAGES.double(), *given.tensors[1:])
    assert next(iter(loader))[0].dtype == torch.float64
    assert all(finished)


def test_own_functions_are_called(monkeypatch: pytest.MonkeyPatch, finished: list[bool]) -> None:
    monkeypatch.setitem(collate.default_collate_fn_map, Tensor, lambda batch, **_: torch.stack(batch) + 1)
    assert next(iter(DataLoader(dataset(), 4)))[1].tolist() == [1, 2, 3, 4]
    loader = DataLoader(dataset(), 4, collate_fn=len)
    assert next(iter(loader)) == 4
    monkeypatch.undo()
    monkeypatch.setattr(data.TensorDataset, "__getitem__", lambda self, i: (torch.tensor(-i),))
    assert next(iter(DataLoader(dataset(), 4)))[0].tolist() == [0, -1, -2, -3]
    assert not any(finished)


def test_single_samples() -> None:
    for theirs, ours in zip(data.DataLoader(dataset(), None), DataLoader(dataset(), batch_size=None), strict=True):
        assert type(ours) is type(theirs) and torch.equal(ours[0], theirs[0]) and torch.equal(ours[1], theirs[1])
