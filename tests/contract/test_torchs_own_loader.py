"""What gpupipe cannot read runs in torch's own loader: the same bits, one warning, and it can be resumed."""

from __future__ import annotations

import copy
import pickle
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils import data

from gpupipe import DataLoader, FallbackWarning, Shard, datasets
from gpupipe.errors import ConfigError, DatasetError, StateError

COUNT = 17


class Noisy(data.Dataset[Any]):
    """Nobody can know what it returns; it draws from torch's, Python's and numpy's generators."""

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, i: int) -> dict[str, Any]:
        drawn = torch.rand(3) + random.random() + np.random.random()  # noqa: NPY002
        return {"x": drawn, "i": i, "pair": (np.float32(i), f"sample {i}")}


class Stream(data.IterableDataset[Any]):
    """Shared out among workers as torch's documentation shows it."""

    def __iter__(self) -> Iterator[Tensor]:
        info = data.get_worker_info()
        for i in range(COUNT):
            if info is None or i % info.num_workers == info.id:
                yield torch.tensor([float(i), float(torch.rand(()))])


class Pairs(data.Dataset[Any]):
    """Images of a kind that only its own collate function can put together."""

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, i: int) -> tuple[Tensor, int]:
        return torch.full((i + 1,), float(i)), i


def padded(items: list[tuple[Tensor, int]]) -> tuple[Tensor, Tensor]:
    return torch.nn.utils.rnn.pad_sequence([x for x, _ in items]), torch.tensor([i for _, i in items])


def plain(batch: Any) -> Any:
    """Something that ``==`` compares."""
    if isinstance(batch, Tensor):
        return batch.tolist()
    if isinstance(batch, dict):
        return {k: plain(v) for k, v in batch.items()}
    return [plain(v) for v in batch] if isinstance(batch, (list, tuple)) else batch


def epochs(make: Callable[[], Any], count: int = 2) -> list[Any]:
    """Epochs of a loader made after the generators were seeded, and what they leave of torch's."""
    torch.manual_seed(5)
    random.seed(5)
    np.random.seed(5)  # noqa: NPY002
    loader = make()
    return [[plain(batch) for batch in loader] for _ in range(count)] + [torch.rand(2).tolist()]


CASES: dict[str, tuple[Callable[[], Any], dict[str, Any]]] = {
    "dicts": (Noisy, {"batch_size": 4}),
    "shuffled": (Noisy, {"batch_size": 4, "shuffle": True}),
    "workers": (Noisy, {"batch_size": 4, "shuffle": True, "num_workers": 2}),
    "kept workers": (Noisy, {"batch_size": 4, "shuffle": True, "num_workers": 2, "persistent_workers": True}),
    "drop_last": (Noisy, {"batch_size": 4, "shuffle": True, "drop_last": True}),
    "single samples": (Noisy, {"batch_size": None, "shuffle": True}),
    "collate_fn": (Pairs, {"batch_size": 4, "shuffle": True, "collate_fn": padded}),
    "stream": (Stream, {"batch_size": 4}),
    "stream in workers": (Stream, {"batch_size": 4, "num_workers": 2}),
    "batches of one's own": (Pairs, {"batch_sampler": [[1, 2, 3], [5], [0, 16]], "collate_fn": padded}),
    "indices of one's own": (Noisy, {"batch_size": 2, "sampler": [3, 1, 4, 1, 5]}),
    "a generator": (Noisy, {"batch_size": 4, "shuffle": True, "generator": 7}),
}


def arguments_of(case: str) -> tuple[Any, dict[str, Any]]:
    make, given = CASES[case]
    given = dict(given)
    if "generator" in given:
        given["generator"] = torch.Generator().manual_seed(given["generator"])
    return make(), given


@pytest.mark.parametrize("case", CASES)
def test_batches_are_torchs_bit_by_bit(case: str) -> None:
    def ours() -> DataLoader:
        dataset, given = arguments_of(case)
        return DataLoader(dataset, **given, device="cpu")

    def theirs() -> Any:
        dataset, given = arguments_of(case)
        return data.DataLoader(dataset, **given)

    assert epochs(ours) == epochs(theirs)


