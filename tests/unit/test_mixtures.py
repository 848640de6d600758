"""Mixtures: exact proportions, passes over each dataset, changes of weights, and errors."""

from __future__ import annotations

import io
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch

from gpupipe import DataLoader, Shard, samplers, transforms as T
from gpupipe.datasets import Arrays, Mixture, from_torch
from gpupipe.errors import ConfigError, DatasetError, StateError
from gpupipe.planning.mixtures import Blend, Mixed, Proportions

WEIGHTS: list[list[float]] = [
    [0.7, 0.3],
    [1, 2],
    [5],
    [0.02, 0.49, 0.49],
    [0.9, 0.02, 0.02, 0.02, 0.02, 0.02],
    [1] * 7,
    np.random.default_rng(1).dirichlet(np.ones(5)).round(3).tolist(),
]


@pytest.mark.parametrize("weights", WEIGHTS, ids=str)
def test_counts_stay_within_one_at_every_prefix(weights: list[float]) -> None:
    n = 100_000
    sources, earlier = Proportions(weights).at(np.arange(n))
    for i, weight in enumerate(weights):
        counts = np.cumsum(sources == i)
        assert np.abs(counts - weight / sum(weights) * np.arange(1, n + 1)).max() < 1
        assert (earlier[sources == i] == np.arange(counts[-1])).all()


def test_any_position_is_found_without_earlier_ones() -> None:
    proportions = Proportions([0.3, 0.25, 0.45])
    whole = proportions.at(np.arange(5000))
    some = np.random.default_rng(0).integers(0, 5000, 300)
    assert all((part == values[some]).all() for part, values in zip(proportions.at(some), whole, strict=True))
    for length in (0, 1, 19, 20, 4999):
        assert proportions.counts(length).tolist() == np.bincount(whole[0][:length], minlength=3).tolist()


def test_weights_without_a_small_denominator_are_rounded() -> None:
    weights = [np.pi, np.e, 1e-9]
    proportions = Proportions(weights)
    assert proportions.period == 65_536 and min(proportions.parts) == 1
    assert np.abs(np.array(proportions.parts) / 65_536 - np.array(weights) / sum(weights)).max() < 2 / 65_536


@pytest.mark.parametrize("stop", ["first", "all", 25])
def test_each_source_is_used_pass_by_pass(stop: Any) -> None:
    sizes = np.array([10, 7, 3])
    blend = Blend(sizes, [(0, [0.5, 0.3, 0.2])], stop)
    epochs = [Mixed(blend, True, 1, epoch).at(np.arange(blend.length)) for epoch in range(30)]
    for first, size in zip((0, 10, 17), sizes, strict=True):
        used = np.concatenate([indices[(indices >= first) & (indices < first + size)] for indices, _ in epochs]) - first
        passes = [tuple(used[i : i + size]) for i in range(0, len(used) - size + 1, size)]
        assert {tuple(sorted(one)) for one in passes} == {tuple(range(size))}
        assert len(set(passes)) > min(len(passes), 6) // 2  # each in an order of its own
    assert all(len(set(keys.tolist())) == len(keys) for _, keys in epochs)


def test_where_epochs_end() -> None:
    sizes = np.array([10, 7, 3])
    first, every = (Blend(sizes, [(0, [0.5, 0.3, 0.2])], stop) for stop in ("first", "all"))
    counts = [np.bincount(blend.at(0, np.arange(blend.length))[0]) for blend in (first, every)]
    more = [np.bincount(blend.at(0, np.arange(blend.length + step))[0]) for blend, step in ((first, 1), (every, -1))]
    assert (counts[0] <= sizes).all() and (more[0] > sizes).any()
    assert (counts[1] >= sizes).all() and (more[1] < sizes).any()


def test_weights_change_at_a_sample() -> None:
    changes = [(0, [0.5, 0.5]), (40, [0.1, 0.9]), (70, [1, 1e-3])]
    blend = Blend(np.array([1000, 1000]), changes, 25)
    stream = [blend.at(epoch, np.arange(25)) for epoch in range(4)]
    sources, earlier = (np.concatenate(each) for each in zip(*stream, strict=True))
    assert [np.bincount(sources[a:b], minlength=2).tolist() for a, b in ((0, 40), (40, 70), (70, 100))] == [
        [20, 20], [3, 27], [30, 0],
    ]  # fmt: skip
    for i in range(2):
        assert earlier[sources == i].tolist() == list(range((sources == i).sum()))


# ---- datasets and loaders


def arrays(n: int, first: int = 0, transform: Any = None, size: int = 8) -> Arrays:
    pixels = np.random.default_rng(n).integers(0, 256, (n, size, size, 3), np.uint8)
    return Arrays(pixels, range(first, first + n), transform=transform)


def loader(mixture: Mixture, **options: Any) -> DataLoader:
    return DataLoader(mixture, **{"batch_size": 8, "seed": 3, "engine": "torch", "device": "cpu", **options})


def labels(batches: Any) -> list[int]:
    return [label for _, found in batches for label in found.tolist()]


def two() -> tuple[Arrays, Arrays]:
    return arrays(40), arrays(10, 100)


def test_images_and_labels_of_a_row_belong_together() -> None:
    one, other = two()
    mixture = Mixture({one: 0.6, other: 0.4}, stop="all")
    assert (len(mixture), mixture.part_of([0, 39, 40]).tolist(), mixture[45][1]) == (50, [0, 0, 1], 105)
    for images, found in loader(mixture, shuffle=True):
        for image, label in zip(images, found.tolist(), strict=True):
            wanted = one[label][0] if label < 100 else other[label - 100][0]
            assert (image.numpy() == np.asarray(wanted).transpose(2, 0, 1)).all()


