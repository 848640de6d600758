"""A bad sample is named, and costs its own batch only."""

from __future__ import annotations

import errno
import os
import resource
import shutil
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from support import (
    BATCH,
    EVAL,
    TRAIN,
    Case,
    N,
    cut_pixels,
    identical,
    native_session,
    outcomes,
    plans_of,
    seen,
    write_tars,
)

from gpupipe import DataLoader, SampleError, transforms as T
from gpupipe.codecs import files, retry
from gpupipe.codecs.files import Place, Undecodable
from gpupipe.datasets import ImageFolder, ImageList, WebDataset
from gpupipe.errors import PipelineError
from gpupipe.sources import storage


def drain(loader: DataLoader) -> tuple[list[Any], list[SampleError]]:
    """The batches and the errors of one epoch, in order."""
    found = list(islice(outcomes(loader), len(loader) + 1))
    assert len(found) <= len(loader)
    errors = [one for one in found if isinstance(one, SampleError)]
    return [one for one in found if not isinstance(one, SampleError)], errors


@pytest.fixture
def engine_of(request: pytest.FixtureRequest, device: str, numbered: Path) -> Iterator[Callable[..., Case]]:
    made: list[Case] = []

    def make(engine: str, kind: str, root: Path = numbered) -> Case:
        made.append(Case(engine, kind, device, root))
        return made[-1]

    yield make
    for case in made:
        case.close()


@pytest.fixture
def folder(tmp_path: Path, numbered: Path) -> Path:
    """A copy of the photographs, to spoil."""
    return Path(shutil.copytree(numbered, tmp_path / "photos"))


def file(root: Path, index: int) -> Path:
    return root / f"class{index:03d}" / "photo.jpg"


def check(loader: DataLoader, bad: dict[int, str], clean: list[Any]) -> None:
    """All batches without a bad sample come, with the bits that they always have, and the rest are named."""
    kinds = {}
    for _ in range(2):  # the second epoch as well as the first
        epoch = loader.state_dict()["epoch"]
        plans = plans_of(loader.dataset, epoch)
        batches, errors = drain(loader)
        hit = [plan for plan in plans if set(plan.indices.tolist()) & set(bad)]
        assert len(errors) == len(hit)
        for plan, error in zip(hit, errors, strict=True):
            assert {s.index for s in error.samples} == set(plan.indices.tolist()) & set(bad)
            for sample in error.samples:
                kinds[sample.index] = sample.kind
                assert str(sample.index) in str(error) and sample.path in str(error)
                assert sample.reason
        good = [plan for plan in plans if plan not in hit]
        assert [seen(b) for b in batches] == [plan.indices.tolist() for plan in good]
        if epoch == 0:
            wanted = [b for b, plan in zip(clean, plans, strict=True) if plan in good]
            assert all(identical(a, b) for a, b in zip(batches, wanted, strict=True))
        assert loader.state_dict()["delivered"] == 0
    assert kinds == bad
    assert {s.index: s.kind for s in loader.report().samples} == bad  # each once, over two epochs
    assert all(str(s.index) in repr(loader.report()) for s in loader.report().samples)


@pytest.mark.parametrize("engine", ["torch", "dali"])
@pytest.mark.parametrize("places", [[4], [0], [22], [3, 5, 9], list(range(N))], ids=str)
def test_corrupt_files_are_named_and_the_loader_goes_on(
    engine: str, places: list[int], folder: Path, engine_of: Callable[..., Case]
) -> None:
    case = engine_of(engine, "folder", folder)
    clean = list(case.loader()) if case.device == "cpu" else list(engine_of(engine, "folder").loader())
    dataset = ImageFolder(folder, TRAIN)
    for i in places:
        cut_pixels(file(folder, i))
    loader = case.loader(dataset)
    check(loader, dict.fromkeys(places, "truncated"), clean)
    assert all(s.path == str(file(folder, s.index)) for s in loader.report().samples)


