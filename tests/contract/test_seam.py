"""Over the end of an epoch: the first batches of the next one are under way while the last are handed out, and what
comes out does not show it."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import clips
import numpy as np
import pytest
import torch
from PIL import Image
from support import (
    BATCH,
    EVAL,
    TRAIN,
    Case,
    N,
    cut_pixels,
    identical,
    in_a_child,
    native_session,
    pictures,
    same,
    seen,
    write_tars,
)
from torch.utils.data import DistributedSampler, RandomSampler, WeightedRandomSampler

from gpupipe import DataLoader, SampleError, Shard, transforms as T
from gpupipe.datasets import Arrays, Columns, Dataset, ImageFolder, WebDataset
from gpupipe.loader.epoch import EpochIterator
from gpupipe.loader.plan_stream import EpochStream

KINDS = {
    "dali": ("dali", "folder"),
    "dali-tar": ("dali", "tar"),
    "dali-clips": ("dali", "clips"),
    "torch": ("torch", "folder"),
    "torch-clips": ("torch", "clips"),
}
"""(engine, dataset)"""


@dataclass
class Maker:
    """Loaders of one engine and kind of dataset, with two threads or processes."""

    case: Case
    clip_files: list[Path]

    @property
    def length(self) -> int:
        return len(self.clip_files) if self.case.kind == "clips" else N

    def dataset(self, transform: T.Compose | None = None) -> Dataset:
        if self.case.kind == "clips":
            return clips.clips(self.clip_files, transform or clips.TRAIN)
        if self.case.kind == "tar":
            return WebDataset(write_tars(self.case.root), transform or TRAIN)
        return ImageFolder(self.case.root, transform or TRAIN)

    def __call__(self, dataset: Any = None, **arguments: Any) -> DataLoader:
        given = {"num_workers": 2, "batch_size": 3 if self.case.kind == "clips" else BATCH, **arguments}
        return self.case.loader(self.dataset() if dataset is None else dataset, **given)


@pytest.fixture(params=KINDS)
def make(request: pytest.FixtureRequest, device: str, numbered: Path) -> Iterator[Maker]:
    engine, kind = KINDS[request.param]
    files = request.getfixturevalue("clip_files") if kind == "clips" else []
    case = Case(engine, kind, device, numbered)
    yield Maker(case, files)
    case.close()


@pytest.fixture(params=["dali", "torch"])
def images(request: pytest.FixtureRequest, device: str, tmp_path: Path, numbered: Path) -> Iterator[Maker]:
    """Of files that a test may change."""
    case = Case(request.param, "folder", device, Path(shutil.copytree(numbered, tmp_path / "photos")))
    yield Maker(case, [])
    case.close()


def run_of(loader: DataLoader) -> Any:
    """What works for the next epoch, between two; ``None`` if nothing does."""
    ahead = native_session(loader).ahead
    return None if ahead is None else ahead.lease.run


def begun(loader: DataLoader) -> tuple[Any, EpochIterator, Any]:
    """The next epoch: (its first batch, its iterator, the run behind it)."""
    iterator = iter(loader)
    assert isinstance(iterator, EpochIterator)
    batch = next(iterator)
    return batch, iterator, iterator._lease.run


def epochs_of(loader: DataLoader, count: int) -> tuple[list[list[Any]], list[Any], dict[str, Any], Any]:
    """(the batches of each epoch, the states before and after each, the counts, the bad samples)"""
    batches: list[list[Any]] = []
    states = []
    for _ in range(count):
        batches.append([])
        iterator = iter(loader)
        states.append(loader.state_dict())
        while True:
            try:
                batches[-1].append(next(iterator))
            except StopIteration:
                break
            except SampleError as e:
                batches[-1].append(e.samples)
            states.append((loader.state_dict(), loader.valid))
        states.append(loader.state_dict())
    stats = {k: v for k, v in loader.stats().items() if k in ("epochs", "batches", "samples", "repaired")}
    return batches, states, stats, loader.report().samples


def alike(a: list[list[Any]], b: list[list[Any]]) -> bool:
    """Whether two lists of epochs are the same, errors included."""
    return [len(epoch) for epoch in a] == [len(epoch) for epoch in b] and all(
        x == y if isinstance(x, tuple) or isinstance(y, tuple) else identical(x, y)
        for one, two in zip(a, b, strict=True)
        for x, y in zip(one, two, strict=True)
    )


# ---- nothing else changes


def test_batches_states_and_counts_are_those_of_epochs_apart(make: Maker, rng_untouched: None) -> None:
    apart, together = make(persistent_workers=False), make()
    wanted = epochs_of(apart, 3)
    assert run_of(apart) is None
    got = epochs_of(together, 3)
    assert run_of(together) is not None
    assert alike(got[0], wanted[0])
    assert got[1:] == wanted[1:]


def test_a_run_goes_on_over_the_end(make: Maker) -> None:
    loader = make()
    _, iterator, run = begun(loader)
    for _ in range(3):
        list(iterator)
        assert run_of(loader) is run
        _, iterator, now = begun(loader)
        assert now is run
        assert run_of(loader) is None


@pytest.mark.parametrize("batches", [1, 2])
def test_epochs_shorter_than_what_is_read_ahead(make: Maker, batches: int) -> None:
    size = -(-make.length // batches)
    wanted = epochs_of(make(batch_size=size, persistent_workers=False), 4)
    for prefetch in (1, 4):
        with make(batch_size=size, prefetch_factor=prefetch) as loader:
            got = epochs_of(loader, 4)
            assert alike(got[0], wanted[0])
            assert got[1:] == wanted[1:]
            assert run_of(loader) is not None


def test_no_more_is_read_ahead_than_within_an_epoch(make: Maker, monkeypatch: pytest.MonkeyPatch) -> None:
    """So nothing is held between two epochs that is not held within one."""
    flying: set[tuple[int, int]] = set()
    most = {"within": 0, "between": 0}
    real = EpochStream.take

    def take(self: EpochStream) -> Any:
        plan = real(self)
        flying.add((plan.epoch, plan.step))
        most["between" if self.ahead else "within"] = max(most["between" if self.ahead else "within"], len(flying))
        return plan

    monkeypatch.setattr(EpochStream, "take", take)
    loader = make(batch_size=1)
    for epoch in range(2):
        for step, _ in enumerate(loader):
            flying.discard((epoch, step))
    assert 0 < most["between"] <= most["within"]


def test_setting_the_epoch_that_comes_anyway_keeps_it(make: Maker) -> None:
    loader = make()
    for epoch in range(3):
        loader.set_epoch(epoch)
        before = run_of(loader)
        _, iterator, run = begun(loader)
        assert (before is run) == (epoch > 0)
        list(iterator)


def test_a_state_of_the_end_keeps_it(make: Maker) -> None:
    """Some scripts save and load at the end of every epoch; what comes is the same."""
    loader = make()
    list(loader)
    run = run_of(loader)
    loader.load_state_dict(loader.state_dict())
    assert begun(loader)[2] is run


# ---- what throws it away


def _epoch(loader: DataLoader, make: Maker) -> dict[str, Any]:
    loader.set_epoch(7)
    return {}


def _state(loader: DataLoader, make: Maker) -> dict[str, Any]:
    with make() as other:
        other.set_epoch(4)
        next(iter(other))
        loader.load_state_dict(other.state_dict())
    return {}


def _transform(loader: DataLoader, make: Maker) -> dict[str, Any]:
    loader.dataset.transform = clips.RAW if make.case.kind == "clips" else EVAL
    return {"dataset": make.dataset(loader.dataset.transform)}


def _close(loader: DataLoader, make: Maker) -> dict[str, Any]:
    loader.close()
    return {}


@pytest.mark.parametrize("change", [_epoch, _state, _transform, _close])
def test_another_epoch_than_was_worked_on(make: Maker, change: Callable[..., dict[str, Any]]) -> None:
    loader = make()
    list(loader)
    run = run_of(loader)
    assert run is not None
    different = change(loader, make)
    state = loader.state_dict()
    first, iterator, now = begun(loader)
    assert now is not run
    fresh = make(**different)
    fresh.load_state_dict({**state, "pipeline": fresh.state_dict()["pipeline"]})
    assert same([first, *iterator], list(fresh))
    assert native_session(loader).running.alone


@pytest.mark.parametrize("left", [1, 2])
def test_break(make: Maker, left: int) -> None:
    """Also with the last batch, when work for the next epoch has long begun."""
    loader, steps = make(), -(-make.length // (3 if make.case.kind == "clips" else BATCH))
    for step, _ in enumerate(loader):
        if step == steps - left:
            break
    assert run_of(loader) is None
    assert native_session(loader).running._leases == []
    with make() as fresh:
        fresh.set_epoch(1)
        assert same(list(loader), list(fresh))


def test_an_earlier_iterator_goes_on_between_two_epochs(make: Maker) -> None:
    loader = make()
    wanted = [list(it) for it in (make(), make())]
    first = iter(loader)
    got = [next(first)]
    list(loader)
    got += list(first)
    assert same(got, wanted[0])
    with make() as fresh:
        fresh.set_epoch(2)
        assert same(list(loader), list(fresh))


def test_a_file_that_changed(images: Maker) -> None:
    """What was read of the next epoch is of the old file; a reader that begins with the epoch sees the new one."""
    dataset = images.dataset()
    loader = images(dataset)
    list(loader)
    run = run_of(loader)
    for i in range(N):
        path = images.case.root / f"class{i:03d}" / "photo.jpg"
        with Image.open(path) as image:
            image.transpose(Image.Transpose.ROTATE_180).save(path, quality=90)
    first, iterator, now = begun(loader)
    assert now is not run
    # Indexed anew, they would be DALI's to decode.
    fresh = images(dataset if images.case.engine == "dali" else images.dataset())
    fresh.set_epoch(1)
    assert same([first, *iterator], list(fresh))


def test_a_file_that_vanished_between_two_epochs(images: Maker) -> None:
    loader = images(shuffle=False)
    list(loader)
    (images.case.root / "class001" / "photo.jpg").unlink()
    with pytest.raises(SampleError, match="missing"):
        next(iter(loader))


def test_weights_that_a_script_changes(images: Maker) -> None:
    weights = torch.ones(N, dtype=torch.float64)
    loader = images(sampler=WeightedRandomSampler(weights, 40), shuffle=None)
    list(loader)
    run = run_of(loader)
    assert run is not None
    loader.sampler.weights[:] = 0
    loader.sampler.weights[4] = 1
    first, iterator, now = begun(loader)
    assert now is not run
    assert {i for batch in [first, *iterator] for i in seen(batch)} == {4}
    list_of = [4, 5, 6, 7, 8]
    other = images(sampler=list_of, shuffle=None)
    list(other)
    list_of[0] = 9
    assert seen(next(iter(other))) == [9, 5, 6, 7, 8]


def test_values_that_a_script_writes_into_its_columns(images: Maker) -> None:
    weights = np.ones(N)
    loader = images(Columns(images.dataset(), {"weight": weights}), shuffle=False)
    list(loader)
    run = run_of(loader)
    assert run is not None
    weights[1] = 3.0
    first, iterator, now = begun(loader)
    assert now is not run
    assert first[2].tolist() == [1, 3, 1, 1, 1]
    list(iterator)
    run = run_of(loader)
    assert begun(loader)[2] is run


def test_a_samplers_own_epoch(images: Maker) -> None:
    """It is set by nearly every script for several ranks, and forgotten by some; after two epochs that is known."""

    def sampler() -> DistributedSampler[Any]:
        return DistributedSampler(range(N), num_replicas=2, rank=1)  # type: ignore[arg-type]

    for sets, taken in ((True, [False, True, True]), (False, [False, False, True])):
        own, other = sampler(), sampler()
        loader = images(sampler=own, shuffle=None)
        clean = images(sampler=other, shuffle=None, persistent_workers=False)
        for epoch in range(3):
            if sets:
                own.set_epoch(epoch)
                other.set_epoch(epoch)
            before = run_of(loader)
            first, iterator, now = begun(loader)
            assert (before is now) == taken[epoch], (sets, epoch)
            assert same([first, *iterator], list(clean))


def test_ranks(images: Maker) -> None:
    for rank in range(2):
        loader = images(shard=Shard(rank, 2))
        wanted = epochs_of(images(shard=Shard(rank, 2), persistent_workers=False), 3)
        assert alike(epochs_of(loader, 3)[0], wanted[0])
        assert run_of(loader) is not None


# ---- what is not begun before its time


class Watched:
    """A sampler of user code."""

    def __init__(self) -> None:
        self.passes = 0

    def __len__(self) -> int:
        return N

    def __iter__(self) -> Iterator[int]:
        self.passes += 1
        return iter(range(N))


def test_user_code_runs_in_its_own_epoch(images: Maker) -> None:
    sampler = Watched()
    loader = images(sampler=sampler, shuffle=None)
    list(loader)
    assert sampler.passes == 1
    assert run_of(loader) is None

    for dataset in (
        Arrays(pictures(), range(N), transform=TRAIN),
        ImageFolder(images.case.root, T.Compose([T.RandomCrop(32), T.Lambda(_same), T.ToTensor()])),
    ):
        other = images(dataset, persistent_workers=True)
        list(other)
        assert run_of(other) is None


def _same(image: Any) -> Any:
    return image


def test_without_workers_nothing_is_made_ahead(numbered: Path, device: str) -> None:
    """The torch engine works in ``next()`` then, and what is made early there is waited for."""
    case = Case("torch", "folder", device, numbered)
    with case.loader(num_workers=0) as loader:
        list(loader)
        assert run_of(loader) is None


def test_a_random_sampler_with_a_generator_of_the_scripts_own(images: Maker) -> None:
    """The seed was drawn from it once; nothing more is."""
    generator = torch.Generator().manual_seed(5)
    loader = images(sampler=RandomSampler(range(N), generator=generator), shuffle=None, seed=None)
    next(it := iter(loader))
    before = generator.get_state()
    list(it)
    assert run_of(loader) is not None
    assert torch.equal(before, generator.get_state())


# ---- bad samples


PLACES = ([22], [19, 22], [0], [20, 21, 22], [0, 1, 2, 3, 4])
POLICIES = ("raise", "skip", "replace")


@pytest.mark.parametrize(
    ("places", "on_error", "images"),
    # Every pair of two of them: the engines take turns.
    [(p, o, ("dali", "torch")[(i + j) % 2]) for i, p in enumerate(PLACES) for j, o in enumerate(POLICIES)],
    indirect=["images"],
    ids=str,
)
def test_bad_samples_are_met_in_their_own_epoch(images: Maker, places: list[int], on_error: Any) -> None:
    """In the last batches, when plans for the next epoch are made already without knowing of them; and in the first."""
    made = [images.dataset() for _ in range(2)]
    for i in places:
        cut_pixels(images.case.root / f"class{i:03d}" / "photo.jpg")
    same_order = {"shuffle": False, "on_error": on_error}
    wanted = epochs_of(images(made[0], persistent_workers=False, **same_order), 3)
    loader = images(made[1], **same_order)
    got = epochs_of(loader, 3)
    assert alike(got[0], wanted[0])
    assert got[1:] == wanted[1:]
    assert got[3]
    assert run_of(loader) is not None


# ---- ends


def test_a_forked_child_leaves_it_alone(make: Maker) -> None:
    if make.case.device == "cuda":
        pytest.skip("CUDA cannot be used after a fork")
    loader = make()
    list(loader)
    run = run_of(loader)
    assert in_a_child(loader.close) == 0
    first, iterator, now = begun(loader)
    assert now is run
    with make() as fresh:
        fresh.set_epoch(1)
        assert same([first, *iterator], list(fresh))
