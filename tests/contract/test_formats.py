"""What folders promise, every format promises: the same pixels in the same order, exact resuming, ranks that share
nothing, bad samples by name, known sizes, small pickles, workers of any kind, and an index that is used until it is
wrong."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import pickle
import pickletools
import random
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from format_cases import CASES, Case
from support import BATCH, SEED, TRAIN, N, all_seen, cpu_loader as loader, same, seen

from gpupipe import Shard
from gpupipe.codecs.files import Undecodable
from gpupipe.datasets import Dataset, ImageFolder
from gpupipe.errors import DatasetError
from gpupipe.reading.buffers import Borrowed, BufferPool

pytestmark = pytest.mark.filterwarnings("ignore:.*is multi-threaded, use of fork")

LONG_AGO = 1_500_000_000
ENGINES = ("torch", "dali")


@pytest.fixture(scope="module", params=CASES)
def format(request: pytest.FixtureRequest) -> Case:
    return CASES[request.param]


@pytest.fixture(scope="module")
def written(format: Case, images: list[bytes], tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp(format.kind)
    given = format.write(images, folder)
    make_old(folder)
    return given


@pytest.fixture(scope="module")
def dataset(format: Case, written: Any) -> Dataset:
    return format.open(written, TRAIN)


@pytest.fixture(scope="module")
def folder_batches(numbered: Path) -> dict[str, list[Any]]:
    """Two epochs of each engine."""
    found = {}
    for engine in ENGINES:
        with loader(ImageFolder(numbered, TRAIN), engine) as it:
            found[engine] = [batch for _ in range(2) for batch in it]
    return found


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def make_old(folder: Path) -> None:
    """Files that were written a moment ago are looked at again each time."""
    for path in folder.rglob("*"):
        os.utime(path, (LONG_AGO, LONG_AGO))


def test_samples_are_those_of_the_folder(dataset: Any, numbered: Path, images: list[bytes]) -> None:
    folder = ImageFolder(numbered)
    assert [dataset.fetch(i) for i in range(len(dataset))] == [(image, i) for i, image in enumerate(images)]
    assert np.array_equal(dataset.sizes, folder.sizes)
    assert np.array_equal(dataset.file_sizes, folder.file_sizes)
    assert [dataset.codings[1][c] for c in dataset.codings[0]] == [folder.codings[1][c] for c in folder.codings[0]]
    assert np.array_equal(np.asarray(dataset.raw(3)[0]), np.asarray(folder.raw(3)[0]))
    assert len({dataset.describe(i) for i in range(N)}) == N
    assert dataset.index_summary().bad == ()


def test_a_pickle_is_small_and_needs_no_other_package(dataset: Any, images: list[bytes]) -> None:
    sent = pickle.dumps(dataset)
    assert len(sent) < len(pickle.dumps(TRAIN)) + 1000 + 100 * len(dataset.classes)
    named = {text.partition(".")[0] for _, text, _ in pickletools.genops(sent) if isinstance(text, str)}
    assert "gpupipe" in named
    assert not named & {"datasets", "google_crc32c", "lmdb", "obstore", "pyarrow"}
    assert pickle.loads(sent).fetch(7) == (images[7], 7)


def test_two_epochs_are_those_of_the_folder(dataset: Dataset, engine: str, folder_batches: dict[str, Any]) -> None:
    with loader(dataset, engine) as it:
        assert same([batch for _ in range(2) for batch in it], folder_batches[engine])


def test_an_epoch_is_resumed_where_it_was_left(dataset: Dataset, engine: str, folder_batches: dict[str, Any]) -> None:
    with loader(dataset, engine) as first:
        batches = iter(first)
        next(batches), next(batches)
        state = pickle.loads(pickle.dumps(first.state_dict()))
    with loader(dataset, engine, seed=SEED + 1) as second:
        second.load_state_dict(state)
        left = folder_batches[engine][2 : -(-N // BATCH)]
        assert same(list(second), left)


def test_ranks_share_nothing(dataset: Dataset) -> None:
    """By their plans, which are the same for every engine."""
    parts = []
    for rank in range(2):
        with loader(dataset, "null", shard=Shard(rank, 2), batch_size=4, drop_last=True) as it:
            parts.append([seen(batch) for batch in it])
    with loader(dataset, "null", batch_size=8, drop_last=True) as it:
        whole = [seen(batch) for batch in it]
    assert [a + b for a, b in zip(*parts, strict=True)] == whole
    assert len({i for batch in whole for i in batch}) == len(whole) * 8


def test_forked_workers(dataset: Any, folder_batches: dict[str, Any]) -> None:
    dataset.fetch(0)  # so that the parent has files open
    with loader(dataset, "torch", num_workers=2, multiprocessing_context="fork") as it:
        assert same([batch for _ in range(2) for batch in it], folder_batches["torch"])


def test_spawned_workers(images: list[bytes], tmp_path: Path) -> None:
    """One for all formats, because each takes seconds to start."""
    folders = {name: tmp_path / name for name in CASES}
    for folder in folders.values():
        folder.mkdir()
    sent = [pickle.dumps(it.open(it.write(images, folders[name]))) for name, it in CASES.items()]
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.map(_all_bytes, sent) == [images] * len(sent)


def _all_bytes(sent: bytes) -> list[bytes]:
    dataset = pickle.loads(sent)
    return [dataset.fetch(i)[0] for i in range(len(dataset))]


@pytest.mark.part("format", "engine", of=3)
def test_bad_samples_are_named(format: Case, engine: str, images: list[bytes], tmp_path: Path) -> None:
    spoiled = list(images)
    spoiled[4], spoiled[9] = images[4][: len(images[4]) // 2], b"this is no image, but quite long"
    dataset = format.open(format.write(spoiled, tmp_path), TRAIN)
    with loader(dataset, engine, on_error="skip") as it:
        labels = all_seen(it)
        found = {bad.index: (bad.kind, bad.path) for bad in it.report().samples}
    assert sorted(labels) == [i for i in range(N) if i not in (4, 9)]
    assert found == {4: ("truncated", dataset.describe(4)), 9: ("undecodable", dataset.describe(9))}
    assert str(tmp_path) in dataset.describe(4)


def test_images_of_too_many_bytes_are_not_read(format: Case, written: Any, engine: str, images: list[bytes]) -> None:
    limit = sorted(map(len, images))[N // 2]
    dataset: Any = format.open(written, TRAIN, max_bytes=limit)
    large = {i for i, image in enumerate(images) if len(image) > limit}
    with loader(dataset, engine, on_error="skip") as it:
        assert sorted(all_seen(it)) == [i for i in range(N) if i not in large]
        assert {bad.index: bad.kind for bad in it.report().samples} == dict.fromkeys(large, "bomb")
    some = next(iter(large))
    (found,) = dataset.source.read([dataset.place(some)])
    assert isinstance(found, Undecodable)
    assert found.kind == "bomb"


def test_an_index_is_used_until_a_file_changes(format: Case, images: list[bytes], tmp_path: Path) -> None:
    folder, other = tmp_path / "data", tmp_path / "other"
    folder.mkdir(), other.mkdir()
    given = format.write(images, folder)
    make_old(folder)
    first: Any = format.open(given, TRAIN)
    assert first._index.built
    again: Any = format.open(given, TRAIN)
    assert not again._index.built
    assert again.fingerprint == first.fingerprint
    del first, again  # files that are mapped are about to be replaced
    changed = [*images[:-1], images[0]]
    format.write(changed, other)
    for path in sorted(p for p in other.rglob("*") if p.is_file()):
        os.replace(path, folder / path.relative_to(other))
    make_old(folder)
    for path in folder.rglob(f"*{format.suffix}"):
        os.utime(path, (LONG_AGO + 10, LONG_AGO + 10))
    third: Any = format.open(given, TRAIN)
    assert third._index.built
    assert [third.fetch(i)[0] for i in range(N)] == changed
    assert third.sizes[-1].tolist() == third.sizes[0].tolist()


def tried(format: Case, given: Any, count: int) -> Iterator[tuple[int, Any]]:
    """(sample, its bytes) of what is left of a damaged dataset. Whatever happens must be one of our errors."""
    try:
        dataset: Any = format.open(given, TRAIN)
    except DatasetError:
        return
    bad = {sample.index for sample in dataset.index_summary().bad}
    for i in range(len(dataset)):
        if i not in bad:
            with contextlib.suppress(Undecodable):
                yield i, dataset.fetch(i)[0]


@pytest.mark.parametrize("share", [0.0, 0.02, 0.3, 0.6, 0.97, 0.999])
def test_a_file_that_was_cut(format: Case, images: list[bytes], tmp_path: Path, share: float) -> None:
    given = format.write(images, tmp_path)
    path = max(tmp_path.rglob(f"*{format.suffix}"))
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * share)])
    for _, data in tried(format, given, N):
        assert data in images  # whole samples are left, and no others


def test_bytes_that_were_changed(format: Case, images: list[bytes], tmp_path: Path) -> None:
    given = format.write(images, tmp_path)
    path = max(tmp_path.rglob(f"*{format.suffix}"))
    whole = path.read_bytes()
    chance = random.Random(7)
    for attempt in range(40):
        spoiled = bytearray(whole)
        # Half of the times where formats keep what they say of themselves.
        spots = (len(whole), 200) if attempt % 2 else (200, 200)
        for _ in range(8):
            at = chance.randrange(min(spots)) if attempt % 2 == 0 else chance.randrange(len(whole))
            spoiled[at] ^= 1 << chance.randrange(8)
        path.write_bytes(spoiled)
        os.utime(path, (LONG_AGO + attempt, LONG_AGO + attempt))
        for _ in tried(format, given, N):
            pass


@pytest.mark.part("format", "engine")
def test_a_file_that_is_cut_while_it_is_open(format: Case, engine: str, images: list[bytes], tmp_path: Path) -> None:
    given = format.write(images, tmp_path)
    dataset: Any = format.open(given, TRAIN)
    places = [dataset.place(i) for i in range(N)]
    path = max(place.path for place in places)
    ends = [place.offset + place.length if place.path == path else 0 for place in places]
    cut = sorted(end for end in ends if end)[3]
    os.truncate(path, cut)
    with loader(dataset, engine, on_error="skip", num_workers=0) as it:
        labels = all_seen(it)
        bad = {sample.index: sample.kind for sample in it.report().samples}
    assert bad == {i: "truncated" for i, end in enumerate(ends) if end > cut}
    assert len(bad) > 3
    assert sorted([*labels, *bad]) == list(range(N))


def test_memory_is_used_again_only_after_it_was_read(
    dataset: Dataset, engine: str, folder_batches: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """An engine reads samples in place, and goes on with those of an epoch that was left."""
    take = BufferPool.take

    def spoilt_at_the_end(self: BufferPool, nbytes: int) -> Borrowed:
        lent = take(self, nbytes)
        weakref.finalize(lent, lent.buffer.zero_)
        return lent

    monkeypatch.setattr(BufferPool, "take", spoilt_at_the_end)
    with loader(dataset, engine, prefetch_factor=4) as it:
        next(iter(it))
        it.set_epoch(0)
        assert same(list(it), folder_batches[engine][: -(-N // BATCH)])
        next(iter(it))