@pytest.mark.part("case", "at")
@pytest.mark.parametrize("case", [case for case in CASES if case not in ("kept workers",)])
@pytest.mark.parametrize("at", [0, 1, 2])
def test_a_state_goes_on_with_the_samples_that_are_left(case: str, at: int) -> None:
    """What user code draws cannot come again; which samples come, and in which order, does."""

    def loader() -> DataLoader:
        dataset, given = arguments_of(case)
        return DataLoader(dataset, **given, device="cpu")

    def numbers(batch: Any) -> Any:
        if isinstance(batch, dict):
            return plain(batch["i"])
        return plain(batch[:, 0]) if isinstance(batch, Tensor) else plain(batch)

    torch.manual_seed(3)
    one = loader()
    list(one)  # an epoch before
    iterator = iter(one)
    for _ in range(at):
        next(iterator)
    state = pickle.loads(pickle.dumps(one.state_dict()))
    left = [numbers(batch) for batch in iterator] if at else None
    torch.manual_seed(99)
    two = loader()
    two.load_state_dict(state)
    got = [numbers(batch) for batch in two]
    if left is not None:
        assert got == left
    assert two.state_dict()["epoch"] == 2 and len(list(two)) == len(list(one))


def test_the_state_is_refused_by_what_it_is_not_of() -> None:
    one = DataLoader(Noisy(), batch_size=4, device="cpu")
    good = one.state_dict()
    for name, bad in (("epoch", -1), ("delivered", 1.5), ("seed", -2)):
        with pytest.raises(StateError, match=f"{name}={bad}, which must "):
            one.load_state_dict({**good, name: bad})
    with pytest.raises(StateError, match="this is not a state of torch's own loader"):
        one.load_state_dict({"version": 2})


