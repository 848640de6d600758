"""Epochs of another length than the dataset, epochs without end, and samples that are left out."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import Dataset as TorchDataset, DistributedSampler, RandomSampler, Sampler

import gpupipe
from gpupipe import BlockShuffle, Shard, transforms as T
from gpupipe.datasets import Arrays, ImageFolder
from gpupipe.errors import ConfigError, StateError
from gpupipe.planning.order import Shuffle
from gpupipe.planning.schedules import Stretched, Without

N = 11
PIXELS = np.random.default_rng(0).integers(0, 256, (N, 8, 8, 3), np.uint8)


def made(n: int = N) -> Any:
    return Arrays(PIXELS[:n], range(n), transform=T.Compose([T.RandomCrop(6), T.ToTensor()]))


def loader(**options: Any) -> Any:
    given = {"batch_size": 4, "shuffle": True, "seed": 3, "engine": "torch", "device": "cpu", **options}
    return gpupipe.DataLoader(given.pop("dataset", None) or made(), **given)


def labels(batches: Any) -> list[int]:
    return [label for _, found in batches for label in found.tolist()]


# ---- orders


@pytest.mark.parametrize("length", [1, 4, N, 13, 40])
def test_passes_follow_one_another(length: int) -> None:
    epochs = [Stretched(partial(Shuffle, N), length, 5, epoch) for epoch in range(9)]
    sequence = np.concatenate([order.at(np.arange(length))[0] for order in epochs])
    for start in range(0, len(sequence) - N + 1, N):
        assert sorted(sequence[start : start + N]) == list(range(N))
    passes = [sequence[start : start + N].tolist() for start in range(0, len(sequence) - N + 1, N)]
    assert len(set(map(tuple, passes))) == len(passes)
    for order in epochs:
        assert len(order) == length and len(set(order.at(np.arange(length))[1].tolist())) == length
        at = np.random.default_rng(1).permutation(length)
        assert all((a == b[at]).all() for a, b in zip(order.at(at), order.at(np.arange(length)), strict=True))


def test_excluded_samples_never_come_and_others_keep_their_keys() -> None:
    out = np.array([0, 3, 4, 10])
    indices, keys = Without(partial(Shuffle, N - len(out)), out, 5, 0).at(np.arange(N - len(out)))
    assert sorted(indices) == sorted(set(range(N)) - set(out.tolist())) and (keys == indices).all()


# ---- loaders


def test_epochs_have_the_length_that_is_asked_for() -> None:
    with loader(epoch_length=4) as it:
        assert len(it) == 4
        found = [labels(it) for _ in range(11)]
    assert {len(epoch) for epoch in found} == {16}
    assert set(Counter(label for epoch in found for label in epoch).values()) == {16}


def test_a_sample_that_comes_twice_draws_twice() -> None:
    with loader(dataset=made(1), batch_size=8, epoch_length=1) as it:
        images = next(iter(it))[0]
    assert len({image.numpy().tobytes() for image in images}) > 1


@pytest.mark.slow
@pytest.mark.part("options", "step", of=3)
@pytest.mark.parametrize("options", [{"epoch_length": 5}, {"infinite": True}, {"exclude": [2, 7]}])
@pytest.mark.parametrize("step", [0, 1, 4, 5, 7])
def test_resume_and_ranks(options: dict[str, Any], step: int) -> None:
    def batches(it: Any) -> list[Any]:
        return list(islice((batch for _ in range(4) for batch in it), 12))

    with loader(**options) as it:
        whole = batches(it)
        there = {f"{k}": it.plan_at(0, k).indices.tolist() for k in range(3)}
    assert there == {f"{k}": whole[k][1].tolist() for k in range(3)}
    with loader(**options) as it:
        running = iter(it)
        for _ in range(step):
            try:
                next(running)
            except StopIteration:
                running = iter(it)
                next(running)
        state = it.state_dict()
    parts = []
    for rank in range(2):
        with loader(**options, batch_size=2, shard=Shard(rank, 2)) as it:
            it.load_state_dict(state)
            parts.append(list(islice((batch for _ in range(4) for batch in it), 12 - step)))
    for expected, left, right in zip(whole[step:], *parts, strict=False):
        if len(expected[1]) % 2 == 0:
            assert torch.equal(expected[0], torch.cat([left[0], right[0]]))
            assert expected[1].tolist() == [*left[1].tolist(), *right[1].tolist()]


def test_an_infinite_loader_has_no_length() -> None:
    with loader(infinite=True) as it:
        with pytest.raises(TypeError, match="endless"):
            len(it)
        found = labels(islice(iter(it), 55))
        assert set(Counter(found).values()) == {20}
        assert it.plan_at(0, 10**9).indices.shape == (4,)


def test_other_orders(tmp_path: Path) -> None:
    with loader(shuffle=None, sampler=RandomSampler(made()), epoch_length=11) as it:
        assert set(Counter(labels(it)).values()) == {4}
    with loader(shuffle=False, epoch_length=3, exclude=np.array([0])) as it:
        assert labels(it) == [*range(1, N), 1, 2] and labels(it)[0] == 3
    for i, pixels in enumerate(PIXELS):
        (tmp_path / f"{i:02d}").mkdir()
        Image.fromarray(pixels).save(tmp_path / f"{i:02d}" / "a.png")
    photos = ImageFolder(tmp_path, made().transform)
    blocks = BlockShuffle(block_bytes=600, blocks=2)
    with loader(dataset=photos, shuffle=blocks, exclude=[0, 3, 4, 5], epoch_length=7) as it:
        found = [labels(it) for _ in range(2)]
        assert "without 4 samples" in repr(it)
    assert set(Counter(found[0]).values()) == {4} and set(found[0]) == {1, 2, 6, 7, 8, 9, 10} and found[0] != found[1]


def test_states_belong_to_the_samples_that_are_left() -> None:
    with loader(exclude=[1]) as it, loader(exclude=[2]) as other, pytest.raises(StateError, match="another order"):
        other.load_state_dict(it.state_dict())


class Coins(Sampler[int]):
    def __iter__(self) -> Iterator[int]:
        return iter([random.randrange(N)])

    def __len__(self) -> int:
        return 1


class Own(TorchDataset[Any]):
    def __len__(self) -> int:
        return N

    def __getitem__(self, i: int) -> Any:
        return torch.zeros(3), i


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"epoch_length": 0}, "epoch_length must be"),
        ({"epoch_length": 2, "infinite": True}, "exclude each other"),
        ({"exclude": [N]}, "index 11; this dataset has 11 samples"),
        ({"exclude": [-1]}, "index -1"),
        ({"exclude": ["a.jpg"]}, "indices of samples"),
        ({"exclude": range(N)}, "all 11 samples"),
        ({"exclude": [1], "shuffle": None, "sampler": [1, 2]}, "let the sampler leave the samples out"),
        ({"epoch_length": 2, "shuffle": None, "sampler": Coins()}, "function of seed and epoch"),
        ({"epoch_length": 2, "shuffle": None, "sampler": DistributedSampler(PIXELS, 2, 0)}, "and shard="),  # type: ignore[arg-type]
        ({"infinite": True, "shuffle": None, "batch_size": 1, "batch_sampler": [[1, 2]]}, "your own batch sampler"),
        ({"exclude": [1], "dataset": Own(), "engine": "auto"}, "only a loader that plans its samples has this"),
    ],
)
def test_what_cannot_be_is_refused(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        loader(**options)
