"""A look at a dataset between two batches disturbs nothing that other threads do with it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from gpupipe import transforms as T
from gpupipe.datasets import ImageFolder
from gpupipe.interop.snapshot import Glance


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
