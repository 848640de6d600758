"""Samplers of gpupipe: repeated augmentation, weights by epoch, classes in turn, and batches of classes."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset as TorchDataset

from gpupipe import DataLoader, Shard, samplers, transforms as T
from gpupipe.datasets import Arrays
from gpupipe.errors import ConfigError, StateError
from gpupipe.planning.order import Passes

LABELS = np.array([5] * 40 + [7] * 6 + [9] * 3 + [11])


def made(labels: Any = LABELS) -> Arrays:
    pixels = np.random.default_rng(0).integers(0, 256, (len(labels), 8, 8, 3), np.uint8)
    return Arrays(pixels, labels, transform=T.Compose([T.RandomCrop(6), T.ToTensor()]))


def loader(sampler: Any, **options: Any) -> DataLoader:
    given = {"batch_size": 8, "seed": 3, "engine": "null", "device": "cpu", **options}
    return DataLoader(given.pop("dataset", None) or made(), sampler=sampler, **given)


def indices(it: DataLoader) -> list[int]:
    return [index for plan, _ in it for index in plan.indices.tolist()]


# ---- passes over groups


def test_passes_have_every_number_of_a_group_once() -> None:
    sizes = np.array([1, 2, 7, 1000])
    passes = Passes(sizes, 3)
    for group, size in enumerate(sizes.tolist()):
        numbers, turns = passes.at(np.full(3 * size, group), np.arange(3 * size))
        assert turns.tolist() == np.repeat(range(3), size).tolist()
        parts = numbers.reshape(3, size)
        assert (np.sort(parts) == np.arange(size)).all()
        assert size < 7 or len(set(map(tuple, parts))) == 3
    groups, uses = np.random.default_rng(0).integers(0, 4, 500), np.random.default_rng(1).integers(0, 10**7, 500)
    together = passes.at(groups, uses)[0].tolist()
    assert together == [int(passes.at(groups[i : i + 1], uses[i : i + 1])[0][0]) for i in range(500)]


def test_passes_are_uniform() -> None:
    n, trials = 5, 4000
    counts = np.zeros((n, n))
    passes = Passes(np.array([n]), 1)
    numbers, _ = passes.at(np.zeros(n * trials, np.int64), np.arange(n * trials))
    np.add.at(counts, (np.tile(np.arange(n), trials), numbers), 1)
    assert np.abs(counts / trials - 1 / n).max() < 4 * np.sqrt(0.16 / trials)


# ---- repeated augmentation


def test_every_sample_comes_as_often_as_asked_over_the_epochs() -> None:
    it = loader(samplers.RepeatedAugmentation(3))
    assert len(it) == 7
    found = [indices(it) for _ in range(3)]
    assert Counter(index for epoch in found for index in epoch) == dict.fromkeys(range(50), 3)
    assert found[0][:3] == [found[0][0]] * 3


# ---- weights


def test_weights_by_epoch_make_a_curriculum() -> None:
    hardness = np.arange(50)
    it = loader(samplers.Weighted(lambda epoch: hardness < 10 * (epoch + 1), 200))
    found = [indices(it) for _ in range(5)]
    assert [max(epoch) // 10 for epoch in found] == [0, 1, 2, 3, 4] and min(found[4]) < 10


def test_weights_that_were_set_are_part_of_the_state() -> None:
    sampler = samplers.Weighted(np.ones(50))
    it = loader(sampler)
    assert "sampler" not in it.state_dict()
    indices(it)
    sampler.set_weights(np.arange(50) == 17, epoch=1)
    state = it.state_dict()
    assert set(indices(it)) == {17}
    again = loader(samplers.Weighted(np.ones(50)))
    again.load_state_dict(state)
    assert set(indices(again)) == {17}
    assert len(set(again.plan_at(0, 0).indices.tolist())) > 1  # the epoch before
    with pytest.raises(StateError, match="other weights"):
        loader(samplers.Weighted(np.arange(50) + 1)).load_state_dict(
            {**state, "order": loader(samplers.Weighted(np.arange(50) + 1)).state_dict()["order"]}
        )


def test_the_latest_two_weights_are_kept() -> None:
    sampler = samplers.Weighted(torch.ones(50))
    for epoch in (2, 4, 9):
        sampler.set_weights(np.arange(50) == epoch, epoch=epoch)
    it = loader(sampler)
    assert [set(it.plan_at(epoch, 0).indices.tolist()) for epoch in (4, 8, 9)] == [{4}, {4}, {9}]
    with pytest.raises(ConfigError, match="not known any more"):
        it.plan_at(1, 0)


def test_without_replacement() -> None:
    found = indices(loader(samplers.Weighted(np.arange(50), 20, replacement=False)))
    assert len(set(found)) == 20 and 0 not in found


# ---- classes


@pytest.mark.parametrize("ranks", [1, 2])
def test_classes_come_equally_often(ranks: int) -> None:
    found = [
        label
        for rank in range(ranks)
        for _, labels in loader(samplers.ClassBalanced(num_samples=400), shard=Shard(rank, ranks))
        for label in labels.tolist()
    ]
    assert Counter(found) == {5: 100, 7: 100, 9: 100, 11: 100}


def test_samples_of_a_class_come_equally_often() -> None:
    counts = Counter(indices(loader(samplers.ClassBalanced(num_samples=480))))
    for label, times in ((5, 3), (7, 20), (9, 40), (11, 120)):
        assert {counts[i] for i in np.flatnonzero(label == LABELS).tolist()} == {times}


def test_batches_of_classes() -> None:
    it = loader(samplers.ClassBatches(2, 4, num_samples=80))
    assert len(it) == 10
    for plan, labels in it:
        classes = labels.view(2, 4)
        assert (classes == classes[:, :1]).all() and classes[0, 0] != classes[1, 0]
        for samples, label in zip(plan.indices.reshape(2, 4), classes[:, 0].tolist(), strict=True):
            assert len(set(samples.tolist())) == min(4, int((label == LABELS).sum()))
        assert len(set(plan.keys.tolist())) == 8


def test_all_classes_and_samples_come_in_the_long_run() -> None:
    it = loader(samplers.ClassBatches(3, 4, num_samples=12 * 40), batch_size=12)
    counts = Counter(indices(it))
    assert set(counts) == set(range(50))
    assert np.ptp([sum(counts[i] for i in np.flatnonzero(c == LABELS).tolist()) for c in (5, 7, 9, 11)]) <= 40


def test_without_num_samples_an_epoch_has_whole_groups() -> None:
    assert len(loader(samplers.ClassBatches(2, 4))) == 6
    assert len(loader(samplers.ClassBalanced())) == 7


# ---- errors


class _Plain(TorchDataset[Any]):
    def __len__(self) -> int:
        return 5

    def __getitem__(self, i: int) -> Any:
        return torch.zeros(3), i


def test_bad_arguments() -> None:
    unlabeled = Arrays(np.zeros((4, 8, 8, 3), np.uint8))
    cases: list[tuple[Any, str]] = [
        (lambda: samplers.RepeatedAugmentation(0), "at least 1, not 0"),
        (lambda: samplers.RepeatedAugmentation(2.5), "at least 1, not 2.5"),  # type: ignore[arg-type]
        (lambda: samplers.Weighted([1, -1]), "none negative"),
        (lambda: samplers.Weighted([1, 0, 0], replacement=False), "only 1 weights are above zero"),
        (lambda: samplers.Weighted([1, 1]).set_weights([1, 1], epoch=0), "above 0"),
        (lambda: samplers.Weighted([1, 1]).set_weights([1], epoch=1), "1 weights for 2"),
        (lambda: samplers.Weighted(lambda e: [1]).set_weights([1], epoch=1), "change the function"),
        (lambda: loader(samplers.Weighted([1, 1])), "2 weights, but this dataset has 50"),
        (lambda: loader(samplers.ClassBalanced(), dataset=unlabeled), "pass labels="),
        (lambda: loader(samplers.ClassBalanced([1, 2])), r"integers \[50\]"),
        (lambda: loader(samplers.ClassBatches(5, 2)), "there are 4"),
        (lambda: loader(samplers.ClassBatches(3, 4)), "batch_size=8 cuts groups of 12"),
        (lambda: loader(samplers.RepeatedAugmentation(2), shuffle=True), "exclude each other"),
        (lambda: DataLoader(_Plain(), sampler=samplers.RepeatedAugmentation(2)), "RepeatedAugmentation"),
    ]
    for make, text in cases:
        with pytest.raises(ConfigError, match=text):
            make()
