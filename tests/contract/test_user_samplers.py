"""Samplers and batch samplers of user code give the epochs that torch's loader makes of them, on gpupipe's engines."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader as TorchLoader, Sampler, TensorDataset

from gpupipe import DataLoader, Shard
from gpupipe.datasets import Arrays
from gpupipe.errors import ConfigError

N = 11
ENGINES = ["null", "torch", "dali"]


class Batches:
    """Counts how many batches were asked for."""

    def __init__(self, batches: Any, length: int | None = None):
        self.batches, self.length, self.read = batches, length, 0

    def __iter__(self) -> Iterator[Any]:
        for batch in self.batches() if callable(self.batches) else self.batches:
            self.read += 1
            yield batch


class Counted(Batches):
    def __len__(self) -> int:
        return 3


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
    "with a length": lambda: Counted([[1, 2], [3], [4, 5]]),
    "tensors": lambda: Batches([torch.tensor([3, 1]), torch.arange(5)]),
    "lists of tensors": lambda: Batches([list(torch.tensor([3, 1])), [torch.tensor(4)]]),
    "arrays": lambda: Batches([np.array([3, 1], np.int32), np.arange(5)]),
    "tuples": lambda: Batches([(3, 1), (4,)]),
    "a generator": lambda: (batch for batch in ([3, 1], [4])),
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
    for kind in ("list", "with a length"):
        assert len(loader(KINDS[kind]())) == len(torchs(KINDS[kind]())) == 3
    for make in (loader, torchs):
        with pytest.raises(TypeError):
            len(make(KINDS["varying"]()))
    ours, theirs = loader(KINDS["list"]()), torchs(KINDS["list"]())
    assert ours.batch_size is theirs.batch_size is None
    assert type(ours.sampler) is type(theirs.sampler)


@pytest.mark.parametrize("engine", ENGINES)
def test_without_workers_one_batch_is_read_at_a_time(engine: str) -> None:
    ours, theirs = Batches(lambda: itertools.cycle([[1, 2], [3]])), Batches(lambda: itertools.cycle([[1, 2], [3]]))
    with loader(ours, engine) as made:
        for one, _ in zip(itertools.islice(made, 5), torchs(theirs), strict=False):
            assert labels(one) in ([1, 2], [3])
            assert ours.read == theirs.read


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("engine", ENGINES)
def test_batches_without_an_end_are_read_ahead_a_little(engine: str, workers: int) -> None:
    batches = Batches(lambda: itertools.cycle([[1, 2], [3]]))
    with loader(batches, engine, num_workers=workers) as made:
        assert [labels(batch) for batch in itertools.islice(made, 5)] == [[1, 2], [3], [1, 2], [3], [1, 2]]
    assert batches.read <= 5 + 2 * max(workers, 1)


def test_what_is_no_batch_of_indices_is_refused() -> None:
    for wrong in ([[(0, 1)]], [["a"]], [3], [[N]], [[]]):
        with pytest.raises((ConfigError, TypeError)):
            list(loader(Batches(wrong)))
    with pytest.raises(ConfigError, match="let the batch sampler divide them among the ranks"):
        loader([[1]], shard=Shard(0, 2))


class Endless(Sampler[int]):
    """As scripts for style transfer and restoration have them."""

    def __init__(self, length: int):
        self.length, self.read = length, 0

    def __iter__(self) -> Iterator[int]:
        for i in itertools.cycle(range(N)):
            self.read += 1
            yield i

    def __len__(self) -> int:
        return self.length


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("length", [4, 2**31])
@pytest.mark.timeout(30)
def test_what_a_length_says_is_not_believed(length: int, engine: str, workers: int) -> None:
    sampler = Endless(length)
    data, named = Arrays(np.zeros((N, 8, 8, 3), np.uint8), np.arange(N)), engine
    with DataLoader(
        data,
        3,
        sampler=sampler,
        num_workers=workers,
        engine=named,
        device="cpu",  # type: ignore[arg-type]
    ) as made:
        assert len(made) == -(-length // 3)
        assert [labels(batch) for batch in itertools.islice(made, 4)] == [[0, 1, 2], [3, 4, 5], [6, 7, 8], [9, 10, 0]]
        state = made.state_dict()
        made.load_state_dict(state)
        assert labels(next(iter(made))) in ([1, 2, 3], [0, 1, 2])
    assert sampler.read < 100


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


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", ["batches", "samples"])
@pytest.mark.parametrize("engine", ENGINES)
def test_an_error_of_a_sampler_arrives_after_the_batches_before_it(engine: str, kind: str, workers: int) -> None:
    data = Arrays(np.zeros((N, 8, 8, 3), np.uint8), np.arange(N))
    given = {"batch_sampler": Failing(kind)} if kind == "batches" else {"sampler": Failing(kind), "batch_size": 3}
    batches = iter(DataLoader(data, engine=engine, num_workers=workers, **given))
    assert len([next(batches), next(batches)]) == 2
    with pytest.raises(ValueError, match="contain nan"):
        next(batches)
