"""Own Dataset classes and subclasses, and samples that are more than an image and a label."""

from __future__ import annotations

import os
import random
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import Dataset, Subset, random_split
from torchvision import datasets, transforms

from ..harness.script import Args, Epochs, script
from .common import normalize
from .kaggle import TRAIN, VALID, table


@script(engine="dali")
def clip_captions(args: Args, DataLoader: Any) -> Epochs:
    """mlfoundations/open_clip: a csv of paths and captions, tokens as the target, conversion inside the transforms."""

    def tokenize(text: str) -> Tensor:
        codes = [ord(c) % 97 for c in text][:16]
        return torch.tensor(codes + [0] * (16 - len(codes)))

    def convert_to_rgb(image: Any) -> Any:
        return image.convert("RGB")

    class Captions(Dataset[Any]):
        def __init__(self, input_filename: Any, preprocess: Any, img_key: str, caption_key: str):
            rows = table(input_filename)
            self.images = [str(input_filename.parent / "images" / row[img_key]) for row in rows]
            self.captions = [row[caption_key] for row in rows]
            self.transforms = preprocess

        def __len__(self) -> int:
            return len(self.captions)

        def __getitem__(self, idx: int) -> Any:
            images = self.transforms(Image.open(str(self.images[idx])))
            texts = tokenize(str(self.captions[idx]))
            return images, texts

    preprocess = transforms.Compose(
        [
            transforms.RandomResizedCrop(32, scale=(0.9, 1.0), interpolation=transforms.InterpolationMode.BICUBIC),
            convert_to_rgb,
            transforms.ToTensor(),
            normalize,
        ]
    )
    dataset = Captions(args.data / "captions.csv", preprocess, "filepath", "title")
    loader = DataLoader(dataset, batch_size=8, shuffle=True, num_workers=args.workers, pin_memory=True, drop_last=True)
    yield from [loader] * args.epochs


class Transformed(Dataset[Any]):
    """A subset with a transform of its own: what random_split lacks."""

    def __init__(self, subset: Any, transform: Any = None):
        self.subset, self.transform = subset, transform

    def __getitem__(self, index: int) -> Any:
        x, y = self.subset[index]
        if self.transform:
            x = self.transform(x)
        return x, y

    def __len__(self) -> int:
        return len(self.subset)


@script(engine="dali")
def transformed_subset(args: Args, DataLoader: Any) -> Epochs:
    """random_split of a folder without transforms, each part wrapped with its own."""
    dataset = datasets.ImageFolder(args.data / "train")
    train, val = random_split(dataset, [0.75, 0.25], generator=torch.Generator().manual_seed(1))
    loader = DataLoader(Transformed(train, TRAIN), batch_size=7, shuffle=True, num_workers=args.workers)
    yield from [loader] * args.epochs
    yield DataLoader(Transformed(val, VALID), batch_size=8, shuffle=False)


@script(engine="dali")
def two_folders_one_split(args: Args, DataLoader: Any) -> Epochs:
    """Two ImageFolders of one folder with different transforms, and Subsets with the same cut of indices."""
    train_data = datasets.ImageFolder(args.data / "train", transform=TRAIN)
    valid_data = datasets.ImageFolder(args.data / "train", transform=VALID)
    indices = np.random.default_rng(3).permutation(len(train_data))
    split = int(np.floor(0.25 * len(indices)))
    train_loader = DataLoader(Subset(train_data, indices[split:]), batch_size=8, shuffle=True)
    valid_loader = DataLoader(Subset(valid_data, indices[:split]), batch_size=8)
    for _ in range(args.epochs):
        yield train_loader
        yield valid_loader


@script(engine="dali")
def siamese(args: Args, DataLoader: Any) -> Epochs:
    """Siamese networks: two images of one folder, half of the time of the same class."""

    class SiamesePairs(Dataset[Any]):
        def __init__(self, folder: Any, transform: Any):
            self.folder, self.transform = folder, transform

        def __getitem__(self, index: int) -> Any:
            img0_tuple = random.choice(self.folder.imgs)
            same = random.randint(0, 1)
            while True:
                img1_tuple = random.choice(self.folder.imgs)
                if (img0_tuple[1] == img1_tuple[1]) == bool(same):
                    break
            img0, img1 = (Image.open(path).convert("L") for path in (img0_tuple[0], img1_tuple[0]))
            label = torch.from_numpy(np.array([int(img1_tuple[1] != img0_tuple[1])], dtype=np.float32))
            return self.transform(img0), self.transform(img1), label

        def __len__(self) -> int:
            return len(self.folder.imgs)

    transform = transforms.Compose([transforms.Resize((32, 32)), transforms.ToTensor()])
    dataset = SiamesePairs(datasets.ImageFolder(args.data / "grouped"), transform)
    loader = DataLoader(dataset, shuffle=True, batch_size=8, num_workers=args.workers)
    yield from [loader] * args.epochs


