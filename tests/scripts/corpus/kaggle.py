"""Own Dataset classes around a table and a folder, as Kaggle notebooks write them."""

from __future__ import annotations

import csv
import glob
import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import Dataset, default_collate
from torchvision import datasets, transforms

from ..harness.script import Args, Epochs, script
from .common import IMAGENET_MEAN, IMAGENET_STD, normalize


def table(path: Path) -> list[dict[str, str]]:
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


class CsvDataset(Dataset[Any]):
    """A table of names and labels, a folder of images."""

    def __init__(self, rows: list[dict[str, str]], image_dir: Any, transform: Any = None, test: bool = False):
        self.rows, self.image_dir, self.transform, self.test = rows, image_dir, transform, test

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, idx: int) -> Any:
        row = self.rows[idx]
        path = os.path.join(self.image_dir, row["image_id"] + ".jpg")
        image = Image.open(path).convert("RGB")
        if self.transform:
            image = self.transform(image)
        if self.test:
            return image, row["image_id"]
        return image, int(row["label"])


TRAIN = transforms.Compose(
    [
        transforms.Resize((40, 40)),
        transforms.RandomCrop(32),
        transforms.RandomHorizontalFlip(),
        transforms.RandomVerticalFlip(),
        transforms.ToTensor(),
        normalize,
    ]
)


VALID = transforms.Compose([transforms.Resize((32, 32)), transforms.ToTensor(), normalize])


@script(engine="dali", workers=2)
def kaggle_csv(args: Args, DataLoader: Any) -> Epochs:
    """Kaggle notebook: a csv of image ids and labels, workers counted by numpy."""
    rows = table(args.data / "train.csv")
    dataset = CsvDataset(rows, args.data / "images", TRAIN)
    loader = DataLoader(
        dataset, batch_size=8, shuffle=True, num_workers=np.int64(args.workers), pin_memory=True, drop_last=True
    )
    yield from [loader] * args.epochs


@script(engine="dali")
def kaggle_folds(args: Args, DataLoader: Any) -> Epochs:
    """Kaggle notebook: folds from a column, a dataset and a loader for each, validation in order."""
    rows = table(args.data / "train.csv")
    for fold in range(2):
        train = CsvDataset([r for r in rows if int(r["fold"]) != fold], args.data / "images", TRAIN)
        valid = CsvDataset([r for r in rows if int(r["fold"]) == fold], args.data / "images", VALID)
        yield DataLoader(train, batch_size=8, shuffle=True, num_workers=args.workers)
        yield DataLoader(valid, batch_size=8 * 2, shuffle=False, num_workers=args.workers)


@script(engine="dali")
def kaggle_submission(args: Args, DataLoader: Any) -> Epochs:
    """Kaggle notebook: the test loader hands out names for the submission, twice for test-time augmentation."""
    rows = table(args.data / "train.csv")
    loader = DataLoader(CsvDataset(rows, args.data / "images", VALID, test=True), batch_size=8, shuffle=False)
    yield loader
    flipped = transforms.Compose(
        [transforms.Resize((32, 32)), transforms.RandomHorizontalFlip(p=1.0), transforms.ToTensor()]
    )
    yield DataLoader(CsvDataset(rows, args.data / "images", flipped, test=True), batch_size=8, shuffle=False)


class MultiLabel(Dataset[Any]):
    def __init__(self, rows: list[dict[str, str]], image_dir: Any, transform: Any):
        self.rows, self.image_dir, self.transform = rows, image_dir, transform
        self.tags = np.zeros((len(rows), 6), dtype=np.float32)
        for i, row in enumerate(rows):
            for tag in row["tags"].split():
                self.tags[i, int(tag)] = 1

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, i: int) -> Any:
        image = Image.open(self.image_dir / f"{self.rows[i]['image_id']}.jpg").convert("RGB")
        return self.transform(image), torch.from_numpy(self.tags[i])


@script(engine="dali")
def planet_multilabel(args: Args, DataLoader: Any) -> Epochs:
    """Kaggle's planet and HPA: several labels per image as a float vector."""
    dataset = MultiLabel(table(args.data / "train.csv"), args.data / "images", TRAIN)
    loader = DataLoader(dataset, batch_size=8, shuffle=True, num_workers=args.workers)
    yield from [loader] * args.epochs
    yield DataLoader(MultiLabel(table(args.data / "train.csv"), args.data / "images", VALID), batch_size=8)