@pytest.mark.parametrize("engine", ["torch", "dali"])
def test_half_a_file_is_named_or_was_not_needed(engine: str, folder: Path, engine_of: Callable[..., Case]) -> None:
    """A decoder that reads only a window may not notice that the rest is missing. What it must not do is to fill in."""
    case = engine_of(engine, "folder", folder)
    if case.device == "cuda":
        pytest.skip("a GPU decodes in two ways; tests/gpu compares with bounds")
    clean, spoiled = case.loader(), case.loader(ImageFolder(folder, TRAIN))
    reference = [list(clean) for _ in range(4)]
    for i in range(0, N, 4):
        cut_pixels(file(folder, i), keep=0.5)
    named = 0
    for epoch in range(4):
        batches, errors = drain(spoiled)
        delivered = [seen(b) for b in batches]
        for batch in reference[epoch]:
            if seen(batch) in delivered:
                assert identical(batch, batches[delivered.index(seen(batch))])
        assert len(batches) + len(errors) == len(reference[epoch])
        named += len(errors)
        assert all(s.index % 4 == 0 and s.kind == "truncated" for e in errors for s in e.samples)
    assert named > 4


@pytest.mark.parametrize("kind", ["missing", "empty"])
@pytest.mark.parametrize("engine", ["torch", "dali"])
def test_a_file_that_vanished_or_became_empty(
    engine: str, kind: str, folder: Path, engine_of: Callable[..., Case]
) -> None:
    case = engine_of(engine, "folder", folder)
    clean = list(case.loader())
    dataset = ImageFolder(folder, TRAIN)
    file(folder, 7).unlink()
    if kind == "empty":
        file(folder, 7).touch()
    check(case.loader(dataset), {7: kind}, clean)


@pytest.mark.parametrize("engine", ["torch", "dali"])
def test_another_picture_in_the_place_of_the_indexed_one_is_told(
    engine: str, folder: Path, engine_of: Callable[..., Case]
) -> None:
    case = engine_of(engine, "folder", folder)
    dataset = ImageFolder(folder, EVAL)
    Image.new("RGB", (80, 40)).save(file(folder, 7))  # another shape: resized by the plan it would be distorted
    _, errors = drain(case.loader(dataset))
    assert [[(s.index, s.kind) for s in e.samples] for e in errors] == [[(7, "changed")]]


@pytest.mark.parametrize("engine", ["torch", "dali"])
def test_a_smaller_picture_in_the_place_of_the_indexed_one_is_told(
    engine: str, folder: Path, engine_of: Callable[..., Case]
) -> None:
    """The plan was made for another size, and its window lies outside of this one."""
    case = engine_of(engine, "folder", folder)
    dataset = ImageFolder(folder, T.Compose([T.RandomCrop(40), T.PILToTensor()]))
    loader = case.loader(dataset)
    Image.new("RGB", (20, 20)).save(file(folder, 7))
    _, errors = drain(loader)
    assert [[(s.index, s.kind) for s in e.samples] for e in errors] == [[(7, "changed")]]
    assert "20x20" in str(errors[0]) and "index" in str(errors[0])


@pytest.mark.parametrize("engine", ["null", "torch", "dali"])
def test_what_the_index_knows_to_be_bad_is_told_without_reading(
    engine: str, folder: Path, engine_of: Callable[..., Case]
) -> None:
    file(folder, 3).write_bytes(b"this is no picture")
    case = engine_of(engine, "folder", folder)
    dataset = ImageList(
        [str(file(folder, i)) for i in range(4)] + [str(folder / "nowhere.jpg")], list(range(5)), transform=TRAIN
    )
    loader = case.loader(dataset, batch_size=3, shuffle=False)
    batches, errors = drain(loader)
    assert [seen(b) for b in batches] == [[0, 1, 2]]
    assert [[s.index for s in e.samples] for e in errors] == [[3, 4]]
    assert errors[0].samples[1].kind == "missing"
    assert str(folder / "nowhere.jpg") in str(errors[0])


@pytest.mark.parametrize("engine", ["torch", "dali"])
def test_state_after_an_error_goes_on_behind_it(engine: str, folder: Path, engine_of: Callable[..., Case]) -> None:
    case = engine_of(engine, "folder", folder)
    dataset = ImageFolder(folder, TRAIN)
    cut_pixels(file(folder, 6))
    loader = case.loader(dataset, shuffle=False)
    iterator = iter(loader)
    next(iterator)
    with pytest.raises(SampleError):
        next(iterator)
    state = loader.state_dict()
    assert state["delivered"] == 10
    rest = [seen(b) for b in iterator]
    other = case.loader(dataset, shuffle=False)
    other.load_state_dict(state)
    assert [seen(b) for b in other] == rest == [list(range(10, 15)), list(range(15, 20)), [20, 21, 22]]


