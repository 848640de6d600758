"""Batches of rows of arrays without transforms are torch's, bit by bit, made with one call per array."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
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


# ---- Datasets of scripts


VALUES = np.random.default_rng(0).random((COUNT, 2, 5, 4), np.float32)


class Own(data.Dataset[Any]):
    def __init__(self, values: Any = VALUES, labels: Any = None):
        self.values, self.labels = values, [i % 5 for i in range(COUNT)] if labels is None else labels
        self.chosen = list(range(COUNT))

    def __len__(self) -> int:
        return len(self.chosen)

    def __getitem__(self, index: int) -> Any:
        at = self.chosen[index]
        return self.values[at], self.labels[at], at


class Converted(Own):
    def __getitem__(self, index: int) -> Any:
        values = torch.tensor(self.values[index], dtype=torch.float64)
        return {"x": values.reshape(-1), "y": (int(self.labels[index]), index)}


class LastAxis(Own):
    def __getitem__(self, index: int) -> Any:
        return torch.from_numpy(self.values[index]).permute(1, 2, 0), self.labels[index]


class OfOther(data.Dataset[Any]):
    def __init__(self, other: Any):
        self.other = other

    def __len__(self) -> int:
        return len(self.other)

    def __getitem__(self, index: int) -> Any:
        x, *_ = self.other[index]
        return x


class Computing(Own):
    def __getitem__(self, index: int) -> Any:
        return self.values[index] / 2, self.labels[index]


OWN: dict[str, tuple[Callable[[], data.Dataset[Any]], bool]] = {
    "arrays and lists": (Own, True),
    "a float per sample": (lambda: Own(labels=[i / 7 for i in range(COUNT)]), True),
    "tensors": (lambda: Own(torch.from_numpy(VALUES), torch.arange(COUNT, dtype=torch.int16)), True),
    "numbers of numpy": (lambda: Own(labels=list(np.arange(COUNT, dtype=np.int32))), True),
    "not a number": (lambda: Own(np.where(VALUES > 0.5, np.nan, VALUES)), True),
    "a read-only array": (lambda: Own(np.broadcast_to(VALUES[:1], VALUES.shape)), True),
    "converted": (Converted, True),
    "another's": (lambda: OfOther(data.Subset(dataset(), list(range(3, 17)))), True),
    "another layout": (LastAxis, True),
    "computed": (Computing, False),
    "texts": (lambda: Own(labels=[str(i) for i in range(COUNT)]), False),
}


@pytest.mark.filterwarnings("ignore:The given NumPy array is not writable")
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("name", OWN)
def test_batches_of_own_datasets_are_torchs(name: str, workers: int, finished: list[bool]) -> None:
    make, at_once = OWN[name]
    theirs, ours = (
        [batch for _ in range(2) for batch in loader(make(), 4, num_workers=workers)]
        for loader in (data.DataLoader, DataLoader)
    )
    assert [*map(described, ours)] == [*map(described, theirs)]
    assert all(finished) and bool(finished) == (at_once and not workers)


def described(part: Any) -> Any:
    """Return everything that tells two batches apart."""
    if isinstance(part, Tensor):
        return part.dtype, part.shape, part.stride(), part.nan_to_num(-1.0).tolist(), part.isnan().tolist()
    if isinstance(part, dict):
        return {key: described(value) for key, value in part.items()}
    return [type(part), *map(described, part)] if isinstance(part, (list, tuple)) else part


def _values(given: Own) -> None:
    given.values = VALUES + 1


def _in_place(given: Own) -> None:
    given.values[:] += 1


def _labels(given: Own) -> None:
    given.labels[3:9] = [7] * 6


def _other_labels(given: Own) -> None:
    given.labels[7] = 2.5


def _order(given: Own) -> None:
    given.chosen.reverse()


def _from_the_end(given: Own) -> None:
    given.chosen[1] = -1


def _code(given: Own) -> None:
    given.__class__ = Computing


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("in_the_middle", [False, True])
@pytest.mark.parametrize("change", [_values, _in_place, _labels, _other_labels, _order, _from_the_end, _code])
def test_changes_of_own_datasets_are_seen(change: Callable[[Own], None], in_the_middle: bool, workers: int) -> None:
    def batches(make: Any) -> list[Any]:
        given, found = Own(VALUES.copy()), []
        loader = make(given, 4, num_workers=workers)
        for epoch in range(2):
            for number, batch in enumerate(loader):
                found.append(described(batch))
                if (epoch, number) == ((0, 1) if in_the_middle else (0, 5)):
                    change(given)
        return found

    theirs = batches(data.DataLoader)
    assert batches(DataLoader) == theirs and theirs[:6] != theirs[6:]


def test_tensors_that_need_a_gradient_from_now_on(finished: list[bool]) -> None:
    given = dataset()
    loader = DataLoader(given, 4)
    assert not next(iter(loader))[0].requires_grad and all(finished)
    given.tensors = (IMAGES.clone(), *given.tensors[1:])
    next(iter(loader))
    given.tensors[0].requires_grad_()
    assert next(iter(loader))[0].requires_grad and not finished[-1]


def test_a_copy_finds_its_arrays_again() -> None:
    session: Any = DataLoader(Own(), 4)._session
    copied = pickle.loads(pickle.dumps(session.loader.dataset))
    assert type(copied) is row_batches.RowBatches and type(copied.__getitems__([3, 1])) is row_batches._Batch