@script(engine="dali")
def age_regression(args: Args, DataLoader: Any) -> Epochs:
    """Regression: the target is a number in a dict, beside a name."""

    class Ages(Dataset[Any]):
        def __init__(self, root: Any, transform: Any):
            self.rows, self.root, self.transform = table(root / "train.csv"), root, transform

        def __len__(self) -> int:
            return len(self.rows)

        def __getitem__(self, i: int) -> Any:
            row = self.rows[i]
            image = Image.open(self.root / "images" / (row["image_id"] + ".jpg")).convert("RGB")
            return self.transform(image), {"age": float(row["age"]), "name": row["image_id"]}

    loader = DataLoader(Ages(args.data, TRAIN), batch_size=8, shuffle=True, num_workers=args.workers)
    yield from [loader] * args.epochs
    yield DataLoader(Ages(args.data, VALID), batch_size=8)


@script(engine="dali")
def dogs_vs_cats(args: Args, DataLoader: Any) -> Epochs:
    """Dogs vs cats: a sorted list of files, shuffled and cut by hand, the label out of the name."""

    class DogsVsCats(Dataset[Any]):
        def __init__(self, file_list: list[str], transform: Any = None):
            self.file_list, self.transform = file_list, transform

        def __len__(self) -> int:
            self.filelength = len(self.file_list)
            return self.filelength

        def __getitem__(self, idx: int) -> Any:
            img_path = self.file_list[idx]
            img = Image.open(img_path)
            img_transformed = self.transform(img.convert("RGB"))
            label = int(img_path.split("/")[-1].split("_")[0])
            return img_transformed, label

    files = sorted(glob.glob(os.path.join(args.data, "images", "*.jpg")))
    random.Random(4).shuffle(files)
    cut = int(0.8 * len(files))
    loader = DataLoader(dataset=DogsVsCats(files[:cut], transform=TRAIN), batch_size=8, shuffle=True)
    yield from [loader] * args.epochs
    yield DataLoader(dataset=DogsVsCats(files[cut:], transform=VALID), batch_size=8, shuffle=False)


@script(engine="dali")
def gray_medical(args: Args, DataLoader: Any) -> Epochs:
    """X-rays: one channel, rotations and a square crop, normalized to -1 and 1."""

    class XRays(Dataset[Any]):
        def __init__(self, files: list[str], transform: Any):
            self.files, self.transform = files, transform

        def __len__(self) -> int:
            return len(self.files)

        def __getitem__(self, i: int) -> Any:
            image = Image.open(self.files[i]).convert("L")
            return self.transform(image), int(Path(self.files[i]).stem.split("_")[0])

    files = sorted(glob.glob(str(args.data / "images" / "*.jpg")))
    to_tensor = [transforms.ToTensor(), transforms.Normalize([0.5], [0.5])]
    augment = transforms.Compose(
        [transforms.RandomRotation(10), transforms.Resize(36), transforms.RandomCrop(32), *to_tensor]
    )
    loader = DataLoader(XRays(files, augment), batch_size=8, shuffle=True, num_workers=args.workers)
    yield from [loader] * args.epochs
    plain = transforms.Compose([transforms.Resize(36), transforms.CenterCrop(32), *to_tensor])
    yield DataLoader(XRays(files, plain), batch_size=8)


@script(engine="torch")
def numpy_style(args: Args, DataLoader: Any) -> Epochs:
    """OpenCV habits: arrays of height, width and channel, flipped and normalized by hand, without torchvision."""

    class NumpyImages(Dataset[Any]):
        def __init__(self, root: Any, augment: bool):
            self.rows, self.root, self.augment = table(root / "train.csv"), root, augment

        def __len__(self) -> int:
            return len(self.rows)

        def __getitem__(self, i: int) -> Any:
            path = self.root / "images" / (self.rows[i]["image_id"] + ".jpg")
            img = np.array(Image.open(path).convert("RGB").resize((32, 32), Image.Resampling.BILINEAR))
            if self.augment and np.random.rand() < 0.5:
                img = img[:, ::-1]
            if self.augment and random.random() < 0.5:
                img = np.clip(img.astype(np.float32) * random.uniform(0.8, 1.2), 0, 255)
            img = (img.astype(np.float32) / 255.0 - np.float32(IMAGENET_MEAN)) / np.float32(IMAGENET_STD)
            return torch.from_numpy(img.transpose(2, 0, 1).copy()), int(self.rows[i]["label"])

    loader = DataLoader(NumpyImages(args.data, True), batch_size=8, shuffle=True, num_workers=args.workers)
    yield from [loader] * args.epochs
    yield DataLoader(NumpyImages(args.data, False), batch_size=8)