@pytest.mark.parametrize("engine", ["null", "torch", "dali"])
def test_an_image_too_small_for_its_crop_is_an_error_in_its_place(
    engine: str, folder: Path, engine_of: Callable[..., Case]
) -> None:
    """The plan itself fails. What came before it is delivered, and no batch is lost on the way."""
    case = engine_of(engine, "folder", folder)
    Image.new("RGB", (20, 20)).save(file(folder, 12))
    dataset = ImageFolder(folder, T.Compose([T.RandomCrop(40), T.PILToTensor()]))
    ahead = {} if engine == "null" else {"num_workers": 2, "prefetch_factor": 3}
    loader = case.loader(dataset, shuffle=False, **ahead)
    iterator = iter(loader)
    assert [seen(next(iterator)), seen(next(iterator))] == [list(range(5)), list(range(5, 10))]
    with pytest.raises(PipelineError, match="20x20 pixels is smaller than the crop"):
        next(iterator)
    check_a_clean_end(loader, iterator, delivered=10)


def check_a_clean_end(loader: DataLoader, iterator: Iterator[Any], delivered: int) -> None:
    """The iterator is over, the state is where the last batch left it, and the loader can start again."""
    with pytest.raises(StopIteration):
        next(iterator)
    assert loader.state_dict()["delivered"] == delivered
    assert seen(next(iter(loader))) == list(range(5))


@pytest.mark.parametrize("engine", ["torch", "dali"])
@pytest.mark.parametrize("bad", [{20, 21, 22}, {18, 20, 21, 22}, {5, 6, 7, 8, 9}, {*range(N)}], ids=len)
def test_every_bad_sample_of_batches_that_become_empty_is_reported(
    engine: Any, bad: set[int], folder: Path, device: str
) -> None:
    """A batch in the middle, the last one, and all of them: no batch comes after it that could bring the news."""
    for i in bad:
        cut_pixels(file(folder, i))

    def load(**arguments: Any) -> DataLoader:
        return DataLoader(ImageFolder(folder, EVAL), BATCH, engine=engine, device=device, on_error="skip", **arguments)

    def delivered(loader: DataLoader) -> list[int]:
        if len(bad) < N:
            return [i for batch in loader for i in seen(batch)]
        with pytest.raises(SampleError, match="all of its samples are bad"):
            list(loader)
        return []

    with load() as loader:
        for epoch in (1, 2):
            got = delivered(loader)
            assert got == [i for i in range(N) if i not in bad]
            assert {sample.index for sample in loader.report().samples} == bad
            assert {sample.count for sample in loader.report().samples} == {epoch}
    with load(max_bad=len(bad) - 1) as loader, pytest.raises(SampleError, match="more than max_bad="):
        list(loader)
    with load(max_bad=len(bad)) as loader:
        assert len(delivered(loader)) == N - len(bad)


FAULTS = [errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EIO, errno.ESTALE, errno.ETIMEDOUT, errno.ECONNRESET]


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "_WAITS", (0.001,))
    monkeypatch.setattr(retry, "_MORE_WAITS", (0.001,))
    monkeypatch.setattr(retry, "_WAITS_FOR_DESCRIPTORS", (0.001,))


