"""Programs as users write them: torch's loader and this one give the same, on the engine that is named."""

from __future__ import annotations

import dataclasses
import io
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from own_datasets import EVAL, RARE, Photos
from PIL import Image
from support import BATCH, warned
from torch.utils.data import BatchSampler, DataLoader as TorchLoader, Dataset, SequentialSampler, get_worker_info
from torch.utils.data.distributed import DistributedSampler
from torchvision import datasets as tv, transforms as tvt

from gpupipe import DataLoader
from gpupipe.errors import TranslationError

pytest.importorskip("nvidia.dali")
lmdb = pytest.importorskip("lmdb")

LEVELS = 2.02 / 255


def differences(dataset: Any, other: Any, epochs: int = 2, **options: Any) -> tuple[float, str, list[str]]:
    """Return the largest difference of images of two loaders, the engine, and the codes of warnings."""
    with warned() as texts:
        loader = DataLoader(other, device="cpu", **options)
        got = [list(loader) for _ in range(epochs)]
        engine = re.findall(r"engine: (\w+)", repr(loader))[0]
    loader.close()
    for name in ("database", "opened_database"):
        if vars(other).get(name) is not None:
            vars(other)[name].close()
    theirs = TorchLoader(dataset, **options)
    want = [list(theirs) for _ in range(epochs)]
    apart = 0.0
    assert [len(epoch) for epoch in got] == [len(epoch) for epoch in want]
    for (a, x), (b, y) in ((p, q) for one, two in zip(got, want, strict=True) for p, q in zip(one, two, strict=True)):
        assert a.shape == b.shape and a.dtype == b.dtype and x.equal(y)
        apart = max(apart, float((a.double() - b.double()).abs().max()))
    return apart, engine, [text.split("[")[-1].split("]")[0] for text in texts]


# ---- datasets


class InMemory(Photos):
    """Images are decoded once."""

    def __init__(self, root: Path):
        super().__init__(root)
        self.images = [Image.open(path).convert("RGB") for path in self.paths]

    def __getitem__(self, i: int) -> Any:
        return self.transform(self.images[i]), i


class DrawsOn(InMemory):
    """Draws on an image that it keeps, after its transforms have taken it."""

    at = 0

    def __getitem__(self, i: int) -> Any:
        made = self.transform(self.images[i])
        if i == self.at:
            self.images[i].paste((self.images[i].getpixel((9, 9))[0] + 40, 0, 0), (0, 0, 20, 20))  # type: ignore[index]
        return made, i


class DrawsOnRarely(DrawsOn):
    at = RARE


class OpensLate(Photos):
    """A process may open an LMDB once, and a worker process opens its own."""

    def __init__(self, root: Path):
        super().__init__(root)
        self.database: Any = None
        self.root = root.parent / "database"
        if not self.root.exists():
            with lmdb.open(str(self.root), map_size=1 << 26) as database, database.begin(write=True) as written:
                for i, path in enumerate(self.paths):
                    written.put(str(i).encode(), path.read_bytes())

    def __getitem__(self, i: int) -> Any:
        if self.database is None:
            self.database = lmdb.open(str(self.root), readonly=True, lock=False)
        with self.database.begin() as read:
            return self.transform(Image.open(io.BytesIO(read.get(str(i).encode()))).convert("RGB")), i


class OpensLateByName(OpensLate):
    def __init__(self, root: Path):
        super().__init__(root)
        del self.database

    def __getitem__(self, i: int) -> Any:
        if not hasattr(self, "read"):
            self.opened_database = lmdb.open(str(self.root), readonly=True, lock=False)
            self.read = self.opened_database.begin()
        return self.transform(Image.open(io.BytesIO(self.read.get(str(i).encode()))).convert("RGB")), i


class ClosesFiles(Photos):
    """Makes an array of an image and closes its file."""

    def __getitem__(self, i: int) -> Any:
        with Image.open(self.paths[i]) as image:
            pixels = np.array(image)
        return self.transform(Image.fromarray(pixels)), i


