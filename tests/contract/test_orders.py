"""Orders that are functions of (seed, epoch), mixtures and samplers, under every engine: resume, ranks, bad samples."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import ENGINES, identical, images_of, outcomes, same, seen, write_photos

from gpupipe import BlockShuffle, DataLoader, SampleError, Shard, samplers, transforms as T
from gpupipe.datasets import Arrays, Columns, Dataset, ImageFolder, Mixture, WebDataset

PHOTOS = 20
BATCH = 6


def _transform() -> T.Compose:
    return T.Compose([T.RandomResizedCrop(16), T.RandomHorizontalFlip(), T.ToTensor()])


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    root = write_photos(tmp_path_factory.mktemp("mixed") / "folder", PHOTOS)
    shard = root.parent / "photos.tar"
    with tarfile.open(shard, "w") as tar:
        for i, path in enumerate(sorted(root.rglob("*.jpg"))[:7]):
            tar.add(path, f"{i:03d}.jpg")
            label = tarfile.TarInfo(f"{i:03d}.cls")
            label.size = 2
            tar.addfile(label, io.BytesIO(b"%02d" % (i + 20)))
    return root, shard


def _arrays() -> Dataset:
    pixels = np.random.default_rng(0).integers(0, 256, (5, 20, 18, 3), np.uint8)
    return Arrays(pixels, range(40, 45), transform=T.Compose([T.RandomCrop(16), T.ToTensor()]))


def _mixture(files: tuple[Path, Path]) -> dict[str, Any]:
    folder, shard = files
    parts: dict[Dataset, float] = {
        ImageFolder(folder, transform=_transform()): 0.5,
        WebDataset(shard, transform=T.Compose([T.Resize((16, 16)), T.ToTensor()])): 0.3,
        _arrays(): 0.2,
    }
    return {"dataset": Mixture(parts, stop=25), "shuffle": True}


def _named(files: tuple[Path, Path]) -> dict[str, Any]:
    one, two = (
        Columns(Arrays(np.full((n, 16, 16, 3), n, np.uint8), range(n)), {"name": [f"{n} {i}" for i in range(n)]})
        for n in (9, 4)
    )
    return {"dataset": Mixture({one: 2, two: 1}, stop="all")}


def _of(files: tuple[Path, Path], sampler: Any) -> dict[str, Any]:
    return {"dataset": ImageFolder(files[0], transform=_transform()), "sampler": sampler}


def _shaped(files: tuple[Path, Path], sampler: Any) -> dict[str, Any]:
    transform = T.Compose([T.ResizeToBucket(crop="random"), T.RandomHorizontalFlip(), T.ToTensor()])
    return {"dataset": ImageFolder(files[0], transform=transform), "sampler": sampler}


_SIZES = [(20, 40)] * 11 + [(40, 20)] * 9

SCHEMES: dict[str, Callable[[tuple[Path, Path]], dict[str, Any]]] = {
    "mixture": _mixture,
    "mixture with names": _named,
    "repeated": lambda files: _of(files, samplers.RepeatedAugmentation(3, num_samples=20)),
    "weighted": lambda files: _of(files, samplers.Weighted(lambda epoch: np.arange(PHOTOS) + epoch + 1, 20)),
    "balanced": lambda files: _of(files, samplers.ClassBalanced([0] * 16 + [1] * 3 + [2], num_samples=20)),
    "class batches": lambda files: _of(files, samplers.ClassBatches(3, 1, [0] * 14 + [1] * 3 + [2] * 2 + [3], 24)),
    "aspect ratios": lambda files: _shaped(files, samplers.AspectRatioBuckets([(16, 24), (24, 16)], sizes=_SIZES)),
    "blocks": lambda files: {**_of(files, None), "shuffle": BlockShuffle(block_bytes=5_000, blocks=2)},
    "shapes in turn": lambda files: _shaped(files, samplers.RandomShapes([(16, 16), (24, 20)])),
}


@pytest.fixture(params=ENGINES)
def engine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=SCHEMES)
def scheme(request: pytest.FixtureRequest, files: tuple[Path, Path]) -> dict[str, Any]:
    return SCHEMES[request.param](files)


@pytest.fixture
def make(engine: str) -> Iterator[Callable[..., DataLoader]]:
    made: list[DataLoader] = []

    def loader(**arguments: Any) -> DataLoader:
        given = {"batch_size": BATCH, "seed": 5, "engine": engine, "device": "cpu", **arguments}
        made.append(DataLoader(**given))
        return made[-1]

    yield loader
    for each in made:
        each.close()


def test_resumes_at_every_step(make: Callable[..., DataLoader], scheme: dict[str, Any]) -> None:
    one = make(**scheme)
    list(one)  # the second epoch continues the passes of the first
    states, batches = [one.state_dict()], []
    for batch in one:
        batches.append(batch)
        states.append(one.state_dict())
    assert len(batches) == len(one) >= 3
    for step, state in enumerate(states[:-1]):
        two = make(**scheme)
        two.load_state_dict(state)
        assert same(list(two), batches[step:])
    assert all(identical(one.at(1, step), batch) for step, batch in enumerate(batches))


def test_ranks_divide_the_batches_of_one(make: Callable[..., DataLoader], scheme: dict[str, Any]) -> None:
    whole = list(make(**scheme, drop_last=True))
    halves = [list(make(**scheme, batch_size=BATCH // 2, drop_last=True, shard=Shard(r, 2))) for r in range(2)]
    assert len(whole) == len(halves[0]) == len(halves[1]) >= 2
    for batch, first, second in zip(whole, *halves, strict=True):
        assert seen(batch) == seen(first) + seen(second)
        if hasattr(images_of(batch), "numpy"):
            parts = np.concatenate([images_of(first), images_of(second)])
            assert (images_of(batch).numpy() == parts).all()


def test_a_sample_that_comes_again_draws_again(make: Callable[..., DataLoader], engine: str, files: Any) -> None:
    if engine == "null":
        pytest.skip("makes no images")
    images, labels = next(iter(make(**_of(files, samplers.RepeatedAugmentation(3)))))
    assert labels.tolist() == [labels[0]] * 3 + [labels[3]] * 3
    assert len({image.numpy().tobytes() for image in images}) == BATCH


# ---- bad samples of a mixture


@pytest.fixture
def damaged(tmp_path: Path) -> Dataset:
    root = write_photos(tmp_path / "damaged", 6)
    bad = sorted(root.rglob("*.jpg"))[2]
    bad.write_bytes(bad.read_bytes()[:300])
    return ImageFolder(root, transform=_transform())


@pytest.mark.parametrize("on_error", ["raise", "skip", "replace"])
def test_bad_samples_of_a_part(make: Callable[..., DataLoader], damaged: Dataset, on_error: str) -> None:
    # Label and index of a photograph are its number; the arrays come first.
    mixture = Mixture({_arrays(): 0.5, damaged: 0.5}, stop=12)
    loader = make(dataset=mixture, shuffle=True, on_error=on_error)
    found = list(outcomes(loader))
    errors = [one for one in found if isinstance(one, SampleError)]
    batches = [one for one in found if not isinstance(one, SampleError)]
    if on_error == "raise":
        assert [sample.index for e in errors for sample in e.samples] == [5 + 2]
        assert "damaged" in str(errors[0]) and len(batches) == 1
        return
    assert not errors and loader.report().samples[0].index == 5 + 2
    counts = [len(seen(batch)) for batch in batches]
    assert sum(counts) == (11 if on_error == "skip" else 12)


def test_a_file_that_breaks_during_training(make: Callable[..., DataLoader], engine: str, tmp_path: Path) -> None:
    if engine == "null":
        pytest.skip("reads no files")
    root = write_photos(tmp_path / "later", 6)
    photos = ImageFolder(root, transform=_transform())
    with make(dataset=Mixture({_arrays(): 0.5, photos: 0.5}, stop=12), shuffle=True, on_error="replace") as loader:
        sorted(root.rglob("*.jpg"))[4].write_bytes(b"")
        assert sum(len(seen(batch)) for batch in loader) == 12
        assert [sample.index for sample in loader.report().samples] == [5 + 4]