def test_set_weights_is_part_of_the_state() -> None:
    def made() -> Mixture:
        one, other = two()
        return Mixture({one: 0.5, other: 0.5}, stop=16)

    mixture = made()
    with loader(mixture, shuffle=True) as it:
        next(iter(it))
        mixture.set_weights(dict(zip(mixture.parts, (0.25, 0.75), strict=True)), after=16)
        list(it)
        state = it.state_dict()
        rest = labels(it)
    assert Counter(label >= 100 for label in rest) == {True: 12, False: 4}
    state = torch.load(_saved(state), weights_only=True)
    with loader(made(), shuffle=True) as it:
        it.load_state_dict(state)
        assert labels(it) == rest
    one, other = two()
    with loader(Mixture({one: 0.4, other: 0.6}, stop=16), shuffle=True) as it, pytest.raises(StateError, match=r"0\.4"):
        it.load_state_dict(state)


def _saved(state: Any) -> Any:
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return file


def test_mixup_works_on_the_whole_batch() -> None:
    mixing = T.MixUp(num_classes=6)
    parts = [arrays(n, transform=T.Compose([T.ToTensor(), mixing])) for n in (4, 6)]
    plain = [arrays(n, transform=T.ToTensor()) for n in (4, 6)]
    batches = [list(loader(Mixture(dict.fromkeys(each, 1)), shuffle=True)) for each in (parts, plain)]
    for (images, found), (before, label) in zip(*batches, strict=True):
        other = label.roll(1)
        share = found.gather(1, label[:, None])[label != other].unique()
        assert len(share) == 1 and 0 < share < 1
        assert torch.allclose(images, share * before + (1 - share) * before.roll(1, 0))
        assert torch.allclose(found.gather(1, other[:, None])[label != other], 1 - share)
    with pytest.raises(ConfigError, match="use the same ones"):
        Mixture({parts[0]: 1, plain[1]: 1})


def test_its_own_collate_function() -> None:
    one, other = two()
    mixture = Mixture({one: 1, other: 1}, stop=16)
    with loader(mixture, collate_fn=lambda samples: [label for _, label in samples]) as it:
        found = list(it)
    assert [len(batch) for batch in found] == [8, 8] and sum(label >= 100 for batch in found for label in batch) == 8


def test_repr_shows_shares_and_counts() -> None:
    one, other = two()
    text = repr(loader(Mixture({one: 3, other: 1}, stop=16)))
    assert ": 0.75" in text and "12 samples of Arrays(uint8[40, 8, 8, 3]), 4 samples of Arrays" in text


class _Own(torch.utils.data.Dataset[Any]):
    def __len__(self) -> int:
        return 3

    def __getitem__(self, i: int) -> Any:
        return torch.zeros(3, 8, 8), i


def test_what_does_not_fit_is_refused() -> None:
    one, other = two()
    cases: list[tuple[Any, dict[str, Any], type[Exception], str]] = [
        ({}, {}, ConfigError, "a: 0.7"),
        ([one], {}, ConfigError, "weight of each dataset"),
        ({one: 0.5, other: 0}, {}, ConfigError, "positive number, not 0"),
        ({one: 0.5, other: float("nan")}, {}, ConfigError, "positive number, not nan"),
        ({one: 1}, {"stop": 0}, ConfigError, "stop must be"),
        ({one: 1}, {"stop": "last"}, ConfigError, "stop must be"),
        ({one: 1, arrays(3, size=9): 1}, {}, DatasetError, r"one shape and data type"),
        ({one: 1, arrays(3, transform=T.ToTensor()): 1}, {}, DatasetError, "one shape and data type"),
        ({one: 1, Arrays(np.zeros((3, 8, 8, 3), np.uint8)): 1}, {}, DatasetError, "the same names"),
        ({one: 1, Mixture({other: 1}): 1}, {}, DatasetError, "cannot be a part"),
        ({one: 1, from_torch(_Own()): 1}, {}, DatasetError, "cannot be a part"),
        ({one: 1, arrays(0): 1}, {}, DatasetError, "no samples"),
    ]
    for parts, options, error, text in cases:
        with pytest.raises(error, match=text):
            Mixture(parts, **options)
    mixture = Mixture({one: 0.5, other: 0.5})
    with pytest.raises(ConfigError, match="stop=n"):
        mixture.set_weights({one: 0.5, other: 0.5}, after=100)
    fixed = Mixture({one: 0.5, other: 0.5}, stop=8)
    with pytest.raises(ConfigError, match="above 0"):
        fixed.set_weights({one: 0.5, other: 0.5}, after=0)
    with pytest.raises(ConfigError, match="for no others"):
        fixed.set_weights({one: 0.5}, after=8)
    refused: list[tuple[dict[str, Any], str]] = [
        ({"shuffle": "blocks"}, "shuffle=True or False"),
        ({"exclude": [1]}, "Subset"),
        ({"sampler": [1, 2]}, "order itself"),
        ({"sampler": samplers.RepeatedAugmentation(2)}, "order itself"),
        ({"cache": "ram"}, "mixture"),
        ({"scaled": True}, "mixture"),
    ]
    for options, text in refused:
        with pytest.raises(ConfigError, match=text):
            loader(mixture, **options)


def test_ranks_with_other_weights_differ_in_their_settings() -> None:
    one, other = two()
    a, b = Mixture({one: 0.5, other: 0.5}, stop=8), Mixture({one: 0.6, other: 0.4}, stop=8)
    sessions: list[Any] = [loader(m, shard=Shard(0, 2), batch_size=2)._session for m in (a, b)]
    settings = [session._settings()["order"] for session in sessions]
    assert settings[0].value != settings[1].value
