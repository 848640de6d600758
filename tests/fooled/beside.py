"""What stands beside images and datasets: masks, open files, wrappers, worker functions, odd indices, tables."""

from __future__ import annotations

import random
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils.data import ConcatDataset, Dataset, default_collate, get_worker_info
from torchvision import datasets, transforms as T

from .base import COUNT, EVAL, RARE, Pictures, case
from .identity import Random, drawn, repeats

# ---- in a sample


def with_means(samples: list[Any]) -> Any:
    """Looks at the image as it was opened."""
    means = [float(np.asarray(sample["image"]).mean()) for sample in samples]
    return default_collate([sample["x"] for sample in samples]), means, [sample["image"].size for sample in samples]


@case(collate_fn=with_means)
class OriginalBeside(Pictures):
    def __getitem__(self, i: int) -> Any:
        image = Image.open(self.paths[i])
        return {"image": image, "x": self.transform(image.convert("RGB"))}


@case(collate_fn=with_means)
class ConvertedBeside(Pictures):
    def __getitem__(self, i: int) -> Any:
        image = self.open(i)
        return {"image": image, "x": self.transform(image)}


@case()
class MaskOfTheSameSize(Pictures):
    """Torch does not crop it with the image, either."""

    def __getitem__(self, i: int) -> Any:
        return self.transform(self.open(i)), torch.full((32, 36), i)


@case(drawn)
class ArrayOfTheSameSize(Random):
    def __getitem__(self, i: int) -> Any:
        return self.transform(self.open(i)), np.full((32, 36), i)


@case()
class ComparesTypesOfTexts(Pictures):
    def __getitem__(self, i: int) -> Any:
        caption = ["a", "b"] if i % 2 else "c"
        return self.transform(self.open(i)), caption[0] if type(caption) is list else caption


# ---- in a dataset


class OfAnArchive(Pictures):
    def __init__(self, root: Path):
        super().__init__(root)
        with zipfile.ZipFile(root / "all.zip", "w") as archive:
            for path in self.paths:
                archive.write(path, path.name)
        self.archive = zipfile.ZipFile(root / "all.zip")

    def __getitem__(self, i: int) -> Any:
        with self.archive.open(self.paths[i].name) as file:
            return self.transform(Image.open(file).convert("RGB")), i


@case()
def an_archive_that_stays_open(Loader: Any, root: Path, num_workers: int, **arguments: Any) -> Any:
    """Without workers, which torch lets read in one file at the same time."""
    dataset = OfAnArchive(root)
    with dataset.archive:
        return list(Loader(dataset, batch_size=4))


class OneFile(Dataset[Any]):
    """All pictures in one file that stays open."""

    def __init__(self, root: Path, seeks: bool):
        pictures = sorted(root.glob("*.jpg"))
        with open(root / "all.bin", "wb") as file:
            for path in pictures:
                with Image.open(path) as image:
                    file.write(np.asarray(image.convert("RGB")).tobytes())
        self.file, self.seeks, self.transform = open(root / "all.bin", "rb"), seeks, EVAL  # noqa: SIM115

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, i: int) -> Any:
        if self.seeks:
            self.file.seek(i * 32 * 36 * 3)
        pixels = np.frombuffer(self.file.read(32 * 36 * 3), np.uint8).reshape(32, 36, 3)
        return self.transform(Image.fromarray(pixels)), i


@case()
def a_file_that_stays_open(Loader: Any, root: Path, num_workers: int, **arguments: Any) -> Any:
    dataset = OneFile(root, True)
    with dataset.file:
        return list(Loader(dataset, batch_size=4)), dataset.file.tell()


@case()
def a_file_that_is_read_on(Loader: Any, root: Path, num_workers: int, **arguments: Any) -> Any:
    dataset = OneFile(root, False)
    with dataset.file:
        return list(Loader(dataset, batch_size=4, sampler=[5, 3, 9, 1])), dataset.file.tell()


class Inner(Random):
    def __getitem__(self, i: int) -> Any:
        if i == RARE:
            torch.manual_seed(0)
        return self.transform(self.open(i)), i