def test_a_state_goes_on_with_the_same_global_batch_only() -> None:
    """It counts batches, so with others samples would be lost or come twice."""

    def load(batch_size: int, rank: int = 0, world: int = 1) -> DataLoader:
        return DataLoader(Noisy(), batch_size, shuffle=True, seed=1, shard=Shard(rank, world), device="cpu")

    one = load(2, world=2)
    done = [next(iter(load(2, rank, 2)))["i"].tolist() for rank in range(2)]
    next(iter(one))
    state = one.state_dict()
    assert state["global_batch"] == 4
    rest = []
    for rank in range(4):
        other = load(1, rank, 4)
        other.load_state_dict(state)
        rest.append([batch["i"].item() for batch in other])
    assert {i for some in (*done, *rest) for i in some} == set(range(COUNT))
    assert not {i for some in done for i in some} & {i for some in rest for i in some[: COUNT // 4 - 1]}
    for batch_size, world, fits in ((3, 2, 2), (2, 1, 4), (2, 4, 1)):
        with pytest.raises(
            StateError, match=rf"1 batches of 4 .* has {batch_size * world}: .*batch_size={fits} on {world}"
        ):
            load(batch_size, world=world).load_state_dict(state)


def test_one_warning_says_every_reason() -> None:
    with pytest.warns(FallbackWarning) as seen:
        loader = DataLoader(Pairs(), batch_size=4, collate_fn=padded, in_order=False, num_workers=1, device="cpu")
    (one,) = seen
    assert isinstance(one.message, FallbackWarning)
    assert [reason.code for reason in one.message.reasons] == ["own-pixels", "in-order"]
    for part in (
        "runs on torch's own loader",
        "(1) give images",
        "because Pairs: ",
        "(2) leave in_order=False out",
    ):
        assert part in str(one.message)
    assert "engine: torch (torch's own loader as it is, because" in repr(loader)


@pytest.mark.filterwarnings("error::gpupipe.GpupipeWarning")
def test_the_torch_engine_is_asked_for_without_a_warning() -> None:
    list(DataLoader(Noisy(), batch_size=4, engine="torch", device="cpu"))


@pytest.mark.parametrize("engine", ["dali", "null"])
def test_an_engine_that_was_asked_for_refuses_it(engine: Any) -> None:
    with pytest.raises(ConfigError, match=r'Or use engine="auto"|media'):
        DataLoader(Noisy(), engine=engine, device="cpu")


def test_options_that_torchs_loader_lacks_are_refused() -> None:
    for options in ({"on_error": "skip"}, {"max_bad": 3}):
        with pytest.raises(ConfigError, match="torch's own loader does not have this option"):
            DataLoader(Noisy(), device="cpu", **options)  # type: ignore[arg-type]


def test_a_shard_cuts_the_epoch_as_a_distributed_sampler_does() -> None:
    seen = []
    for rank in range(2):
        loader = DataLoader(Noisy(), batch_size=4, shuffle=True, seed=1, shard=Shard(rank, 2), device="cpu")
        seen.append([i for batch in loader for i in batch["i"].tolist()])
        again = data.DistributedSampler(Noisy(), 2, rank, True, 1)
        assert seen[-1] == list(again)
    assert set(seen[0] + seen[1]) == set(range(COUNT))


def test_copies_and_pickles_begin_with_the_next_epoch() -> None:
    one = DataLoader(Noisy(), batch_size=4, shuffle=True, seed=2, device="cpu")
    next(iter(one))
    for other in (copy.copy(one), pickle.loads(pickle.dumps(one))):
        assert type(other) is DataLoader and len(other) == len(one)
        assert sum(len(batch["i"]) for batch in other) == COUNT


def test_it_is_torchs_loader_for_who_asks() -> None:
    loader = DataLoader(Noisy(), 4, True, num_workers=1, device="cpu")
    assert isinstance(loader, data.DataLoader)
    assert (loader.batch_size, loader.num_workers, loader.drop_last, len(loader)) == (4, 1, False, 5)
    assert isinstance(loader.sampler, data.RandomSampler)
    assert loader.prefetch_factor == 2 and loader.persistent_workers is False
    with pytest.raises(ValueError, match="batch_size attribute should not be set"):
        loader.batch_size = 3


class TestStreams:
    """A stream of which only the next sample can be had, cut and shuffled by :class:`gpupipe.datasets.Stream`."""

    @pytest.mark.parametrize("workers", [0, 2])
    @pytest.mark.parametrize("buffer_size", [0, 5])
    def test_ranks_share_nothing_and_have_equally_many(self, buffer_size: int, workers: int) -> None:
        stream = counted(buffer_size=buffer_size)
        parts = []
        for rank in range(3):
            loader = DataLoader(stream, 2, num_workers=workers, shard=Shard(rank, 3), device="cpu")
            parts.append([i for batch in loader for i in batch.tolist()])
        assert len({len(part) for part in parts}) == 1
        found = [i for part in parts for i in part]
        assert len(found) == len(set(found)) == COUNT // 3 * 3

    @pytest.mark.parametrize("kept", [False, True])
    @pytest.mark.parametrize("workers", [0, 2])
    def test_another_shuffle_in_every_epoch_that_can_be_resumed(self, workers: int, kept: bool) -> None:
        def make() -> DataLoader:
            given = {"num_workers": workers, "persistent_workers": (kept and workers > 0) or None}
            return DataLoader(counted(buffer_size=6), 3, device="cpu", **given)

        loader = make()
        epochs = [[batch.tolist() for batch in loader] for _ in range(3)]
        assert all(sorted(i for batch in epoch for i in batch) == list(range(COUNT)) for epoch in epochs)
        assert len({str(epoch) for epoch in epochs}) == 3
        first = make()
        list(first)
        batches = iter(first)
        next(batches), next(batches)
        second = make()
        second.load_state_dict(pickle.loads(pickle.dumps(first.state_dict())))
        assert [batch.tolist() for batch in second] == epochs[1][2:]
        assert [batch.tolist() for batch in second] == epochs[2]

    def test_nothing_comes_much_too_early(self) -> None:
        found = list(datasets.Stream(range(1000), buffer_size=20))
        assert sorted(found) == list(range(1000))
        early = [sample - place for place, sample in enumerate(found)]
        assert max(early) <= 20
        assert np.mean(np.abs(early)) > 5

    def test_what_repr_promises(self) -> None:
        loader = DataLoader(counted(buffer_size=1000), 2, shard=Shard(0, 2), device="cpu")
        assert (
            "order: shuffled within 1,000 samples, each worker its part, each rank one of every 2 samples; a "
            "resumed epoch reads it again up to the saved position" in repr(loader)
        )
        assert "each of 2 workers reads a copy and must take its own part" in repr(
            DataLoader(Stream(), num_workers=2, device="cpu")
        )

    def test_what_is_refused(self) -> None:
        with pytest.raises(ConfigError, match=r"use gpupipe\.datasets\.Stream\(stream\)"):
            DataLoader(Stream(), shard=Shard(0, 2), device="cpu")
        with pytest.raises(ConfigError, match="buffer_size=1000"):
            DataLoader(counted(), shuffle=True, device="cpu")
        with pytest.raises(DatasetError, match="again in each epoch"):
            datasets.Stream(iter([1, 2]))
        with pytest.raises(DatasetError, match="number of samples, not -1"):
            datasets.Stream([1, 2], buffer_size=-1)


def counted(**options: Any) -> Any:
    return datasets.Stream(list(range(COUNT)), **options)
