"""What a script changes after the loader was made is followed, as torch's DataLoader follows it."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from support import BATCH, SEED, N, all_seen, same, seen
from torchvision import datasets as tv, transforms as tvt

from gpupipe import DataLoader, datasets, transforms as T
from gpupipe.errors import ConfigError, SampleError
from gpupipe.loader.planned import PlannedSession

ENGINES = ("torch", "dali")


def pipeline(size: int = 16, p: float = 0.5) -> tvt.Compose:
    return tvt.Compose([tvt.Resize((size, size)), tvt.RandomHorizontalFlip(p), tvt.ToTensor()])


@pytest.fixture(params=ENGINES)
def make(request: pytest.FixtureRequest, numbered: Path) -> Any:
    def loader(dataset: Any = None, **arguments: Any) -> DataLoader:
        given = {"batch_size": BATCH, "engine": request.param, "device": "cpu", "seed": SEED}
        return DataLoader(dataset or tv.ImageFolder(str(numbered), pipeline()), **{**given, **arguments})

    return loader


def batches(loader: DataLoader, epoch: int) -> list[Any]:
    loader.set_epoch(epoch)
    return list(loader)


def test_another_transform(make: Any, numbered: Path) -> None:
    loader = make()
    before = batches(loader, 0)
    loader.dataset.transform = pipeline(12)
    got = batches(loader, 1)
    assert got[0][0].shape[2:] == (12, 12) and before[0][0].shape[2:] == (16, 16)
    assert same(got, batches(make(tv.ImageFolder(str(numbered), pipeline(12))), 1))


def test_a_number_within_a_transform(make: Any, numbered: Path) -> None:
    """Curricula do this: the same objects, other strengths."""
    loader = make()
    batches(loader, 0)
    loader.dataset.transform.transforms[1].p = 1.0
    assert same(batches(loader, 1), batches(make(tv.ImageFolder(str(numbered), pipeline(p=1.0))), 1))


def test_a_transform_appended(make: Any) -> None:
    loader = make()
    before = batches(loader, 0)
    loader.dataset.transform.transforms.append(tvt.Normalize((0.5,) * 3, (0.5,) * 3))
    after = batches(loader, 0)
    assert all(torch.allclose(2 * a[0] - 1, b[0], atol=1e-5) for a, b in zip(before, after, strict=True))


def test_fewer_samples(make: Any) -> None:
    loader = make()
    assert len(loader) == 5
    loader.dataset.samples = loader.dataset.samples[:7]
    assert len(loader) == 2
    assert all_seen(loader) == list(range(7))


def test_other_labels(make: Any) -> None:
    loader = make()
    list(loader)
    loader.dataset.samples = [(path, 5) for path, _ in loader.dataset.samples]
    assert {int(v) for _, labels in loader for v in labels} == {5}


def test_nothing_changed_keeps_the_engine(make: Any) -> None:
    loader = make()
    list(loader)
    engine = loader._session.running.engine
    list(loader)
    assert loader._session.running.engine is engine


class Repeat:
    def __init__(self, inner: Any):
        self.inner = inner

    def __len__(self) -> int:
        return len(self.inner)

    def __iter__(self) -> Any:
        while True:
            yield from iter(self.inner)


class AtOnce(Repeat):
    def __iter__(self) -> Any:
        return iter(list(self.inner))


def test_batches_put_in_its_place_by_a_subclass(make: Any) -> None:
    """timm, YOLO and others repeat a sampler without end so that workers live on."""
    one = make(shuffle=True, seed=None)
    object.__setattr__(one, "batch_sampler", Repeat(one.batch_sampler))
    endless = iter(one)
    got = [seen(next(endless)) for _ in range(15)]
    assert [len(batch) for batch in got] == [5, 5, 5, 5, 3] * 3
    for epoch in range(3):
        assert sorted(i for batch in got[5 * epoch : 5 * epoch + 5] for i in batch) == list(range(N))
    assert got[:5] != got[5:10]


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("kind", [Repeat, AtOnce])
def test_batches_put_in_its_place_follow_torchs_generator(kind: Any, workers: int, make: Any) -> None:
    def first(seed: int) -> list[int]:
        torch.manual_seed(seed)
        with make(shuffle=True, seed=None, num_workers=workers) as loader:
            object.__setattr__(loader, "batch_sampler", kind(loader.batch_sampler))
            return seen(next(iter(loader)))

    assert first(1) == first(1) != first(2)


def test_batches_of_a_seeded_loader_stay_in_their_place(make: Any, numbered: Path) -> None:
    named = datasets.ImageFolder(numbered, T.Compose([T.Resize((8, 8)), T.PILToTensor()]))
    for loader in (make(), make(live=True), make(named, seed=None)):
        list(loader)
        loader.batch_sampler.batch_size = 2
        if isinstance(loader._session, PlannedSession):
            with pytest.raises(ConfigError, match="give batch_size=, drop_last=, sampler= or batch_sampler="):
                iter(loader)
            assert "batches of 5" in repr(loader)
        object.__setattr__(loader, "batch_sampler", Repeat(loader.batch_sampler))
        with pytest.raises(ConfigError, match="batch_sampler was changed"):
            len(loader)


@pytest.mark.parametrize("how", ["pickle", "copy", "deepcopy"])
def test_a_copy_begins_with_the_next_epoch_of_its_original(make: Any, how: str) -> None:
    loader = make(shuffle=True)
    iterator = iter(loader)
    begun = seen(next(iterator))
    other = {
        "pickle": lambda: pickle.loads(pickle.dumps(loader)), "copy": lambda: copy.copy(loader),
        "deepcopy": lambda: copy.deepcopy(loader),
    }[how]()  # fmt: skip
    first = begun + all_seen(iterator)
    whole = all_seen(other)
    assert sorted(whole) == sorted(first) == list(range(N))
    assert all_seen(loader) == whole != first
    assert type(other) is DataLoader and repr(other.dataset) == repr(loader.dataset)


def test_a_dataset_of_ours_with_another_transform(make: Any, numbered: Path) -> None:
    from gpupipe.datasets import ImageFolder

    one = [T.Resize((16, 16)), T.PILToTensor()]
    loader = make(ImageFolder(numbered, one))
    before = batches(loader, 0)
    loader.dataset.transform = T.Compose([*one, T.ToDtype(torch.float32, scale=True)])
    after = batches(loader, 0)
    for a, b in zip(before, after, strict=True):
        np.testing.assert_allclose(a[0].numpy() / 255, b[0].numpy(), atol=1e-6)


def test_the_default_data_type(make: Any, numbered: Path) -> None:
    loader = make()
    before = next(iter(loader))[0]
    torch.set_default_dtype(torch.float64)
    try:
        after = next(iter(loader))[0]
    finally:
        torch.set_default_dtype(torch.float32)
    assert (before.dtype, after.dtype) == (torch.float32, torch.float64)


def test_the_limit_of_pillow(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    loader = make()
    list(loader)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    with pytest.raises(SampleError, match="bomb"):
        next(iter(loader))


def test_the_working_directory(make: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of the same names and sizes, so that both folders have one fingerprint."""
    for level in (50, 200):
        (tmp_path / str(level) / "images/a").mkdir(parents=True)
        Image.new("RGB", (20, 20), (level,) * 3).save(tmp_path / str(level) / "images/a/0.bmp")
    monkeypatch.chdir(tmp_path / "50")
    loader = make(tv.ImageFolder("images", pipeline()))
    before = next(iter(loader))[0]
    monkeypatch.chdir(tmp_path / "200")
    after = next(iter(loader))[0]
    assert [round(255 * images.mean().item()) for images in (before, after)] == [50, 200]


def test_attributes_that_torch_reads_when_an_epoch_begins(make: Any) -> None:
    loader = make(shuffle=True)
    before = batches(loader, 0)
    loader.num_workers = 1
    loader.collate_fn = lambda samples: [label for _, label in samples]
    loader.set_epoch(0)
    assert list(loader) == [batch[1].tolist() for batch in before]
    assert loader.state_dict()["epoch"] == 1 and loader.stats()["epochs"] == 2
