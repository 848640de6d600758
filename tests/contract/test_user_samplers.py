"""Samplers and batch samplers of user code give the epochs that torch's loader makes of them, on gpupipe's engines."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support import TRAIN
from torch.utils.data import BatchSampler, DataLoader as TorchLoader, Sampler, TensorDataset

from gpupipe import DataLoader, Shard
from gpupipe.datasets import Arrays, ImageFolder
from gpupipe.errors import ConfigError

N = 11
ENGINES = ["null", "torch", "dali"]


class Batches:
    """Batches with the length of their list, which notes how many were read."""

    def __init__(self, batches: list[Any]):
        self.batches, self.read = batches, 0

    def __iter__(self) -> Iterator[Any]:
        for batch in self.batches:
            self.read += 1
            yield batch

    def __len__(self) -> int:
        return len(self.batches)


class More(Batches):
    """Its length is an estimate, as that of many bucket samplers."""

    def __len__(self) -> int:
        return 1


class Episodes(Sampler[Any]):
    """Two classes and three samples of each, drawn in every epoch."""

    def __init__(self) -> None:
        self.generator = torch.Generator().manual_seed(3)

    def __iter__(self) -> Iterator[list[int]]:
        for _ in range(4):
            yield torch.randperm(N, generator=self.generator)[:6].tolist()

    def __len__(self) -> int:
        return 4


VARYING = [[0], [1, 2, 3], list(range(N)) * 7, [4], list(range(N)) * 12, [5, 5, 6]]
KINDS: dict[str, Callable[[], Any]] = {
    "list": lambda: [[1, 2, 3], [5], [0, 10]],
    "varying": lambda: Batches(VARYING),
    "more than its length": lambda: More([[1, 2], [3], [4, 5]]),
    "tensors": lambda: Batches([torch.tensor([3, 1]), torch.arange(5)]),
    "lists of tensors": lambda: Batches([list(torch.tensor([3, 1])), [torch.tensor(4)]]),
    "arrays": lambda: Batches([np.array([3, 1], np.int32), np.arange(5)]),
    "tuples": lambda: Batches([(3, 1), (4,)]),
    "episodes": Episodes,
}


def loader(batches: Any, engine: str = "torch", **options: Any) -> DataLoader:
    pixels = np.zeros((N, 8, 8, 3), np.uint8)
    named: Any = engine
    return DataLoader(
        Arrays(pixels, np.arange(N)), batch_sampler=batches, engine=named, device="cpu", **{"seed": 1, **options}
    )


def torchs(batches: Any, **options: Any) -> TorchLoader[Any]:
    return TorchLoader(TensorDataset(torch.zeros(N, 2), torch.arange(N)), batch_sampler=batches, **options)


def labels(batch: Any) -> list[int]:
    images, target = batch
    return [int(i) for i in (target if isinstance(images, torch.Tensor) else images.indices)]


def epochs(loader: Any) -> list[list[list[int]]]:
    return [[labels(batch) for batch in loader] for _ in range(2)]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("kind", KINDS)
def test_batches_are_torchs(kind: str, engine: str, workers: int, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "gpupipe"), loader(KINDS[kind](), engine, num_workers=workers) as ours:
        got = epochs(ours)
    want = epochs(torchs(KINDS[kind]()))
    assert got == want
    assert not caplog.records


def test_lengths_are_torchs() -> None:
    for kind in KINDS:
        assert len(loader(KINDS[kind]())) == len(torchs(KINDS[kind]()))
    ours, theirs = loader(KINDS["list"]()), torchs(KINDS["list"]())
    assert ours.batch_size is theirs.batch_size is None
    assert type(ours.sampler) is type(theirs.sampler)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_batch_sampler_is_read_whole_when_its_epoch_begins(engine: str) -> None:
    batches = Batches(VARYING)
    with loader(batches, engine) as made:
        for epoch in (1, 2):
            iterator = iter(made)
            assert batches.read == len(VARYING) * (epoch - 1)
            next(iterator)
            assert batches.read == len(VARYING) * epoch


def test_dali_makes_batches_larger_than_those_that_are_likely(numbered: Path) -> None:
    data = ImageFolder(numbered, TRAIN)
    with DataLoader(data, batch_sampler=Batches(VARYING), engine="dali", device="cpu") as made:
        assert [len(images) for images, _ in made] == [len(batch) for batch in VARYING]
    with DataLoader(data, batch_sampler=BatchSampler(range(N), 2, False), engine="dali", device="cpu") as made:
        next(iter(made))
        made.batch_sampler.batch_size = N
        assert len(made) == 1 and len(made.at(0, 0)[0]) == N


def test_what_is_no_batch_of_indices_is_refused() -> None:
    for wrong in ([[(0, 1)]], [["a"]], [3], [[N]], [[]]):
        with pytest.raises((ConfigError, TypeError)):
            list(loader(Batches(wrong)))
    with pytest.raises(ConfigError, match="let the batch sampler divide them among the ranks"):
        loader([[1]], shard=Shard(0, 2))


class Endless(Sampler[int]):
    """As scripts for style transfer and restoration have them."""

    def __init__(self, length: int | None):
        self.length = length

    def __iter__(self) -> Iterator[int]:
        return itertools.cycle(range(N))

    def __len__(self) -> int:
        if self.length is None:
            raise NotImplementedError
        return self.length


@pytest.mark.parametrize("given", ["sampler", "batch_sampler"])
@pytest.mark.parametrize("live", [False, True])
@pytest.mark.parametrize(("length", "message"), [(None, "has no len"), (2**31, r"has len\(\) 2,147,483,648")])
def test_a_sampler_needs_the_length_of_an_epoch(length: int | None, message: str, live: bool, given: str) -> None:
    data: Any = TensorDataset(torch.zeros(N, 2), torch.arange(N)) if live else Arrays(np.zeros((N, 8, 8, 3), np.uint8))
    with pytest.raises(ConfigError, match=f"{given}=.*Endless {message}.*pass shuffle=True and infinite=True"):
        DataLoader(data, seed=1, device="cpu", **{given: Endless(length)})


def test_a_sampler_must_end() -> None:
    with (
        DataLoader(Arrays(np.zeros((N, 8, 8, 3), np.uint8)), 3, sampler=Endless(4), device="cpu") as made,
        pytest.raises(ConfigError, match=r"Endless has given 65,544 values and has len\(\) 4; it must end"),
    ):
        next(iter(made))


def test_without_a_seed_torch_reads_a_sampler_of_any_length() -> None:
    data = TensorDataset(torch.zeros(N, 2), torch.arange(N))
    with DataLoader(data, 3, sampler=Endless(2**31), device="cpu") as made:
        assert [labels(batch) for batch in itertools.islice(made, 4)] == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10, 0]]


@pytest.mark.parametrize(
    ("engine", "given"), [*((engine, True) for engine in ENGINES), ("torch's own", True), ("torch's own", False)]
)
def test_the_size_of_batches_can_be_set_between_epochs(given: bool, engine: str) -> None:
    data: Any = TensorDataset(torch.zeros(N, 2), torch.arange(N))
    if engine != "torch's own":
        data = Arrays(np.zeros((N, 8, 8, 3), np.uint8), np.arange(N))
    named: Any = "torch" if engine == "torch's own" else engine
    options: Any = {"batch_sampler": BatchSampler(range(N), 2, False)} if given else {"batch_size": 2}
    with DataLoader(data, engine=named, device="cpu", **options) as made:
        assert [len(labels(batch)) for batch in made] == [2] * 5 + [1]
        made.batch_sampler.batch_size = 5
        assert len(made) == 3
        assert [len(labels(batch)) for batch in made] == [5, 5, 1]
        made.batch_sampler.drop_last = True
        assert [len(labels(batch)) for batch in made] == [5, 5]
        made.batch_sampler.batch_size = 1
        assert len(list(made)) == N


class Failing(Sampler[Any]):
    def __init__(self, kind: str):
        self.kind = kind

    def __iter__(self) -> Iterator[Any]:
        yield from [[0, 1, 2], [3, 4, 5]] if self.kind == "batches" else range(7)
        raise ValueError("weights contain nan")

    def __len__(self) -> int:
        return 2 if self.kind == "batches" else N


@pytest.mark.parametrize("kind", ["batches", "samples"])
@pytest.mark.parametrize("engine", ENGINES)
def test_an_error_of_a_sampler_arrives_when_its_epoch_begins(engine: str, kind: str) -> None:
    data = Arrays(np.zeros((N, 8, 8, 3), np.uint8), np.arange(N))
    given = {"batch_sampler": Failing(kind)} if kind == "batches" else {"sampler": Failing(kind), "batch_size": 3}
    made = DataLoader(data, engine=engine, device="cpu", **given)
    for _ in range(2):
        with pytest.raises(ValueError, match="contain nan"):
            next(iter(made))
        assert made.state_dict()["epoch"] == 0
