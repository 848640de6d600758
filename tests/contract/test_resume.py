"""A saved loader goes on with exactly what would have come."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support import SEED, Case, N, all_seen, identical, images_of, plans_of, seen
from torch import Tensor

from gpupipe import Shard


def same(a: Any, b: Any, device: str) -> bool:
    """Equal bits; on a GPU, whose decoders may split a batch in two ways, close."""
    if device == "cpu" or not isinstance(images_of(a), Tensor):
        return identical(a, b)
    return seen(a) == seen(b) and bool((images_of(a).float() - images_of(b).float()).abs().max() < 0.25)


def test_resume_at_every_step_gives_the_same_rest(case: Case) -> None:
    loader = case.loader()
    list(loader)  # epoch 0; the resumes are of epoch 1
    iterator = iter(loader)
    states, batches = [loader.state_dict()], []
    for batch in iterator:
        batches.append(batch)
        states.append(loader.state_dict())
    assert [s["delivered"] for s in states] == [0, 5, 10, 15, 20, 23]
    other = case.loader(seed=99)  # the state brings its own seed
    for step, state in enumerate(states):
        other.load_state_dict(state)
        assert other.seed == SEED
        rest = list(other)
        assert len(rest) == len(batches) - step
        assert all(same(a, b, case.device) for a, b in zip(rest, batches[step:], strict=True)), f"after {step}"
        # What follows is the next epoch, whole.
        assert other.state_dict() == {**state, "epoch": 2, "delivered": 0}
        assert seen(next(iter(other))) == plans_of(case.dataset(), epoch=2)[0].indices.tolist()


@pytest.mark.slow
def test_state_at_the_end_of_an_epoch(case: Case) -> None:
    loader = case.loader()
    iterator = iter(loader)
    for _ in range(5):
        next(iterator)
    before = loader.state_dict()
    with pytest.raises(StopIteration):
        next(iterator)
    after = loader.state_dict()
    assert (before["epoch"], before["delivered"]) == (0, N)
    assert (after["epoch"], after["delivered"]) == (1, 0)

    other = case.loader()
    other.load_state_dict(before)
    assert list(other) == []  # the saved loop had still to see its end
    second = all_seen(other)
    other.load_state_dict(after)
    assert all_seen(other) == second == [i for p in plans_of(case.dataset(), 1) for i in p.indices.tolist()]


def run_ranks(case: Case, world: int, batch: int, steps: int, state: Any = None) -> tuple[list[Any], list[Any]]:
    """(batches in global order, states of the ranks) of ``steps`` global steps; -1: all."""
    loaders = [case.loader(batch_size=batch, shard=Shard(rank, world)) for rank in range(world)]
    for loader in loaders:
        if state is not None:
            loader.load_state_dict(state)
    iterators = [iter(loader) for loader in loaders]
    out = []
    while steps != 0:
        parts = []
        for loader, iterator in zip(loaders, iterators, strict=True):
            part = next(iterator, None)
            if part is not None:
                parts.append((part, loader.valid))
        if not parts:
            break
        assert len(parts) == world, "ranks ended at different steps"
        out.append(parts)
        steps -= 1
    return out, [loader.state_dict() for loader in loaders]


def real(steps: list[Any]) -> list[list[int]]:
    """The real samples of every global batch."""
    return [[i for part, valid in parts for i in seen(part)[:valid]] for parts in steps]


@pytest.mark.part("engine", "kind", "before", of=6)
@pytest.mark.slow
@pytest.mark.parametrize(("before", "after"), [((2, 4), (1, 8)), ((1, 8), (2, 4)), ((2, 3), (3, 2))])
def test_resume_on_other_ranks_with_the_same_global_batch(
    case: Case, before: tuple[int, int], after: tuple[int, int]
) -> None:
    uninterrupted, _ = run_ranks(case, *before, steps=-1)
    done, states = run_ranks(case, *before, steps=2)
    assert all(s == states[0] for s in states)  # any rank may save
    rest, _ = run_ranks(case, *after, steps=-1, state=states[0])
    assert real(done) + real(rest) == real(uninterrupted)
    if case.device == "cpu" and case.engine != "null":

        def joined(steps: list[Any]) -> Tensor:
            return torch.cat([images_of(part)[:valid] for parts in steps for part, valid in parts])

        assert torch.equal(joined(rest), joined(uninterrupted[2:]))


def test_an_iterator_that_was_made_before_its_state_was_loaded_begins_there(case: Case) -> None:
    loader = case.loader()
    iterator = iter(loader)
    next(iterator)
    state, rest = loader.state_dict(), all_seen(iterator)
    iterator = iter(loader)
    loader.load_state_dict(state)
    assert all_seen(iterator) == rest


def test_loading_during_an_epoch_ends_it(case: Case) -> None:
    loader = case.loader()
    iterator = iter(loader)
    next(iterator)
    state = loader.state_dict()
    next(iterator)
    loader.load_state_dict(state)
    with pytest.raises(StopIteration):
        next(iterator)
    assert seen(next(iter(loader))) == plans_of(case.dataset())[1].indices.tolist()