@script(engine="dali")
def huggingface_collate(args: Args, DataLoader: Any) -> Epochs:
    """huggingface/transformers image classification: dicts of pixel_values, stacked by a collate function."""

    class WithTransform(Dataset[Any]):
        def __init__(self, root: Any, transform: Any):
            self.rows, self.root, self.transform = table(root / "train.csv"), root, transform

        def __len__(self) -> int:
            return len(self.rows)

        def __getitem__(self, i: int) -> dict[str, Any]:
            image = Image.open(self.root / "images" / (self.rows[i]["image_id"] + ".jpg"))
            example = {"image": image, "labels": int(self.rows[i]["label"])}
            example["pixel_values"] = self.transform(example["image"].convert("RGB"))
            return example

    def collate_fn(examples: list[dict[str, Any]]) -> dict[str, Tensor]:
        pixel_values = torch.stack([example["pixel_values"] for example in examples])
        labels = torch.tensor([example["labels"] for example in examples])
        return {"pixel_values": pixel_values, "labels": labels}

    train = DataLoader(WithTransform(args.data, TRAIN), shuffle=True, collate_fn=collate_fn, batch_size=8)
    for _ in range(args.epochs):
        yield train
    yield DataLoader(WithTransform(args.data, VALID), collate_fn=collate_fn, batch_size=8)


@script(engine="dali")
def dict_samples(args: Args, DataLoader: Any) -> Epochs:
    """Samples as dicts of image, target, index and path, collated by torch's default."""

    class Samples(Dataset[Any]):
        def __init__(self, root: Any, transform: Any):
            self.rows, self.root, self.transform = table(root / "train.csv"), root, transform

        def __len__(self) -> int:
            return len(self.rows)

        def __getitem__(self, i: int) -> dict[str, Any]:
            path = os.path.join(self.root, "images", self.rows[i]["image_id"] + ".jpg")
            image = Image.open(path).convert("RGB")
            return {"image": self.transform(image), "target": int(self.rows[i]["label"]), "index": i, "path": path}

    loader = DataLoader(Samples(args.data, TRAIN), batch_size=8, shuffle=True, num_workers=args.workers)
    yield from [loader] * args.epochs
    yield DataLoader(Samples(args.data, VALID), batch_size=8)


@script(engine="dali")
def folder_with_paths(args: Args, DataLoader: Any) -> Epochs:
    """ImageFolderWithPaths: the well-known gist that adds the path to what ImageFolder returns."""

    class ImageFolderWithPaths(datasets.ImageFolder):
        def __getitem__(self, index: int) -> Any:
            original_tuple = super().__getitem__(index)
            path = self.imgs[index][0]
            return (*original_tuple, path)

    loader = DataLoader(ImageFolderWithPaths(args.data / "val", VALID), batch_size=8, num_workers=args.workers)
    yield loader


@script(engine="dali")
def own_image_loader(args: Args, DataLoader: Any) -> Epochs:
    """ImageFolder with a loader of its own, files chosen by a function, and labels shifted by a lambda."""

    def pil_loader(path: str) -> Any:
        with open(path, "rb") as file:
            img = Image.open(file)
            return img.convert("RGB")

    dataset = datasets.ImageFolder(
        str(args.data / "train"), VALID, target_transform=lambda y: y + 1, loader=pil_loader,
        is_valid_file=lambda path: path.endswith((".JPEG", ".png")) and not path.endswith("3_img.JPEG"),
    )  # fmt: skip
    yield DataLoader(dataset, batch_size=8, num_workers=args.workers)
    yield DataLoader(dataset, batch_size=8, num_workers=args.workers, shuffle=True)


@script(engine="dali")
def some_classes(args: Args, DataLoader: Any) -> Epochs:
    """Experiments on a few classes: find_classes overridden, as torchvision's documentation proposes."""

    class SomeClasses(datasets.ImageFolder):
        def find_classes(self, directory: str) -> Any:
            classes, _ = super().find_classes(directory)
            classes = classes[::2]
            return classes, {name: i for i, name in enumerate(classes)}

    dataset = SomeClasses(args.data / "train", TRAIN)
    loader = DataLoader(dataset, batch_size=6, shuffle=True, num_workers=args.workers)
    yield from [loader] * args.epochs


class Labeled(NamedTuple):
    image: Tensor
    label: int
    name: str


@script(engine="dali")
def namedtuple_samples(args: Args, DataLoader: Any) -> Epochs:
    """Samples as a NamedTuple, so that the batch is one too."""

    class NamedSamples(Dataset[Any]):
        def __init__(self, root: Any, transform: Any):
            self.rows, self.root, self.transform = table(root / "train.csv"), root, transform

        def __len__(self) -> int:
            return len(self.rows)

        def __getitem__(self, i: int) -> Labeled:
            name = self.rows[i]["image_id"]
            image = Image.open(self.root / "images" / f"{name}.jpg").convert("RGB")
            return Labeled(self.transform(image), int(self.rows[i]["label"]), name)

    loader = DataLoader(NamedSamples(args.data, TRAIN), batch_size=8, shuffle=True, num_workers=args.workers)
    yield from [loader] * args.epochs
    yield DataLoader(NamedSamples(args.data, VALID), batch_size=8)


@script(engine="dali")
def batch_objects(args: Args, DataLoader: Any) -> Epochs:
    """PyTorch's notes on pinning memory: a class for batches; and a collate function that gives no targets."""

    class ImageBatch:
        def __init__(self, samples: list[Any]):
            images, labels = zip(*samples, strict=True)
            self.images, self.labels = torch.stack(images), torch.tensor(labels)

        def pin_memory(self) -> Any:
            self.images = self.images.pin_memory()
            return self

    def unlabeled(samples: list[Any]) -> tuple[Tensor, None]:
        return torch.stack([image for image, _ in samples]), None

    dataset = datasets.ImageFolder(args.data / "val", VALID)
    yield DataLoader(dataset, batch_size=8, collate_fn=ImageBatch, num_workers=args.workers)
    yield DataLoader(dataset, batch_size=8, collate_fn=unlabeled, num_workers=args.workers)
