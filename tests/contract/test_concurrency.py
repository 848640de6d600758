"""Several loaders at once, in one thread and in several: each gives what it gives alone."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import numpy as np
import pytest
import torch
from support import BATCH, EVAL, SEED, TRAIN, Case, N, all_seen, in_threads, same, seen

from gpupipe import DataLoader
from gpupipe.datasets import from_torch


def training(case: Case) -> DataLoader:
    return case.loader(case.dataset(TRAIN))


def validating(case: Case) -> DataLoader:
    return case.loader(case.dataset(EVAL), shuffle=False, batch_size=4)


@cache
def epochs_alone(make: Callable[[Case], DataLoader], *of_case: Any) -> list[list[Any]]:
    """What a loader gives alone, in as many epochs as any test asks for."""
    with make(Case(*of_case)) as loader:
        return [list(loader) for _ in range(6 if make is training else 2)]


def alone(case: Case, make: Callable[[Case], DataLoader]) -> list[list[Any]]:
    return epochs_alone(make, case.engine, case.kind, case.device, case.root)


@pytest.fixture
def train(decoding: Case) -> Callable[[], DataLoader]:
    return partial(training, decoding)


@pytest.fixture
def validation(decoding: Case) -> Callable[[], DataLoader]:
    return partial(validating, decoding)


Make = Callable[[], DataLoader]


def test_one_loader_within_the_loop_of_another(decoding: Case, train: Make, validation: Make) -> None:
    """Validation every few steps."""
    wanted, checked = alone(decoding, training), alone(decoding, validating)
    with train() as one, validation() as two:
        got = []
        for step, batch in enumerate(one):
            got.append(batch)
            if step % 2:
                assert same(list(two), checked[0])
        assert same(got, wanted[0])


def test_closing_one_leaves_the_other(decoding: Case, train: Make, validation: Make) -> None:
    wanted, checked = alone(decoding, training), alone(decoding, validating)
    with train() as one:
        iterator = iter(one)
        got = [next(iterator)]
        with validation() as two:
            assert same([next(iter(two))], checked[0][:1])  # and close it in the middle of its epoch
        got.extend(iterator)
        assert same(got, wanted[0])


def test_two_loaders_in_two_threads(decoding: Case, train: Make, validation: Make) -> None:
    wanted, checked = alone(decoding, training), alone(decoding, validating)
    together = threading.Barrier(2)

    def run(make: Make, expected: list[list[Any]]) -> None:
        with make() as loader:
            for epoch in expected[:2]:
                together.wait(60)
                assert same(list(loader), epoch)

    in_threads(lambda: run(train, wanted), lambda: run(validation, checked))


class Selected:
    """A torch dataset whose pictures come from the global generators, with time for others between two draws."""

    def __len__(self) -> int:
        return N

    def __getitem__(self, i: int) -> tuple[Any, int]:
        numbers = [random.random()]
        time.sleep(0.001)
        numbers.append(np.random.random())  # noqa: NPY002
        time.sleep(0.001)
        numbers.append(float(torch.rand(())))
        return np.full((40, 40, 3), np.array(numbers) * 256, np.uint8), i


@pytest.mark.parametrize("engine", ["torch", "dali"])
def test_global_generators_in_two_threads(engine: str, device: str, rng_untouched: None) -> None:
    def make(seed: int) -> DataLoader:
        dataset = from_torch(Selected(), media="array", transform=EVAL)
        return DataLoader(dataset, batch_size=BATCH, seed=seed, num_workers=0, engine=engine, device=device)

    def run(seed: int, expected: list[Any]) -> None:
        with make(seed) as loader:
            assert same(list(loader), expected)

    wanted = []
    for seed in (SEED, 5):
        with make(seed) as loader:
            wanted.append(list(loader))
    assert not same(wanted[0], wanted[1])
    in_threads(lambda: run(SEED, wanted[0]), lambda: run(5, wanted[1]))


@pytest.mark.parametrize("started", [False, True])
def test_a_loader_of_this_thread_in_another(decoding: Case, train: Make, started: bool) -> None:
    """Built here, read there, closed here; ``started``: its first batch and its second epoch are read here too."""
    wanted = alone(decoding, training)
    got: list[Any] = []
    with train() as loader:
        iterator = iter(loader)
        if started:
            got.append(next(iterator))
        in_threads(lambda: got.extend(iterator))
        assert same(got, wanted[0])
        if started:
            assert same(list(loader), wanted[1])


def test_close_from_another_thread_ends_the_epoch(decoding: Case, train: Make) -> None:
    """Between two batches, as a trainer does that reads in a thread of its own."""
    wanted = alone(decoding, training)
    loader = train()
    iterator = iter(loader)
    next(iterator)
    in_threads(loader.close)
    with pytest.raises(StopIteration):
        next(iterator)
    assert same(list(loader), wanted[1])


def test_every_iterator_is_an_epoch_of_its_own(decoding: Case, train: Make) -> None:
    wanted = alone(decoding, training)
    with train() as loader:
        first = iter(loader)
        got = [next(first), next(first)]
        second = iter(loader)
        begun = [next(second)]
        got += first
        assert same(got, wanted[0])
        assert same([*begun, *second], wanted[1])
        for iterator in (first, second):
            with pytest.raises(StopIteration):
                next(iterator)
        assert same(list(loader), wanted[2])


def test_threads_with_iterators_of_one_loader(decoding: Case, train: Make) -> None:
    """Each has an epoch of its own; which one, nobody knows."""
    with train() as loader:
        wanted = [[seen(batch) for batch in loader] for _ in range(3)]
    with train() as loader:
        found: list[list[Any]] = []
        in_threads(*[lambda: found.append([seen(batch) for batch in loader])] * 3)
    assert sorted(found) == sorted(wanted)


def test_threads_that_share_an_iterator(decoding: Case, train: Make) -> None:
    with train() as loader:
        wanted = [seen(batch) for batch in loader]
    with train() as loader:
        iterator, found = iter(loader), []
        in_threads(*[lambda: found.extend(seen(batch) for batch in iterator)] * 3)
    assert sorted(found) == sorted(wanted)


def test_loaders_share_a_dataset_and_nothing_else(decoding: Case, train: Make) -> None:
    """Positions, epochs and statistics are each loader's own."""
    with train() as one, train() as two:
        next(iter(one))
        two.set_epoch(4)
        assert len(all_seen(two)) == len(all_seen(one))
        assert (one.state_dict()["epoch"], two.state_dict()["epoch"]) == (2, 5)
        assert two.stats()["batches"] == 5
