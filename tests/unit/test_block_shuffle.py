"""A shuffle by blocks: every sample once, few blocks at a time, a function of seed and epoch."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from format_cases import write_tar
from support import BATCH, SEED, TRAIN, N, all_seen, write_photos
from torch.utils.data import DistributedSampler

from gpupipe import BlockShuffle, DataLoader, datasets
from gpupipe.errors import ConfigError, StateError
from gpupipe.planning.blocks import BlockShuffled, starts_of

RNG = np.random.default_rng(0)
SIZES = RNG.integers(0, 30_000, 3000)
STARTS = starts_of(SIZES, 100_000)
SMALL = BlockShuffle(block_bytes=10_000, blocks=2)


def order_of(seed: int = 1, epoch: int = 0, blocks: int = 8, starts: Any = STARTS, n: int = len(SIZES)) -> Any:
    return BlockShuffled(n, starts, blocks, seed, epoch)


def test_blocks_are_of_the_asked_size() -> None:
    ends = np.append(STARTS[1:], len(SIZES))
    bytes_of = np.array([SIZES[a:b].sum() for a, b in zip(STARTS, ends, strict=True)])
    assert STARTS[0] == 0 and bytes_of.max() < 130_000 and 95_000 < bytes_of[:-1].mean() < 105_000
    assert starts_of(np.array([5, 5, 5]), 1000).tolist() == [0]
    assert starts_of(np.array([50, 50, 50]), 1).tolist() == [0, 1, 2]
    assert starts_of(np.array([0, 0, 7]), 5).tolist() == [0]


@pytest.mark.parametrize("blocks", [1, 2, 7, 8, 64, 10_000])
@pytest.mark.parametrize("n", [1, 2, 17, 3000])
def test_every_sample_comes_once(blocks: int, n: int) -> None:
    starts = starts_of(SIZES[:n], 100_000)
    indices, keys = order_of(blocks=blocks, starts=starts, n=n).at(np.arange(n))
    assert sorted(indices.tolist()) == list(range(n))
    assert np.array_equal(indices, keys)


def test_a_part_of_an_order_is_that_part_of_it() -> None:
    order = order_of()
    whole = order.at(np.arange(len(SIZES)))[0]
    positions = RNG.integers(0, len(SIZES), 500)
    assert np.array_equal(order.at(positions)[0], whole[positions])
    assert np.array_equal(order_of().at(np.arange(100, 200))[0], whole[100:200])


def test_seed_and_epoch_decide() -> None:
    everything = np.arange(len(SIZES))
    orders = [order_of(seed, epoch).at(everything)[0] for seed in (1, 2) for epoch in (0, 1)]
    for i, one in enumerate(orders):
        for other in orders[:i]:
            assert (one == other).mean() < 0.01


def test_no_more_blocks_are_open_than_asked_for() -> None:
    found = order_of(blocks=8).at(np.arange(len(SIZES)))[0]
    block = np.searchsorted(STARTS, found, "right")
    first = {b: i for i, b in reversed(list(enumerate(block.tolist())))}
    last = {b: i for i, b in enumerate(block.tolist())}
    open_at_once = [sum(first[b] <= i <= last[b] for b in first) for i in range(0, len(found), 50)]
    assert max(open_at_once) == 8
    moved = np.flatnonzero(np.diff(block))
    assert len(moved) > 2000  # they are mixed, and do not come one after another


# ---- in a loader


@pytest.fixture(scope="module")
def tars(tmp_path_factory: pytest.TempPathFactory, images: list[bytes]) -> str:
    return write_tar(images, tmp_path_factory.mktemp("blocks"))


def loader(tars: str, **arguments: Any) -> DataLoader:
    given = {"shuffle": SMALL, "seed": SEED, "engine": "torch", "device": "cpu", "batch_size": BATCH, **arguments}
    return DataLoader(datasets.WebDataset(tars, TRAIN), **given)


def test_epochs_differ_and_have_every_sample(tars: str) -> None:
    with loader(tars) as it:
        assert "order: shuffled by blocks of 10,000 bytes, 2 mixed at a time" in repr(it)
        first, second = all_seen(it), all_seen(it)
    with loader(tars, shuffle=True) as it:
        other = all_seen(it)
    assert sorted(first) == sorted(second) == list(range(N))
    assert len({tuple(first), tuple(second), tuple(other)}) == 3


def test_a_state_belongs_to_its_blocks(tars: str) -> None:
    with loader(tars) as it:
        state = it.state_dict()
    for other in (True, BlockShuffle(block_bytes=10_000, blocks=3)):
        with loader(tars, shuffle=other) as it, pytest.raises(StateError, match="use the same shuffle"):
            it.load_state_dict(state)


def test_what_cannot_be_is_refused(tars: str) -> None:
    for wrong in (0, -1, 1.5, True):
        with pytest.raises(ConfigError, match="positive integer"):
            BlockShuffle(blocks=wrong)
        with pytest.raises(ConfigError, match="positive integer"):
            BlockShuffle(block_bytes=wrong)
    with pytest.raises(ConfigError, match='shuffle must be True, False, "blocks"'):
        loader(tars, shuffle="block")
    with pytest.raises(ConfigError, match="exclude each other"):
        loader(tars, sampler=[1, 2])
    pixels = datasets.Arrays(np.zeros((4, 8, 8, 3), np.uint8))
    with pytest.raises(ConfigError, match="does not have such samples; use shuffle=True"):
        DataLoader(pixels, shuffle="blocks", device="cpu")
    with pytest.raises(ConfigError, match="only a loader that plans its samples has this"):
        DataLoader(torch.utils.data.TensorDataset(torch.zeros(4)), shuffle="blocks", device="cpu")


def test_a_subset_has_blocks_of_its_own(tars: str) -> None:
    subset = datasets.Subset(datasets.WebDataset(tars, TRAIN), list(range(3, 15)))
    with DataLoader(subset, BATCH, shuffle=SMALL, engine="torch", device="cpu", seed=1) as it:
        assert sorted(all_seen(it)) == list(range(3, 15))


class OfRank(DistributedSampler[int]):
    """Picks every second index of another sampler, as Catalyst's ``DistributedSamplerWrapper``."""

    def __init__(self, sampler: Any, rank: int):
        super().__init__(list(sampler), num_replicas=2, rank=rank, shuffle=True)
        self.sampler = sampler

    def __iter__(self) -> Iterator[int]:
        inner = list(self.sampler)
        return iter([inner[i] for i in super().__iter__()])


@pytest.mark.filterwarnings("error::gpupipe.GpupipeWarning")
def test_a_sampler_around_that_of_a_loader_with_blocks_is_honored(tmp_path: Path) -> None:
    data = datasets.ImageFolder(write_photos(tmp_path), TRAIN)
    given: dict[str, Any] = {"batch_size": BATCH, "engine": "null", "device": "cpu", "seed": SEED}
    with DataLoader(data, **given, shuffle=SMALL) as blocks:
        sampler = OfRank(blocks.sampler, 0)
        with DataLoader(data, **given, sampler=sampler) as loader:
            assert all_seen(loader) == list(sampler)
