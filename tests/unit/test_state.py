"""A state says what it belongs to, and is refused, with both sides printed, where it does not belong."""

from __future__ import annotations

import os
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support import BATCH, SEED, TRAIN, N, all_seen, pictures, seen, warned, write_photos
from torch.utils.data import DistributedSampler

from gpupipe import DataLoader, Shard, transforms as T
from gpupipe.datasets import Arrays, ImageFolder
from gpupipe.errors import ConfigError, StateError

PIXELS = pictures()


def arrays(transform: T.Compose = TRAIN, n: int = N) -> Arrays:
    return Arrays(PIXELS[:n], np.arange(n), transform=transform)


def loader(dataset: Any = None, **arguments: Any) -> DataLoader:
    given = {"engine": "null", "device": "cpu", "seed": SEED, "batch_size": BATCH, "shuffle": True, **arguments}
    return DataLoader(arrays() if dataset is None else dataset, **given)


def saved(**arguments: Any) -> dict[str, Any]:
    """A state two batches into the first epoch."""
    one = loader(**arguments)
    iterator = iter(one)
    next(iterator), next(iterator)
    return one.state_dict()


def test_a_state_is_a_few_plain_values() -> None:
    state = saved()
    assert state == {
        "version": 3,
        "seed": SEED,
        "epoch": 0,
        "delivered": 10,
        "global_batch": BATCH,
        "world_size": 1,
        "drop_last": 0,
        "dataset": arrays().fingerprint,
        "pipeline": TRAIN.fingerprint,
        "order": "shuffled",
        "sampler_epoch": -1,
        "transforms": repr(TRAIN),
    }
    assert [type(v) for v in state.values()] == [int] * 7 + [str] * 3 + [int, str]


HEAD = [T.Resize((8, 8)), T.RandomHorizontalFlip()]


@pytest.mark.parametrize(
    ("then", "now", "says"),
    [
        ([T.Resize((8, 8))], [T.Resize((9, 9))], r"saved Resize\(size=\(8, 8\).*this loader has Resize\(size=\(9, 9\)"),
        (HEAD, HEAD[:1], r"saved RandomHorizontalFlip\(p=0.5\), this loader has no more transforms"),
        (HEAD[:1], HEAD, r"saved no more transforms, this loader has RandomHorizontalFlip"),
        (
            [*HEAD, T.RandomVerticalFlip(0.1)],
            [*HEAD, T.RandomVerticalFlip(0.2)],
            r"saved RandomVerticalFlip\(p=0.1",
        ),
    ],
)
def test_a_state_of_another_pipeline_says_what_differs(then: list[Any], now: list[Any], says: str) -> None:
    state = loader(arrays(T.Compose(then))).state_dict()
    other = loader(arrays(T.Compose(now)))
    with pytest.raises(StateError, match="another pipeline: " + says):
        other.load_state_dict(state)
    # States of earlier releases tell less.
    del state["transforms"]
    with pytest.raises(StateError, match="another pipeline: saved '"):
        other.load_state_dict(state)


def test_a_state_keeps_a_kilobyte_of_a_pipeline() -> None:
    state = loader(arrays(T.Compose([T.RandomHorizontalFlip()] * 100))).state_dict()
    assert len(state["transforms"].encode()) == 1024


@pytest.mark.parametrize(
    ("build", "what"),
    [
        (lambda: loader(arrays(n=20)), "dataset"),
        (lambda: loader(Arrays(255 - PIXELS, np.arange(N), transform=TRAIN)), "dataset"),
        (lambda: loader(Arrays(PIXELS, np.arange(N)[::-1].copy(), transform=TRAIN)), "dataset"),
        (lambda: loader(arrays(T.Compose([T.RandomResizedCrop(31), *TRAIN.transforms[1:]]))), "pipeline"),
        (lambda: loader(arrays(T.Compose([*TRAIN.transforms], memory_format="channels_last"))), "pipeline"),
        (lambda: loader(shuffle=False), "order"),
        (lambda: loader(shuffle=None, sampler=list(range(N))), "order"),
        (lambda: loader(drop_last=True), "drop_last"),
    ],
)
def test_another_dataset_pipeline_or_order_is_refused_and_both_are_printed(build: Any, what: str) -> None:
    state, other = saved(), build()
    mine = other.state_dict()
    with pytest.raises(StateError) as caught:
        other.load_state_dict(state)
    text = str(caught.value)
    # A different memory format is a different line of what is printed.
    assert what == "pipeline" or (repr(state[what]) in text and repr(mine[what]) in text)
    assert "this state belongs to another" in text
    assert other.state_dict() == mine  # refused as a whole


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ((5, 1), (4, 1), "global_batch_size=5 would keep it"),
        ((5, 1), (3, 2), "which changes the number of steps"),
        ((4, 2), (5, 1), "global_batch_size=8 would keep it"),
        ((3, 2), (3, 1), "global_batch_size=6 would keep it"),
        ((4, 2), (8, 1), None),
        ((6, 1), (2, 3), None),
    ],
)
def test_another_batch_goes_on_and_a_warning_says_if_the_global_one_changes(
    before: tuple[int, int], after: tuple[int, int], said: str | None
) -> None:
    state = saved(batch_size=before[0], shard=Shard(0, before[1]))
    others = [loader(batch_size=after[0], shard=Shard(rank, after[1])) for rank in range(after[1])]
    with warned() as texts:
        for one in others:
            one.load_state_dict(state)
            assert one.state_dict()["delivered"] == state["delivered"]
    parts = [[seen(batch)[: one.valid] for batch in one] for one in others]
    rest = [i for step in zip(*parts, strict=True) for part in step for i in part]
    assert rest == all_seen(loader())[2 * before[0] * before[1] :]
    assert [str(said) in text for text in texts] == [True] * (said is not None)


