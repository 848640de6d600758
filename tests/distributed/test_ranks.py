"""Several processes, as torchrun starts them: equal numbers of batches, every sample once, nobody waits for ever."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch.distributed as dist
from interpreter import Interpreter
from launch import launch
from support import N, cut_pixels
from torch.utils.data.distributed import DistributedSampler

from gpupipe import Shard
from gpupipe.errors import ConfigError
from gpupipe.planning.order import Shuffle

SCRIPT = Path(__file__).with_name("rank.py")

pytestmark = pytest.mark.skipif(not dist.is_available() or not dist.is_gloo_available(), reason="needs gloo")


def task(**what: Any) -> dict[str, Any]:
    return {
        "init": True, "batch_size": 4, "engine": "dali", "drop_last": False, "sampler": False, "epochs": 2, "stop": -1,
        "state": None, "on_error": "raise", "seed": None, "shuffle": True, **what,
    }  # fmt: skip


Ranks = list[dict[str, Any]]
"""What every rank saw of one task."""


def start(warm: Interpreter, world: int, root: Path, out: Path, tasks: list[dict[str, Any]]) -> list[Ranks]:
    """What the ranks saw, task by task."""
    return [list(results) for results in zip(*launch(warm, SCRIPT, world, out, root, tasks), strict=True)]


@pytest.fixture(scope="module")
def three(warm: Interpreter, numbered: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Ranks]:
    tasks = [
        task(engine="null", init=False),  # from the variables alone: torch.distributed is not initialized yet
        task(sampler=True),
        task(batch_size=2, epochs=1, stop=2),
    ]
    return start(warm, 3, numbered, tmp_path_factory.mktemp("three"), tasks)


@pytest.fixture(scope="module")
def two(warm: Interpreter, three: list[Ranks], numbered: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Ranks]:
    tasks = [
        task(),
        task(engine="torch", sampler=True),
        task(drop_last=True, epochs=1),
        task(batch_size=3, epochs=1, state=three[2][0]["states"][0]),
    ]
    return start(warm, 2, numbered, tmp_path_factory.mktemp("two"), tasks)


def steps(ranks: list[dict[str, Any]], epoch: int) -> list[list[Any]]:
    """The batches of all ranks, step by step. They have equally many."""
    counts = {len(r["epochs"][epoch]) for r in ranks}
    assert len(counts) == 1, f"ranks had different numbers of batches: {counts}"
    return list(map(list, zip(*(r["epochs"][epoch] for r in ranks), strict=True)))


def order_of(seed: int, epoch: int) -> list[int]:
    return [int(i) for i in Shuffle(N, seed, epoch).at(np.arange(N))[0]]


def check_epoch(ranks: list[dict[str, Any]], epoch: int, reduced: bool = True, sampler: bool = False) -> None:
    assert len({r["seed"] for r in ranks}) == 1  # nobody gave one
    real: list[int] = []
    padding = 0
    for parts in steps(ranks, epoch):
        assert len({len(part[0]) for part in parts}) == 1, "batches of one step have different sizes"
        real += [i for part in parts for i in part[0][: part[1]]]
        padding += sum(len(part[0]) - part[1] for part in parts)
        if reduced:
            assert {part[2] for part in parts} == {sum(part[1] for part in parts)}
    if sampler:  # each rank has exactly what torch gives it
        assert sorted(real) == list(range(N))
        for rank, r in enumerate(ranks):
            theirs: Any = DistributedSampler(range(N), len(ranks), rank)  # type: ignore[arg-type]
            theirs.set_epoch(epoch)
            assert [i for part in r["epochs"][epoch] for i in part[0]] == list(theirs)
    else:
        assert real == order_of(ranks[0]["seed"], epoch)
    assert padding == -N % len(ranks)  # no more than is needed to make the ranks equal


def check(ranks: Ranks, reduced: bool = True, sampler: bool = False) -> None:
    for epoch in range(2):
        check_epoch(ranks, epoch, reduced, sampler)
    assert {r["len"] for r in ranks} == {-(-N // (4 * len(ranks)))}
    assert steps(ranks, 0) != steps(ranks, 1)


def test_three_ranks_from_the_environment_alone(three: list[Ranks]) -> None:
    check(three[0], reduced=False)


def test_three_ranks_with_a_distributed_sampler(three: list[Ranks]) -> None:
    check(three[1], sampler=True)


def test_two_ranks_share_every_epoch(two: list[Ranks]) -> None:
    check(two[0])


def test_stats_of_all_ranks_are_sums(two: list[Ranks]) -> None:
    one, other = (rank["stats"] for rank in two[0])
    for rank in two[0]:
        total = rank["stats_of_all"]
        assert total["epochs"] == one["epochs"] == 2
        assert total["samples"] == one["samples"] + other["samples"] >= 2 * N
        assert total["wait_seconds"] == pytest.approx(one["wait_seconds"] + other["wait_seconds"])
        assert 0 < total["stall"] <= 1


def test_two_ranks_of_the_torch_engine_with_a_distributed_sampler(two: list[Ranks]) -> None:
    check(two[1], sampler=True)


def test_drop_last_gives_full_batches_on_all_ranks(two: list[Ranks]) -> None:
    parts = [part for step in steps(two[2], 0) for part in step]
    assert [len(p[0]) for p in parts] == [p[1] for p in parts] == [4] * 4
    assert len({i for p in parts for i in p[0]}) == 16


def test_two_ranks_go_on_where_three_stopped(three: list[Ranks], two: list[Ranks]) -> None:
    states = [r["states"][0] for r in three[2]]
    assert states[0] == states[1] == states[2]  # one checkpoint serves all
    real = [i for run in (three[2], two[3]) for parts in steps(run, 0) for part in parts for i in part[0][: part[1]]]
    assert real == order_of(states[0]["seed"], 0)


# ---- bad samples on some of the ranks

LOST = {*range(2, 4), *range(12, 18), 22}
"""Of sequential batches of 2 on three ranks: one of rank 1, one of all ranks, and some of the last one."""
SKIPPING = [(engine, how) for engine in ("torch", "dali") for how in ("skip", "replace")]


@pytest.fixture(scope="module")
def losing(warm: Interpreter, numbered: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[Any, Ranks]:
    root = Path(shutil.copytree(numbered, tmp_path_factory.mktemp("losing") / "photos"))
    for i, file in enumerate(sorted(root.rglob("*.jpg"))):
        if i in LOST:
            cut_pixels(file)
    tasks = [task(engine=engine, on_error=how, shuffle=False, batch_size=2, seed=3) for engine, how in SKIPPING]
    return dict(zip(SKIPPING, start(warm, 3, root, tmp_path_factory.mktemp("lost"), tasks), strict=True))


@pytest.mark.part(of=3)
@pytest.mark.parametrize(("engine", "how"), SKIPPING)
def test_a_rank_whose_whole_batch_is_bad_has_as_many_batches_as_the_others(
    losing: dict[Any, Ranks], engine: str, how: str
) -> None:
    ranks = losing[engine, how]
    for epoch in (0, 1):
        found = steps(ranks, epoch)  # equally many on all ranks
        assert len(found) == -(-N // 6)
        assert all(part[0] and not LOST & set(part[0]) for parts in found for part in parts)
        assert all(part[2] == sum(one[1] for one in parts) for parts in found for part in parts)
        real = [i for parts in found for part in parts for i in part[0][: part[1]]]
        if how == "skip":
            assert real == [i for i in range(N) if i not in LOST]
            assert [[part[1] for part in parts] for parts in found[:3]] == [[2, 0, 2], [2, 2, 2], [0, 0, 0]]
            assert {len(part[0]) for part in (*found[0], *found[2])} == {2}  # a whole batch stands in
        else:
            assert len(real) == N
            assert set(real) == set(range(N)) - LOST
    assert {i for rank in ranks for i in rank["bad"]} == LOST
    for rank in ranks:
        assert set(map(int, rank["bad_of_all"])) == LOST
    assert [r["epochs"] for r in ranks] == [r["epochs"] for r in losing["torch", how]]


@pytest.mark.parametrize(("rank", "world"), [(-1, 2), (2, 2), (0, 0), (0.0, 1), ("0", 1)])
def test_impossible_shards_are_refused(rank: Any, world: Any) -> None:
    with pytest.raises(ConfigError, match="Shard"):
        Shard(rank, world)