class Around(Dataset[Any]):
    def __init__(self, inner: Any):
        self.inner = inner

    def __len__(self) -> int:
        return len(self.inner)

    def __getitem__(self, i: int) -> Any:
        return self.inner[i]


@case()
def what_is_wrapped_seeds_once(Loader: Any, root: Path, **arguments: Any) -> Any:
    return [batch[0][1] for batch in Loader(Around(Around(Inner(root))), batch_size=4, **arguments) if RARE in batch[1]]


class OfItsWorker(Pictures):
    def __getitem__(self, i: int) -> Any:
        worker = get_worker_info()
        return self.transform(self.open(i)), -1 if worker is None else worker.dataset.inner.told  # type: ignore[attr-defined]


@case(forks=True)
def what_is_wrapped_asks_for_its_worker(Loader: Any, root: Path, **arguments: Any) -> Any:
    inner = OfItsWorker(root)
    inner.told = 7  # type: ignore[attr-defined]
    return list(Loader(Around(inner), batch_size=4, **arguments))


def cropped(size: int) -> Any:
    return T.Compose([T.Lambda(lambda image: image.crop((0, 0, size, size))), T.Resize((20, 20)), T.ToTensor()])


@case()
def parts_whose_functions_hold_the_same(Loader: Any, root: Path, **arguments: Any) -> Any:
    parts = [Pictures(root, cropped(30)) for _ in range(2)]
    return list(Loader(ConcatDataset(parts), batch_size=5, **arguments))


@case()
def parts_whose_functions_hold_something_else(Loader: Any, root: Path, **arguments: Any) -> Any:
    parts = [Pictures(root, cropped(size)) for size in (30, 12)]
    return list(Loader(ConcatDataset(parts), batch_size=5, **arguments))


@case()
def folders_whose_functions_hold_something_else(Loader: Any, root: Path, **arguments: Any) -> Any:
    (root / "class").mkdir()
    for file in root.glob("*.jpg"):
        file.rename(root / "class" / file.name)
    parts = [datasets.ImageFolder(str(root), cropped(size)) for size in (30, 12)]
    return list(Loader(ConcatDataset(parts), batch_size=5, **arguments))


# ---- worker functions


def seeds_as_torch_does(worker: int) -> None:
    seed = torch.initial_seed() % 2**32
    np.random.seed(seed), random.seed(seed)  # noqa: NPY002


def seeds_alike(worker: int) -> None:
    torch.manual_seed(worker)


class Told:
    """What a worker function told, beside its seeds."""

    workers: list[int] = []


def seeds_and_tells(worker: int) -> None:
    seeds_as_torch_does(worker)
    Told.workers.append(worker)


def _epochs(Loader: Any, dataset: Any, function: Any, facts: Any, **arguments: Any) -> Any:
    loader = Loader(dataset, batch_size=4, worker_init_fn=function, **arguments)
    return facts([list(loader) for _ in range(2)])


@case()
def workers_seeded_as_torch_does(Loader: Any, root: Path, **arguments: Any) -> Any:
    return _epochs(Loader, Random(root), seeds_as_torch_does, repeats, **arguments)


@case()
def workers_seeded_alike(Loader: Any, root: Path, **arguments: Any) -> Any:
    return _epochs(Loader, Random(root), seeds_alike, repeats, **arguments)


@case()
def a_folder_with_workers_seeded_alike(Loader: Any, root: Path, **arguments: Any) -> Any:
    (root / "class").mkdir()
    for file in root.glob("*.jpg"):
        file.rename(root / "class" / file.name)
    folder = datasets.ImageFolder(str(root), T.Compose([T.RandomCrop(20), T.ToTensor()]))
    return _epochs(Loader, folder, seeds_alike, repeats, **arguments)


@case()
def a_folder_with_workers_that_tell(Loader: Any, root: Path, **arguments: Any) -> Any:
    (root / "class").mkdir()
    for file in root.glob("*.jpg"):
        file.rename(root / "class" / file.name)
    folder = datasets.ImageFolder(str(root), T.Compose([T.CenterCrop(20), T.ToTensor()]))
    return _epochs(Loader, folder, seeds_and_tells, list, **arguments), Told.workers


