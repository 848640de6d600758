"""Orders and how they are cut: every sample once, on whatever ranks, from wherever a run goes on."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from goodness import chi_square_p
from hypothesis import given, settings, strategies as st
from support import little_memory

from gpupipe.errors import ConfigError
from gpupipe.planning.batches import Slices
from gpupipe.planning.order import Explicit, Sequential, Shuffle, weighted
from gpupipe.types import Shard

P = 1e-3


def whole(order: Shuffle | Sequential | Explicit) -> np.ndarray:
    return order.at(np.arange(len(order)))[0]


# ---- Shuffle


@pytest.mark.parametrize("n", [1, 255, 256, 257, 700])
def test_small_batches_are_parts_of_the_whole(n: int) -> None:
    order = Shuffle(n, 7, 2)
    expected = whole(Shuffle(n, 7, 2))
    for size in (1, 2, 31, 32, 33):
        for begin in [*range(0, n, size), 0]:  # the last one goes back
            positions = np.arange(begin, min(begin + size, n))
            indices, keys = order.at(positions)
            assert indices.tolist() == expected[positions].tolist() == keys.tolist()
    apart = np.array([0, n - 1, n // 2, 0])
    assert order.at(apart)[0].tolist() == expected[apart].tolist() and not len(order.at(apart[:0])[0])
    indices, keys = order.at(np.array([0]))
    indices[:], keys[:] = 9, 9
    assert order.at(np.array([0]))[0].tolist() == [expected[0]]  # a batch is not a view of the block


def test_golden_values() -> None:
    """What a published run has seen must be seen again."""
    first = np.arange(8)
    assert Shuffle(10, 0, 0).at(first)[0].tolist() == [9, 5, 6, 0, 2, 8, 7, 4]
    assert Shuffle(10, 0, 1).at(first)[0].tolist() == [2, 8, 4, 5, 7, 0, 9, 1]
    assert Shuffle(1000, 42, 3).at(first)[0].tolist() == [256, 794, 573, 129, 352, 633, 342, 788]
    assert Shuffle(10**9, 1, 2).at(first)[0].tolist() == [
        123902284, 894669168, 790795406, 244127085, 716956692, 12266070, 886091248, 593489201,
    ]  # fmt: skip


@pytest.mark.parametrize("n", [*range(70), 99, 100, 101, 255, 256, 257, 1000, 4095, 4096, 4097, 65_537, 100_003])
def test_is_a_permutation(n: int) -> None:
    for seed, epoch in ((0, 0), (1, 5), (-3, 10**6)):
        indices, keys = Shuffle(n, seed, epoch).at(np.arange(n))
        assert indices.dtype == np.int64 and keys.dtype == np.uint64
        assert np.array_equal(np.sort(indices), np.arange(n))
        assert np.array_equal(keys, indices.astype(np.uint64))


@pytest.mark.part(of=4)
@pytest.mark.slow
@pytest.mark.parametrize("n", [2, 3, 4, 5])
def test_every_permutation_is_as_likely(n: int) -> None:
    kinds = {p: i for i, p in enumerate(itertools.permutations(range(n)))}
    trials = 15 * len(kinds) if n > 3 else 600
    by_seed = [kinds[tuple(whole(Shuffle(n, seed, 0)).tolist())] for seed in range(trials)]
    by_epoch = [kinds[tuple(whole(Shuffle(n, 0, epoch)).tolist())] for epoch in range(trials)]
    for seen in (by_seed, by_epoch):
        assert chi_square_p(np.bincount(seen, minlength=len(kinds)), trials / len(kinds)) > P


def test_a_billion_samples_cost_no_more_than_a_thousand() -> None:
    positions = np.array([0, 1, 10**9 - 1, 5 * 10**8])
    many = Shuffle(14_197_122, 0, 0).at(np.arange(0, 14_197_122, 997))[0]
    assert len(set(many.tolist())) == len(many) and many.min() >= 0 and many.max() < 14_197_122
    with little_memory(100_000):
        indices = Shuffle(10**9, 0, 0).at(positions)[0]
    assert len(set(indices.tolist())) == 4 and indices.min() >= 0 and indices.max() < 10**9


def test_sequential() -> None:
    indices, keys = Sequential(5).at(np.array([3, 0]))
    assert indices.tolist() == [3, 0] and keys.tolist() == [3, 0] and keys.dtype == np.uint64


# ---- Explicit


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 20), max_size=60))
def test_explicit_counts_repetitions_in_its_keys(indices: list[int]) -> None:
    order = Explicit(indices, 21)
    found, made = order.at(np.arange(len(order)))
    keys = made.tolist()
    assert len(order) == len(indices) and found.tolist() == indices and len(set(keys)) == len(keys)
    assert [order.at(np.array([i]))[1].tolist() for i in range(len(keys))] == [[key] for key in keys]
    seen: dict[int, int] = {}
    for index, key in zip(indices, keys, strict=True):
        assert (key & ((1 << 40) - 1), key >> 40) == (index, seen.get(index, 0))
        seen[index] = seen.get(index, 0) + 1


@pytest.mark.parametrize(
    ("indices", "message"),
    [
        ([0, 3], r"index 3 at position 1; this dataset has 3 samples, so indices go from 0 to 2"),
        ([-1], "index -1 at position 0"),
        ([0.5], "must give integers, not float64"),
        ([[0, 1]], r"of shape \(1, 2\)"),
    ],
)
def test_explicit_refuses(indices: list[int], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Explicit(indices, 3)


# ---- weighted


def test_weighted_golden_values() -> None:
    assert weighted([1, 2, 0, 3], 6, True, 0, 0).indices.tolist() == [1, 3, 3, 1, 1, 0]
    assert weighted([1, 2, 0, 3], 3, False, 0, 0).indices.tolist() == [3, 0, 1]


@pytest.mark.parametrize("scale", [1.0, 1e-9, 1e9])
def test_weighted_with_replacement_has_the_frequencies(scale: float) -> None:
    w = np.array([1, 0, 5, 2, 0.5, 0]) * scale
    for seed, epoch in ((0, 0), (3, 9)):
        count = np.bincount(weighted(w, 20_000, True, seed, epoch).indices, minlength=6)
        assert count[w == 0].tolist() == [0, 0]
        assert chi_square_p(count[w > 0], 20_000 * w[w > 0] / w.sum()) > P


def test_weighted_without_replacement_has_the_distribution_of_drawing_one_by_one() -> None:
    w = np.array([1.0, 2.0, 3.0, 0.0])
    trials = 4000
    pairs = list(itertools.permutations(range(3), 2))
    expected = [trials * w[a] / 6 * w[b] / (6 - w[a]) for a, b in pairs]
    seen = [tuple(weighted(w, 2, False, seed, 1).indices.tolist()) for seed in range(trials)]
    assert chi_square_p([seen.count(p) for p in pairs], expected) > P


@pytest.mark.parametrize("w", [[], [0, 0], [1, -1], [1, math.nan], [1, math.inf], [[1, 2]]])
def test_weighted_refuses_weights(w: list[float]) -> None:
    with pytest.raises(ConfigError, match="finite numbers, none negative and not all zero"):
        weighted(w, 1, True, 0, 0)


def test_weighted_refuses_more_than_there_are() -> None:
    with pytest.raises(ConfigError, match="only 2 weights are above zero: lower num_samples or allow replacement"):
        weighted([1, 0, 1], 3, False, 0, 0)


# ---- Slices

CASES = [(n, b, w, d) for n in (1, 7, 16, 23, 64) for b in (1, 4, 5) for w in (1, 2, 3, 8) for d in (False, True)]


@pytest.mark.parametrize(("n", "batch", "world", "drop_last"), CASES)
def test_slices_give_every_sample_once(n: int, batch: int, world: int, drop_last: bool) -> None:
    ranks = [Slices(n, batch, Shard(r, world), drop_last) for r in range(world)]
    assert len({len(s) for s in ranks}) == 1
    steps, group = len(ranks[0]), batch * world
    assert steps == (n // group if drop_last else math.ceil(n / group))
    seen: list[int] = []
    for step in range(steps):
        taken = [s.take(step) for s in ranks]
        assert len({len(p) for p, _, _ in taken}) == 1, "ranks with different batch sizes hang in a collective"
        assert {c for _, _, c in taken} == {min((step + 1) * group, n)}
        real = [int(x) for p, valid, _ in taken for x in p[:valid]]
        assert real == list(range(step * group, min((step + 1) * group, n))), "global batches depend on the ranks"
        for positions, _, _ in taken:
            assert positions.dtype == np.int64 and len(positions) <= batch
            assert positions.min() >= 0 and positions.max() < n
        seen += real
    assert seen == list(range(steps * group if drop_last else n))


@pytest.mark.parametrize(("n", "batch", "world", "drop_last"), [c for c in CASES if c[0] > 5])
def test_slices_go_on_where_a_run_stopped_on_any_number_of_ranks(
    n: int, batch: int, world: int, drop_last: bool
) -> None:
    before = Slices(n, batch, Shard(0, world), drop_last)
    for stop in range(len(before)):
        start = before.take(stop)[2]
        for new_world in (1, 2, 5):
            ranks = [Slices(n, batch, Shard(r, new_world), drop_last, start) for r in range(new_world)]
            rest = [int(x) for s in range(len(ranks[0])) for k in ranks for x in k.take(s)[0][: k.take(s)[1]]]
            assert rest == list(range(start, start + len(rest)))
            if not drop_last:
                assert len(rest) == n - start


def test_slices_pad_by_wrapping_round() -> None:
    """As torch's DistributedSampler: the first samples of the order again."""
    last = [Slices(10, 4, Shard(r, 3), False).take(0) for r in range(3)]
    assert [(p.tolist(), v) for p, v, _ in last] == [([0, 1, 2, 3], 4), ([4, 5, 6, 7], 4), ([8, 9, 0, 1], 2)]
    tiny = [Slices(1, 4, Shard(r, 3), False).take(0) for r in range(3)]
    assert [(p.tolist(), v) for p, v, _ in tiny] == [([0], 1), ([0], 0), ([0], 0)]


def test_slices_after_the_end() -> None:
    assert len(Slices(10, 4, Shard(), False, start=10)) == 0
    assert len(Slices(10, 4, Shard(), True, start=9)) == 0
    assert len(Slices(0, 4, Shard(), False)) == 0
    with pytest.raises(IndexError):
        Slices(10, 4, Shard(), False).take(3)
    with pytest.raises(IndexError):
        Slices(10, 4, Shard(), False).take(-1)