@pytest.mark.parametrize("engine", ["torch", "dali"])
@pytest.mark.parametrize("on_error", ["raise", "skip", "replace"])
def test_a_fault_of_the_machine_costs_one_epoch(
    engine: str, on_error: Any, folder: Path, impatient: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset, real = WebDataset(write_tars(folder), TRAIN), storage._fill
    faults, lost = iter(FAULTS * 40), {dataset.place(i)[:2] for i in (0, 1, 2, 7, 21)}

    def faulty(fd: int, place: Place, view: Any) -> None:
        if place[:2] in lost:
            raise OSError(next(faults), "a fault")
        real(fd, place, view)

    options = {"batch_size": 5, "num_workers": 0, "shuffle": False, "device": "cpu", "persistent_workers": False}
    with DataLoader(dataset, engine=engine, on_error=on_error, max_bad=0.9, **options) as loader:
        with monkeypatch.context() as patch:
            patch.setattr(storage, "_fill", faulty)
            patch.setattr(storage.LocalFiles, "_together", lambda *arguments: False)
            batches, errors = drain(loader)
            bad = loader.report().samples
            assert {(one.index, one.kind) for one in bad} == {(i, "temporary") for i in (0, 1, 2, 7, 21)}
            assert all("machine or the network" in one.reason for one in bad)
            assert bool(errors) == (on_error == "raise")
        batches, errors = drain(loader)
        assert not errors
        assert [i for batch in batches for i in seen(batch)] == list(range(N))


@pytest.mark.parametrize("engine", ["torch", "dali"])
def test_what_the_bytes_prove_is_remembered(engine: str, folder: Path) -> None:
    dataset = WebDataset(write_tars(folder), TRAIN)
    (tar,) = {os.fsdecode(dataset.place(3).path)}
    place = dataset.place(3)
    with open(tar, "r+b") as file:
        file.seek(place.offset)
        file.write(bytes(place.length))
    with DataLoader(dataset, 5, engine=engine, on_error="skip", device="cpu", shuffle=False) as loader:
        for _ in range(2):
            drain(loader)
        assert native_session(loader).stats.repaired == 1
        assert [(bad.index, bad.count) for bad in loader.report().samples] == [(3, 2)]


def test_files_that_are_kept_open_give_way_to_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    local, waited = storage.LocalFiles(), list[float]()
    monkeypatch.setattr(retry, "SPARES", [local.spare])
    monkeypatch.setattr(retry, "pause", waited.append)
    places = [Place(os.fsencode(tmp_path / str(i)), 0, 5) for i in range(12)]
    for place in places:
        Path(os.fsdecode(place.path)).write_bytes(b"bytes")
    views = [np.zeros(5, np.uint8) for _ in places]
    limits, free = resource.getrlimit(resource.RLIMIT_NOFILE), [os.dup(0) for _ in range(5)]
    for number in free:
        os.close(number)
    resource.setrlimit(resource.RLIMIT_NOFILE, (free[-1] + 1, limits[1]))
    try:
        assert local.read_into(places, views) == [None] * 12
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert 1 <= len(waited) <= 6 and all(view.tobytes() == b"bytes" for view in views)


def test_descriptors_that_come_back_are_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retry, "_in_vain", -1e9)
    waited: list[float] = []
    monkeypatch.setattr(retry, "pause", waited.append)
    real, path = files.open_regular, tmp_path / "a"
    path.write_bytes(b"bytes")

    def full(*arguments: Any) -> int:
        if sum(waited) < 30.0:
            raise OSError(errno.EMFILE, "Too many open files")
        return real(*arguments)

    monkeypatch.setattr(files, "open_regular", full)
    assert files.read_place(Place(os.fsencode(path))) == b"bytes"
    assert 8 <= len(waited) <= 15
    waited.clear()
    monkeypatch.setattr(files, "open_regular", lambda *_: full())
    monkeypatch.setattr(retry, "_WAITS", (0.1,))
    monkeypatch.setattr(retry, "_MORE_WAITS", (0.1,))
    monkeypatch.setattr(retry, "_WAITS_FOR_DESCRIPTORS", (0.1,))
    for attempts in (3, 1):  # once it was in vain nobody is as patient for some time
        with pytest.raises(Undecodable, match="temporary: Too many open files"):
            files.read_place(Place(os.fsencode(path)))
        assert len(waited) == attempts
        waited.clear()


def test_an_index_made_during_a_fault_looks_twice(
    folder: Path, impatient: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, faults = files.open_regular, iter([errno.EMFILE] * 3)

    def full(*arguments: Any) -> int:
        number = next(faults, None) if os.fsencode(arguments[0]).endswith(b"photo.jpg") else None
        if number is not None:
            raise OSError(number, "Too many open files")
        return real(*arguments)

    monkeypatch.setattr(files, "open_regular", full)
    assert not ImageFolder(folder, EVAL).index_summary().bad
    assert next(faults, None) is None