# ---- indices


class AnyIndex(Pictures):
    """Its length says nothing of the indices that it takes."""

    def __getitem__(self, i: Any) -> Any:
        return self.transform(self.open(int(i) % COUNT)), int(i)


@case()
def indices_beyond_the_length(Loader: Any, root: Path, **arguments: Any) -> Any:
    return list(Loader(AnyIndex(root), batch_size=4, sampler=[3, 24, 10**9, -1, 7, -30, 24], **arguments))


@case()
def batches_of_indices_beyond_the_length(Loader: Any, root: Path, **arguments: Any) -> Any:
    batches = [[3, 30], [-1, -1, 10**12], [5]]
    return list(Loader(AnyIndex(root), batch_sampler=batches, **arguments))


@case()
def an_index_that_fails(Loader: Any, root: Path, **arguments: Any) -> Any:
    return list(Loader(Pictures(root), batch_size=2, sampler=[3, 4, 5, 24], **arguments))


# ---- rows of tables


def _rows(root: Path) -> Any:
    hf = pytest.importorskip("datasets")
    paths = sorted(map(str, root.glob("*.jpg")))
    table = {"image": paths, "text": [f"picture {i}" * (1 + i % 3) for i in range(len(paths))]}
    return hf.Dataset.from_dict(table).cast_column("image", hf.Image())


def _letters(text: str, length: int = 12) -> torch.Tensor:
    return torch.tensor([*text.encode(), *[0] * length][:length])


def _table(Loader: Any, root: Path, made: Any, **arguments: Any) -> Any:
    loader = Loader(_rows(root).with_transform(made), batch_size=4, **arguments)
    return [list(loader) for _ in range(2)]


@case(forks=True)
def captions_of_a_table(Loader: Any, root: Path, **arguments: Any) -> Any:
    def made(rows: Any) -> Any:
        images = [EVAL(image.convert("RGB")) for image in rows["image"]]
        return {"x": images, "tokens": torch.stack([_letters(text) for text in rows["text"]])}

    return _table(Loader, root, made, **arguments)


@case(forks=True)
def captions_as_long_as_the_longest(Loader: Any, root: Path, **arguments: Any) -> Any:
    def made(rows: Any) -> Any:
        longest = max(map(len, rows["text"]))
        return {"x": [EVAL(image) for image in rows["image"]], "y": [_letters(text, longest) for text in rows["text"]]}

    return _table(Loader, root, made, **arguments)


@case(forks=True)
def a_chance_for_all_rows(Loader: Any, root: Path, **arguments: Any) -> Any:
    """Rows that come together have it in common."""

    def made(rows: Any) -> Any:
        chance = random.random()
        return {"x": [EVAL(image) for image in rows["image"]], "chance": [chance + len(text) for text in rows["text"]]}

    epochs = _table(Loader, root, made, **arguments)
    return [[float((batch["chance"] % 1).std()) < 1e-9 for batch in epoch] for epoch in epochs]


@case(forks=True)
def images_of_a_table_in_a_sample(Loader: Any, root: Path, **arguments: Any) -> Any:
    def made(rows: Any) -> Any:
        return {**rows, "x": [EVAL(image) for image in rows["image"]], "length": [len(text) for text in rows["text"]]}

    return _table(Loader, root, made, collate_fn=with_means, **arguments)


@case(forks=True)
def images_of_a_table_untouched_in_a_sample(Loader: Any, root: Path, **arguments: Any) -> Any:
    def made(rows: Any) -> Any:
        return {**rows, "x": [EVAL(image) for image in rows["image"]]}

    return _table(Loader, root, made, collate_fn=with_means, **arguments)


@case(forks=True)
def pixels_of_a_table(Loader: Any, root: Path, **arguments: Any) -> Any:
    def made(rows: Any) -> Any:
        return {
            "x": [EVAL(image) for image in rows["image"]],
            "red": [image.getpixel((3, 3))[0] for image in rows["image"]],
        }

    return _table(Loader, root, made, **arguments)