class Delegates(Dataset[Any]):
    def __init__(self, root: Path):
        self.dataset = Photos(root)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.dataset, name)

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, i: int) -> Any:
        return self.dataset[i]


@dataclasses.dataclass(frozen=True)
class Frozen(Dataset[Any]):
    root: Path
    transform: Any = EVAL

    def __len__(self) -> int:
        return len(list(self.root.rglob("*.jpg")))

    def __getitem__(self, i: int) -> Any:
        return self.transform(Image.open(sorted(self.root.rglob("*.jpg"))[i]).convert("RGB")), i


class WebP(Photos):
    """Files of a format that Pillow opens without pixels, and no convert()."""

    def __init__(self, root: Path):
        super().__init__(root)
        self.files = []
        for path in self.paths:
            Image.open(path).convert("RGB").save(file := io.BytesIO(), "WEBP")
            self.files.append(file.getvalue())

    def __getitem__(self, i: int) -> Any:
        return self.transform(Image.open(io.BytesIO(self.files[i]))), i


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize(
    "kind", [InMemory, DrawsOnRarely, OpensLate, OpensLateByName, ClosesFiles, Delegates, Frozen, WebP]
)
def test_dali_makes_the_samples(kind: Callable[[Path], Any], workers: int, numbered: Path) -> None:
    apart, engine, warnings = differences(kind(numbered), kind(numbered), batch_size=BATCH, num_workers=workers)
    assert (engine, warnings) == ("dali", []) and apart <= LEVELS


@pytest.mark.parametrize("workers", [0, 2])
def test_trials_leave_no_trace_on_images_that_the_script_keeps(workers: int, numbered: Path) -> None:
    apart, engine, warnings = differences(DrawsOn(numbered), DrawsOn(numbered), batch_size=BATCH, num_workers=workers)
    assert (engine, warnings, apart) == ("torch", ["changes-itself"], 0)
    dataset = InMemory(numbered)
    DataLoader(dataset, BATCH, device="cpu").close()
    dataset.images[0].load()[0, 0] = (1, 2, 3)  # type: ignore[index] # not read-only


# ---- samplers


class WithSizes(BatchSampler):
    def __iter__(self) -> Iterator[Any]:
        for batch in super().__iter__():
            yield [(i, 32) for i in batch]


class TakesSizes(Photos):
    def __getitem__(self, i: Any) -> Any:
        i, size = i if isinstance(i, tuple) else (i, 32)
        return self.transform(self.opened(i).resize((2 * size, 2 * size))), i


@pytest.mark.parametrize("workers", [0, 2])
def test_torch_takes_samplers_that_give_more_than_integers(workers: int, numbered: Path) -> None:
    def loaded(Loader: Any, **options: Any) -> Any:
        batches = WithSizes(SequentialSampler(range(12)), 4, False)
        return list(Loader(TakesSizes(numbered), batch_sampler=batches, num_workers=workers, **options))

    with warned() as texts:
        got = loaded(DataLoader, device="cpu")
    assert "[sampler-keys]" in texts[0] and len(texts) == 1
    for (a, x), (b, y) in zip(got, loaded(TorchLoader), strict=True):
        assert a.equal(b) and x.equal(y)


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("count", [22, 23, 24, 25])
def test_a_distributed_sampler_pads_before_the_last_batch_is_dropped(count: int, shuffle: bool, numbered: Path) -> None:
    dataset = torch.utils.data.Subset(Photos(numbered), [i % 20 for i in range(count)])
    for rank in range(3):
        sampler = DistributedSampler(dataset, 3, rank, shuffle=shuffle)
        apart, *_ = differences(dataset, dataset, 1, batch_size=4, sampler=sampler, drop_last=True)
        assert apart <= LEVELS


# ---- transforms


