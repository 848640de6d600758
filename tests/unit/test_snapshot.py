"""A look at a dataset between two batches disturbs nothing that other threads do with it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, TensorDataset

from gpupipe import transforms as T
from gpupipe.datasets import ImageFolder
from gpupipe.interop import snapshot
from gpupipe.interop.snapshot import Glance, Snapshot


class Changing:
    """Values of a dict to which another thread adds an entry while it is looked through."""

    def __len__(self) -> int:
        return 1

    def __iter__(self) -> Iterator[int]:
        yield 0
        raise RuntimeError("dictionary changed size during iteration")


class Filled(OrderedDict[int, int]):
    def values(self) -> Any:
        return Changing()


def test_a_dict_that_another_thread_changes_is_a_change() -> None:
    dataset = SimpleNamespace(cache=Filled(), size=3)
    before = Glance(dataset)
    assert before.differs(Glance(dataset))


def test_an_opened_file_is_no_change(photos: Path) -> None:
    dataset = ImageFolder(photos)
    before = Glance(dataset)
    assert not before.differs(Glance(dataset))
    dataset[0]
    assert not before.differs(Glance(dataset))
    dataset.transform = T.Compose([T.CenterCrop(8)])
    assert before.differs(Glance(dataset))


OUTSIDE = T.Compose([T.CenterCrop(8)])
"""A transform that code of a script reads."""


class Plain:
    pass


class Other(Plain):
    pass


def test_an_object_of_another_class_is_a_change() -> None:
    dataset = SimpleNamespace(inner=Plain())
    before = Glance(dataset)
    dataset.inner.__class__ = Other
    assert before.differs(Glance(dataset, before))


class Own(Dataset[Any]):
    def __getitem__(self, i: int) -> Any:
        return OUTSIDE, i


def crops(image: Any) -> Any:
    return OUTSIDE, image


def test_what_code_of_the_script_reads_is_looked_at_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = Own()
    first = Glance(dataset)
    second = Glance(dataset, first)
    assert not first.differs(second)
    monkeypatch.setitem(globals(), "OUTSIDE", T.Compose([T.CenterCrop(9)]))
    assert second.differs(Glance(dataset, second))


def test_code_that_a_librarys_dataset_gets_later_is_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    dataset: Any = TensorDataset(torch.zeros(3))
    last = Glance(dataset, Glance(dataset))
    with monkeypatch.context() as patch:
        patch.setattr(snapshot, "transforms_outside", None)  # is not called
        last = Glance(dataset, last)
    dataset.transform = crops
    last, before = Glance(dataset, last), last
    assert before.differs(last) and not last.differs(Glance(dataset, last))
    monkeypatch.setitem(globals(), "OUTSIDE", T.Compose([T.CenterCrop(9)]))
    assert last.differs(Glance(dataset, last))


ARRAYS: dict[str, Any] = {
    "bytes": np.arange(24, dtype=np.uint8).reshape(4, 6),
    "columns first": np.asfortranarray(np.arange(24.0).reshape(4, 6)),
    "every other column": np.arange(24.0).reshape(4, 6)[:, ::2],
    "a single value": np.array(3.5),
    "no values": np.zeros((0, 3)),
    "texts": np.array(["a", "bc"]),
    "dates": np.array(["2026-01-02", "2026-01-03"], "M8[D]"),
    "records": np.array([(1, 2.5), (2, 3.5)], [("n", int), ("x", float)]),
    "objects": np.array([1, "b", None], object),
    "NaN": np.array([np.nan, 1.0]),
    "tensor": torch.arange(24.0).reshape(4, 6)[:, ::2],
}


@pytest.mark.parametrize("kind", ARRAYS)
def test_a_value_in_an_array_that_changes_is_a_change(kind: str) -> None:
    array = ARRAYS[kind].clone() if kind == "tensor" else ARRAYS[kind].copy(order="K")
    dataset = SimpleNamespace(array=array)
    before = Snapshot.of(dataset)
    assert not before.differs(dataset)
    values = array.numpy() if kind == "tensor" else array  # which the tensor's version does not show
    if values.size:
        values.reshape(-1)[-1:] = values.reshape(-1)[:1] if values.size > 1 else 4
        if not values.flags.c_contiguous:
            values[..., -1] = values[..., 0]
        assert before.differs(dataset)


def test_equal_bytes_of_another_form_are_a_change() -> None:
    array: Any = np.arange(8, dtype=np.int32)
    dataset = SimpleNamespace(array=array)
    names = [np.dtype([(name, np.uint32)]) for name in "ab"]
    changes = [("shape", (2, 4)), ("dtype", np.dtype(np.uint32)), *(("dtype", dtype) for dtype in names)]
    for attribute, value in changes:
        before = Snapshot.of(dataset)
        setattr(array, attribute, value)
        assert before.differs(dataset)
