"""Which samples come, in which order, how often, and that images belong to their labels."""

from __future__ import annotations

import pytest
import torch
from support import BATCH, SEED, Case, N, all_seen, gray_difference, identical, images_of, plans_of, resolved, seen

from gpupipe import Shard


def test_every_sample_comes_once_in_the_order_of_the_plan(case: Case) -> None:
    loader = case.loader()
    batches = list(loader)
    assert len(batches) == len(loader) == -(-N // BATCH)
    assert [len(seen(b)) for b in batches] == [5, 5, 5, 5, 3]
    assert sorted(all_seen(batches)) == list(range(N))
    # The plan knows of no engine: equal to it means equal between engines.
    assert all_seen(batches) == [i for plan in plans_of(case.dataset()) for i in plan.indices.tolist()]
    assert all_seen(batches) != list(range(N))


def test_without_shuffle_the_order_is_the_datasets_own(case: Case) -> None:
    loader = case.loader(shuffle=False)
    assert all_seen(loader) == list(range(N))


def test_drop_last_drops_the_short_batch_only(case: Case) -> None:
    loader = case.loader(drop_last=True)
    batches = list(loader)
    assert [len(seen(b)) for b in batches] == [5, 5, 5, 5]
    assert len(loader) == 4
    whole = [i for plan in plans_of(case.dataset()) for i in plan.indices.tolist()]
    assert all_seen(batches) == whole[:20]


def test_epochs_differ_and_each_is_whole(case: Case) -> None:
    loader = case.loader()
    first, second = all_seen(loader), all_seen(loader)
    assert sorted(first) == sorted(second) == list(range(N))
    assert first != second
    assert second == [i for plan in plans_of(case.dataset(), epoch=1) for i in plan.indices.tolist()]


def test_the_same_seed_gives_the_same_bits_in_another_loader(case: Case) -> None:
    for a, b in zip(case.loader(), case.loader(), strict=True):
        assert identical(a, b)


def test_another_seed_gives_another_order(case: Case) -> None:
    assert all_seen(case.loader()) != all_seen(case.loader(seed=SEED + 1))


def test_images_do_not_depend_on_batch_size_threads_and_prefetch(decoding: Case, many_torch_threads: None) -> None:
    case = decoding
    if case.device == "cuda":
        pytest.skip("a GPU may decode an image differently beside other images; tests/gpu measures by how much")
    small = torch.cat([images_of(b) for b in case.loader(batch_size=2, prefetch_factor=1 if case.workers else None)])
    torch.set_num_threads(1)
    large = torch.cat([images_of(b) for b in case.loader(batch_size=9)])
    assert torch.equal(small, large)


def test_images_belong_to_their_labels(decoding: Case) -> None:
    dataset = decoding.dataset()
    sizes = decoding.dataset().sizes
    if sizes is None:  # the same pictures with an index tell
        sizes = Case("torch", "folder", "cpu", decoding.root).dataset().sizes
    assert sizes is not None
    worst = 3.0 if decoding.device == "cuda" else 1.0
    loader = decoding.loader()
    for epoch in range(2):
        for plan, (images, target) in zip(plans_of(dataset, epoch), loader, strict=True):
            assert target.tolist() == plan.indices.tolist()
            difference = gray_difference(images, dataset, resolved(dataset, plan, sizes[plan.indices]))
            assert difference.mean(dim=(1, 2, 3)).max() < worst


def test_break_leaves_a_whole_next_epoch(case: Case) -> None:
    loader = case.loader()
    for stop in (0, 1, 3):
        for i, _ in enumerate(loader):
            if i == stop:
                break
    epoch = loader.state_dict()["epoch"]
    assert epoch == 2  # in the middle of it
    assert all_seen(loader) == [i for plan in plans_of(case.dataset(), epoch=3) for i in plan.indices.tolist()]


@pytest.mark.parametrize("world", [2, 3])
def test_ranks_share_every_batch_and_pad_the_last(case: Case, world: int) -> None:
    loaders = [case.loader(shard=Shard(rank, world)) for rank in range(world)]
    assert len({len(loader) for loader in loaders}) == 1
    iterators = [iter(loader) for loader in loaders]
    whole = [i for plan in plans_of(case.dataset(), batch_size=BATCH * world) for i in plan.indices.tolist()]
    real: list[int] = []
    sizes = []
    for _ in range(len(loaders[0])):
        for loader, iterator in zip(loaders, iterators, strict=True):
            batch = next(iterator)
            sizes.append(len(seen(batch)))
            real += seen(batch)[: loader.valid]
    for iterator in iterators:
        with pytest.raises(StopIteration):
            next(iterator)
    assert real == whole
    assert len({tuple(sizes[i : i + world]) for i in range(0, len(sizes), world)}) <= 2
    assert all(len(set(sizes[i : i + world])) == 1 for i in range(0, len(sizes), world))  # equal on all ranks
    assert sum(sizes) > N  # so something was padded, and valid told it apart


def test_the_sampler_attribute_tells_what_comes(case: Case) -> None:
    loader = case.loader()
    loader.sampler.set_epoch(4)
    expected = list(loader.sampler)
    assert len(loader.sampler) == N
    assert all_seen(loader) == expected
    assert loader.state_dict()["epoch"] == 5


def test_stats_count_what_was_handed_out(case: Case) -> None:
    loader = case.loader()
    list(loader)
    stats = loader.stats()
    assert (stats["epochs"], stats["batches"], stats["samples"]) == (1, 5, N)
    assert stats["wait_seconds"] > 0
    assert 0 <= stats["stall"] <= 1