@script(engine="dali")
def broken_files(args: Args, DataLoader: Any) -> Epochs:
    """The well-known answer to broken files: the dataset returns None, the collate function leaves it out."""

    class SometimesNone(Dataset[Any]):
        def __init__(self, root: Any, transform: Any):
            self.rows, self.root, self.transform = table(root / "train.csv"), root, transform

        def __len__(self) -> int:
            return len(self.rows)

        def __getitem__(self, i: int) -> Any:
            try:
                folder = "nowhere" if i % 7 == 3 else "images"
                image = Image.open(self.root / folder / f"{self.rows[i]['image_id']}.jpg").convert("RGB")
            except OSError:
                return None
            return self.transform(image), int(self.rows[i]["label"])

    def collate_fn(batch: list[Any]) -> Any:
        return default_collate([sample for sample in batch if sample is not None])

    yield DataLoader(SometimesNone(args.data, VALID), batch_size=8, collate_fn=collate_fn, num_workers=args.workers)


@script(engine="dali", needs=("albumentations",))
def albumentations_csv(args: Args, DataLoader: Any) -> Epochs:
    """Kaggle notebook with albumentations: arrays in, a dict out, ToTensorV2 at the end."""
    import albumentations as A
    from albumentations.pytorch import ToTensorV2

    class Images(Dataset[Any]):
        def __init__(self, root: Any, transform: Any):
            self.rows, self.root, self.transform = table(root / "train.csv"), root, transform

        def __len__(self) -> int:
            return len(self.rows)

        def __getitem__(self, i: int) -> Any:
            path = self.root / "images" / (self.rows[i]["image_id"] + ".jpg")
            image = np.array(Image.open(path).convert("RGB"))
            augmented = self.transform(image=image)
            return augmented["image"], int(self.rows[i]["label"])

    train = A.Compose(
        [A.Resize(40, 40), A.RandomCrop(32, 32), A.HorizontalFlip(p=0.5), A.Normalize(), ToTensorV2()], seed=args.seed
    )
    valid = A.Compose([A.Resize(32, 32), A.Normalize(), ToTensorV2()])
    loader = DataLoader(Images(args.data, train), batch_size=8, shuffle=True, num_workers=args.workers)
    yield from [loader] * args.epochs
    yield DataLoader(Images(args.data, valid), batch_size=8)


@script(engine="dali", needs=("albumentations", "cv2"))
def albumentations_opencv(args: Args, DataLoader: Any) -> Epochs:
    """Kaggle notebook of a competition: cv2.imread, colors turned round, random windows and flips."""
    import albumentations as A
    import cv2
    from albumentations.pytorch import ToTensorV2

    class TrainDataset(Dataset[Any]):
        def __init__(self, rows: list[dict[str, str]], root: Any, transform: Any = None):
            self.labels = [int(row["label"]) for row in rows]
            self.file_names = [str(root / "images" / (row["image_id"] + ".jpg")) for row in rows]
            self.transform = transform

        def __len__(self) -> int:
            return len(self.file_names)

        def __getitem__(self, idx: int) -> Any:
            image = cv2.imread(self.file_names[idx])
            image = cv2.cvtColor(image, cv2.COLOR_BGR2RGB)
            if self.transform:
                image = self.transform(image=image)["image"]
            return image, torch.tensor(self.labels[idx]).long()

    train = A.Compose(
        [
            A.RandomResizedCrop(size=(32, 32), scale=(0.5, 1.0)),
            A.HorizontalFlip(p=0.5),
            A.VerticalFlip(p=0.5),
            A.Normalize(mean=IMAGENET_MEAN, std=IMAGENET_STD),
            ToTensorV2(),
        ],
        seed=args.seed,
    )
    valid = A.Compose([A.Resize(32, 32), A.Normalize(mean=IMAGENET_MEAN, std=IMAGENET_STD), ToTensorV2()])
    rows = table(args.data / "train.csv")
    loader = DataLoader(
        TrainDataset(rows, args.data, train), batch_size=8, shuffle=True, num_workers=args.workers, drop_last=True
    )
    yield from [loader] * args.epochs
    yield DataLoader(TrainDataset(rows, args.data, valid), batch_size=8, shuffle=False, num_workers=args.workers)


