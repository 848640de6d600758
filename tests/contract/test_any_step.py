"""Any step of any epoch, without the steps before it."""

from __future__ import annotations

import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support import BATCH, EVAL, KINDS, TRAIN, N, make_dataset
from torch.utils.data import RandomSampler

from gpupipe import DataLoader, SampleError, Shard, transforms as T
from gpupipe.datasets import Arrays
from gpupipe.errors import ConfigError

OPTIONS: dict[str, Any] = {"batch_size": BATCH, "shuffle": True, "seed": 5, "device": "cpu"}


def same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    return len(one) == len(other) and all(map(same, one, other)) if isinstance(one, (list, tuple)) else one == other


@pytest.mark.part("engine", "kind", of=3)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("engine", ["torch", "dali"])
def test_it_is_the_batch_of_the_loop(engine: Any, kind: str, numbered: Path) -> None:
    with DataLoader(make_dataset(kind, numbered, TRAIN), engine=engine, **OPTIONS) as loader:
        epochs = [list(loader) for _ in range(2)]
        for epoch, step in ((1, 4), (0, 2), (0, 0), (1, 1)):
            assert same(loader.at(epoch, step), epochs[epoch][step])


def test_the_loop_goes_on_where_it_stood(numbered: Path) -> None:
    dataset = make_dataset("folder", numbered, TRAIN)
    with DataLoader(dataset, **OPTIONS) as loader, DataLoader(dataset, **OPTIONS) as undisturbed:
        batches, want = iter(loader), list(undisturbed)
        got = [next(batches), next(batches)]
        before = loader.state_dict(), loader.valid, loader.stats()["batches"]
        loader.at(3, 4)
        assert (loader.state_dict(), loader.valid, loader.stats()["batches"]) == before
        assert same([*got, *batches], want)
        assert same(next(iter(loader)), next(iter(undisturbed)))


@pytest.mark.parametrize("rank", [0, 1])
def test_each_rank_gets_its_own_part(rank: int, numbered: Path) -> None:
    with DataLoader(make_dataset("folder", numbered, TRAIN), shard=Shard(rank, 2), **OPTIONS) as loader:
        for step, batch in enumerate(loader):
            assert same(loader.at(0, step), batch)


def test_collate_functions_draw_the_same(numbered: Path) -> None:
    def collate(samples: list[Any]) -> Any:
        images, labels = torch.utils.data.default_collate(samples)
        return images, labels, random.random()

    paths = make_dataset("folder", numbered, TRAIN)
    with DataLoader(paths, collate_fn=collate, **OPTIONS) as loader:
        batches = list(loader)
        assert same([loader.at(0, step) for step in range(len(loader))], batches)
        first = next(iter(loader))
        state = loader.state_dict()
        rest = list(loader)
    with DataLoader(paths, collate_fn=collate, **OPTIONS) as resumed:
        resumed.load_state_dict(state)
        goes_on = list(resumed)
        assert same([first, *goes_on], [resumed.at(1, step) for step in range(len(resumed))])
        assert rest  # the second epoch of the first loader was left at its first batch


def test_mixup_and_bad_samples(numbered: Path, tmp_path: Path) -> None:
    root = shutil.copytree(numbered, tmp_path / "photos")
    broken = sorted(root.rglob("*.jpg"))[7]
    broken.write_bytes(broken.read_bytes()[:400])
    mixed = T.Compose([*TRAIN, T.MixUp(num_classes=N)])
    with DataLoader(make_dataset("folder", root, mixed), on_error="replace", **OPTIONS) as loader:
        replayed = [loader.at(0, step) for step in range(len(loader))]
        assert not loader.report().samples
        assert same(replayed, list(loader))
    with DataLoader(make_dataset("folder", root, EVAL), **{**OPTIONS, "shuffle": False}) as loader:
        with pytest.raises(SampleError, match=r"class007"):
            loader.at(0, 1)
        assert len(loader.at(0, 2)[0]) == BATCH


def test_a_plan_needs_no_file_and_no_earlier_step() -> None:
    huge = Arrays(np.broadcast_to(np.zeros((1, 8, 8, 3), np.uint8), (14_000_000, 8, 8, 3)))
    with DataLoader(huge, 256, shuffle=True, seed=1, device="cpu") as loader:
        plan = loader.plan_at(3, 54_000)
        assert (plan.epoch, plan.step, plan.consumed) == (3, 54_000, 54_001 * 256)
        assert len(set(plan.indices.tolist())) == 256
        assert not loader._session.running.engines  # type: ignore[attr-defined]


def test_what_cannot_be_had_is_refused(numbered: Path) -> None:
    dataset = make_dataset("folder", numbered, EVAL)

    class Own(RandomSampler):
        pass

    asks_own = DataLoader(dataset, BATCH, sampler=Own(range(N)), device="cpu")
    with asks_own, pytest.raises(ConfigError, match=r"only Own knows the order"):
        asks_own.at(0, 0)
    with DataLoader(dataset, **OPTIONS) as loader:
        with pytest.raises(IndexError, match=r"no step 5: epochs have 5 steps, counted from 0"):
            loader.plan_at(0, 5)
        with pytest.raises(ConfigError, match=r"epoch"):
            loader.at(-1, 0)
    theirs = DataLoader([1, 2, 3], device="cpu")
    with pytest.raises(ConfigError, match=r"the script's own code runs this dataset"):
        theirs.at(0, 0)