@pytest.mark.parametrize(("total", "drop_last"), [(N, False), (N, True), (5, False)])
@pytest.mark.parametrize("sampler", [False, True])
def test_a_global_batch_is_the_same_on_every_number_of_ranks(total: int, drop_last: bool, sampler: bool) -> None:
    def batches(world: int, state: Any = None) -> list[list[int]]:
        dataset = arrays(n=total)
        parts = []
        for rank in range(world):
            order = {"sampler": DistributedSampler(dataset, world, rank, shuffle=False), "shuffle": None}
            given = order if sampler else {"shard": Shard(rank, world)}
            one = loader(dataset, batch_size=1, global_batch_size=5, drop_last=drop_last, **given)
            if state is not None:
                one.load_state_dict(state)
            assert one.batch_size == -(-5 // world)
            parts.append([seen(batch)[: one.valid] for batch in one])
            assert len(parts[-1]) == len(one if state is None else parts[0])
        return [sorted(i for part in step for i in part) for step in zip(*parts, strict=True)]

    with warned() as texts:
        whole = batches(1)
        assert batches(2) == batches(3) == whole
        assert len(whole) == (total // 5 if drop_last else -(-total // 5))
        one = loader(arrays(n=total), global_batch_size=5, batch_size=1, drop_last=drop_last, shard=Shard(1, 2))
        next(iter(one))
        if not sampler:
            assert batches(3, one.state_dict()) == whole[1:]
    assert texts and all("2 ranks take 2 or 3 of the 5 samples" in t or "3 ranks take 1 or 2" in t for t in texts)


def test_ranks_that_join_and_leave_continue_the_epoch() -> None:
    whole = [sorted(seen(batch)) for batch in loader(batch_size=1, global_batch_size=6)]
    parts = [loader(batch_size=1, global_batch_size=6, shard=Shard(rank, 2)) for rank in range(2)]
    running = [iter(one) for one in parts]
    steps = [[seen(next(it)) for it in running]]
    parts.append(loader(batch_size=1, global_batch_size=6, shard=Shard(2, 3)))  # joins
    parts[2].load_state_dict(parts[0].state_dict())
    for rank, one in enumerate(parts):
        one.reshard(Shard(rank, 3))
    assert next(running[0], None) is None  # has ended
    running = [iter(one) for one in parts]
    steps.append([seen(next(it)) for it in running])
    parts[2].reshard(Shard())  # the others leave
    assert parts[2].shard == Shard() and type(parts[2].sampler).__name__ == "_Shuffled"
    steps += [[seen(batch)] for batch in parts[2]]
    assert [sorted(i for part in step for i in part) for step in steps] == whole
    assert [sorted(seen(batch)) for batch in parts[2]] == [
        sorted(seen(batch)) for batch in _second(loader(batch_size=1, global_batch_size=6))
    ]


def _second(one: DataLoader) -> Any:
    one.set_epoch(1)
    return one


def test_a_sampler_of_the_script_is_not_resharded() -> None:
    one = loader(shuffle=None, sampler=DistributedSampler(arrays(), 2, 0))
    with pytest.raises(ConfigError, match="the sampler is for Shard"):
        one.reshard(Shard(0, 3))


def test_gathering_needs_the_ranks_of_the_loader() -> None:
    assert loader().stats(all_ranks=True)["samples"] == 0
    with pytest.raises(ConfigError, match=r"the loader is for Shard.* and the default process group has 0 ranks"):
        loader(shard=Shard(0, 2)).report(all_ranks=True)


def test_a_global_batch_excludes_a_batch_per_rank_and_needs_a_sample_for_each() -> None:
    with pytest.raises(ConfigError, match="global_batch_size=8 is divided among the ranks, and batch_size=5 is per"):
        loader(global_batch_size=8)
    with pytest.raises(ConfigError, match="global_batch_size=2 has no sample for some of 3 ranks; use at least 3"):
        loader(batch_size=1, global_batch_size=2, shard=Shard(0, 3))
    with pytest.raises(ConfigError, match="batch_sampler excludes batch_size, global_batch_size"):
        loader(batch_size=1, shuffle=None, global_batch_size=2, batch_sampler=[[0, 1], [2, 3]])
    samples = [(torch.zeros(2), i) for i in range(N)]
    assert DataLoader(samples, global_batch_size=6, shard=Shard(0, 2), device="cpu").batch_size == 3


@pytest.mark.parametrize(
    ("garbage", "message"),
    [
        (None, "not NoneType"),
        ([1, 2], "not list"),
        ({}, r"keys \[\]; load what state_dict"),
        ({"version": 2}, "version 2; this gpupipe reads version 3"),
        ({"version": "1"}, "version '1'"),
        ({"version": 3, "hello": 3}, r"lacks \['dataset'.*has \['hello'\] more"),
        ({**saved(), "delivered": -5}, "delivered=-5, which must not be negative"),
        ({**saved(), "delivered": 2.0}, "delivered=2.0, which must be int"),
        ({**saved(), "seed": -1}, "seed=-1, which must not be negative"),
        ({**saved(), "sampler_epoch": -2}, "sampler_epoch=-2, which must be at least -1"),
        ({**saved(), "epoch": True}, "epoch=True, which must be int"),
        ({**saved(), "dataset": 7}, "dataset=7, which must be str"),
        ({**saved(), "global_batch": 0}, "global_batch=0, which must be at least 1"),
        ({**saved(), "world_size": 0}, "world_size=0, which must be at least 1"),
        ({**saved(), "epoch": 1 << 63}, r"epoch=9223372036854775808, which must be below 2\*\*63; load what"),
        ({**saved(), "epoch": float("nan")}, "epoch=nan, which must be int; load what state_dict"),
        ({**saved(), "sampler_epoch": 3}, "epoch 3 of a sampler with set_epoch"),
        ({**saved(), "order": "x" * 1000}, "saved 'x{99}[.]{3}, this loader has 'shuffled'"),
        ({**saved(), 3: 4}, r"has \['3'\] more; load what state_dict"),
        ({**saved(), "delivered": N + 1}, f"{N + 1} samples into an epoch of {N}"),
        ({k: v for k, v in saved().items() if k != "seed"}, r"lacks \['seed'\]"),
    ],
    ids=lambda v: str(v)[:30],
)
def test_garbage_is_refused_and_changes_nothing(garbage: Any, message: str) -> None:
    one = loader()
    iterator = iter(one)
    first = seen(next(iterator))
    before = one.state_dict()
    with pytest.raises(StateError, match=message):
        one.load_state_dict(garbage)
    assert one.state_dict() == before
    assert first + all_seen(iterator) == all_seen(loader())  # the epoch under way goes on


class Shorter:
    """Gives fewer samples than its length says."""

    def __iter__(self) -> Any:
        return iter(range(N))

    def __len__(self) -> int:
        return 2 * N


def test_a_state_behind_the_end_of_a_sampler_is_no_empty_epoch() -> None:
    build = partial(loader, shuffle=None, sampler=Shorter())
    state = build().state_dict()
    one, whole = build(), all_seen(build())
    one.load_state_dict({**state, "delivered": N})  # after its last batch
    assert all_seen(one) == []
    one.load_state_dict({**state, "delivered": N + 1})
    with pytest.raises(StateError, match=f"{N + 1} samples into an epoch, but its sampler gave {N}; use"):
        next(iter(one))
    assert all_seen(one) == whole


def test_a_state_error_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="is no loader"):
        loader().load_state_dict({})


def test_states_of_a_folder_follow_its_files(tmp_path: Path) -> None:
    """The same files elsewhere, or touched, are the same dataset; another picture in a file is another."""
    root = write_photos(tmp_path / "photos", n=12)
    state = saved(dataset=ImageFolder(root, TRAIN))

    moved = Path(shutil.copytree(root, tmp_path / "moved"))
    loader(ImageFolder(moved, TRAIN)).load_state_dict(state)

    (root / "class003" / "photo.jpg").unlink()
    os.rmdir(root / "class003")
    with pytest.raises(StateError, match="another dataset"):
        loader(ImageFolder(root, TRAIN)).load_state_dict(state)


def test_loading_costs_the_same_at_the_end_of_an_epoch() -> None:
    """No replay: the plans that were delivered are not made again."""

    class Counting(Arrays):
        reads = 0

        @property
        def sizes(self) -> Any:
            type(self).reads += 1
            return super().sizes

    dataset = Counting(PIXELS, np.arange(N), transform=TRAIN)
    state = {**saved(), "delivered": 20}
    one = loader(dataset)
    one.load_state_dict(state)
    Counting.reads = 0
    assert len(next(iter(one))[0]) == 3
    assert Counting.reads <= 2