@script(engine="dali", needs=("albumentations",))
def albumentations_folder(args: Args, DataLoader: Any) -> Epochs:
    """torchvision's ImageFolder with albumentations: a small class or a lambda between them."""
    import albumentations as A
    from albumentations.pytorch import ToTensorV2

    class Transforms:
        def __init__(self, transforms: Any):
            self.transforms = transforms

        def __call__(self, img: Any, *args: Any, **kwargs: Any) -> Any:
            return self.transforms(image=np.array(img))["image"]

    train = A.Compose(
        [A.SmallestMaxSize(40), A.RandomCrop(32, 32), A.HorizontalFlip(), A.Normalize(), ToTensorV2()], seed=args.seed
    )
    valid = A.Compose([A.SmallestMaxSize(40), A.CenterCrop(32, 32), A.Normalize(), ToTensorV2()])
    loader = DataLoader(datasets.ImageFolder(args.data / "train", transform=Transforms(train)), 8, shuffle=True)
    yield from [loader] * args.epochs
    folder = datasets.ImageFolder(args.data / "val", transform=lambda x: valid(image=np.array(x))["image"])
    yield DataLoader(folder, batch_size=8, num_workers=args.workers)


@script(engine="torch", needs=("albumentations",))
def albumentations_holes(args: Args, DataLoader: Any) -> Epochs:
    """Kaggle notebook with a step that has no form here: torch's loader does all of it."""
    import albumentations as A
    from albumentations.pytorch import ToTensorV2

    steps = [A.Resize(32, 32), A.CoarseDropout(p=0.5), A.Normalize(), ToTensorV2()]
    whole = A.Compose(steps, seed=args.seed)
    dataset = datasets.ImageFolder(args.data / "train", transform=lambda x: whole(image=np.array(x))["image"])
    loader = DataLoader(dataset, batch_size=8, shuffle=True, num_workers=args.workers)
    yield from [loader] * args.epochs


@script(engine="torch", needs=("albumentations",))
def albumentations_masks(args: Args, DataLoader: Any) -> Epochs:
    """Segmentation with albumentations, which moves the mask with the image."""
    import albumentations as A
    from albumentations.pytorch import ToTensorV2

    class Pairs(Dataset[Any]):
        def __init__(self, root: Any, transform: Any):
            self.rows, self.root, self.transform = table(root / "train.csv"), root, transform

        def __len__(self) -> int:
            return len(self.rows)

        def __getitem__(self, i: int) -> Any:
            image = np.array(Image.open(self.root / "images" / (self.rows[i]["image_id"] + ".jpg")).convert("RGB"))
            mask = (image[:, :, 0] > 128).astype(np.uint8)
            made = self.transform(image=image, mask=mask)
            return made["image"], made["mask"].long()

    steps = [A.Resize(32, 32), A.HorizontalFlip(), A.Normalize(), ToTensorV2()]
    loader = DataLoader(Pairs(args.data, A.Compose(steps, seed=args.seed)), batch_size=8, shuffle=True)
    yield from [loader] * args.epochs


@script(engine="dali", needs=("kornia",))
def kornia_in_dataset(args: Args, DataLoader: Any) -> Epochs:
    """kornia's augmentations as the last steps of a torchvision Compose."""
    import kornia.augmentation as K

    transform = transforms.Compose(
        [
            transforms.Resize((40, 40)),
            transforms.ToTensor(),
            K.RandomCrop((32, 32), keepdim=True),
            K.RandomHorizontalFlip(p=0.5, keepdim=True),
            normalize,
        ]
    )
    loader = DataLoader(datasets.ImageFolder(args.data / "train", transform), batch_size=8, shuffle=True)
    yield from [loader] * args.epochs