class AsksWorker:
    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        worker = get_worker_info()
        return x + (0 if worker is None else 1 + worker.id)


def test_torch_runs_transforms_that_ask_for_their_worker(numbered: Path) -> None:
    dataset = tv.ImageFolder(str(numbered), tvt.Compose([EVAL, AsksWorker()]))
    assert differences(dataset, dataset, batch_size=BATCH, num_workers=2) == (0, "torch", ["asks-worker"])
    assert differences(dataset, dataset, batch_size=BATCH)[1] == "dali"


def test_torchs_default_data_type(numbered: Path) -> None:
    torch.set_default_dtype(torch.float64)
    try:
        dataset = tv.ImageFolder(str(numbered), EVAL)
        assert differences(dataset, dataset, batch_size=BATCH)[:2] == (0, "torch")
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("kind", [lambda root, steps: tv.ImageFolder(str(root), steps), Photos])
def test_pil_images_without_a_collate_function(kind: Any, numbered: Path) -> None:
    with warned() as texts:
        loader = DataLoader(kind(numbered, tvt.Resize((32, 32))), BATCH, device="cpu")
    assert "[pil-images]" in texts[0] and len(texts) == 1
    with pytest.raises(TypeError, match="default_collate"):
        next(iter(loader))


# ---- loaders


def test_an_iterator_has_the_length_of_its_epoch(numbered: Path) -> None:
    for engine in ("dali", "torch"):
        with DataLoader(Photos(numbered), BATCH, device="cpu", engine=engine) as loader:
            batches = iter(loader)
            next(batches)
            assert len(batches) == len(loader)  # type: ignore[arg-type]


def test_a_change_before_the_first_batch(numbered: Path) -> None:
    dataset = Photos(numbered)
    with DataLoader(dataset, BATCH, device="cpu", engine="dali") as loader:
        batches = iter(loader)
        dataset.transform = tvt.Compose([tvt.Resize((20, 24)), tvt.ToTensor()])
        assert all(images.shape[1:] == (3, 20, 24) for images, _ in batches)


@pytest.mark.parametrize("persistent", [False, True])
def test_a_change_that_persistent_workers_would_not_see(persistent: bool, numbered: Path) -> None:
    dataset = Photos(numbered)
    options = {"num_workers": 2, "persistent_workers": persistent, "device": "cpu", "engine": "dali"}
    with DataLoader(dataset, BATCH, **options) as loader, warned() as texts:
        list(loader)
        dataset.transform = tvt.Compose([tvt.Resize((20, 24)), tvt.ToTensor()])
        assert next(iter(loader))[0].shape[2:] == (20, 24)
    assert ["[changed-persistent]" in text for text in texts] == [True] * persistent


class HoldsLoaders(Dataset[Any]):
    """Episodes of few-shot learning: a loader for each class."""

    def __init__(self, root: Path):
        self.loaders = [DataLoader(Photos(root), 4, shuffle=True, device="cpu")]

    def __len__(self) -> int:
        return 1

    def __getitem__(self, i: int) -> Any:
        return next(iter(self.loaders[i]))


def test_one_warning_for_a_dataset_that_holds_loaders(numbered: Path) -> None:
    with warned() as texts:
        loader = DataLoader(HoldsLoaders(numbered), 1, device="cpu")
        assert next(iter(loader))[1].shape == (1, 4)
    assert len(texts) == 1


def test_a_mistake_of_gpupipe_stops_no_script(numbered: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(ds: Any, **options: Any) -> Any:
        raise AssertionError("unforeseen")

    monkeypatch.setattr("gpupipe.interop.datasets.record", fails)
    dataset = Photos(numbered)
    assert differences(dataset, dataset, 1, batch_size=BATCH) == (0, "torch", ["trial-fails"])
    with pytest.raises(TranslationError, match="AssertionError: unforeseen; please report"):
        DataLoader(dataset, BATCH, device="cpu", engine="dali")
