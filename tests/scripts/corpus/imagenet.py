"""Supervised training on ImageNet's folders, as PyTorch's and torchvision's own scripts and their many copies do it."""

from __future__ import annotations

import json
import os
import random
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageEnhance, ImageOps
from torch import Tensor
from torch.utils.data import Dataset, default_collate
from torch.utils.data.distributed import DistributedSampler
from torchvision import datasets, transforms
from torchvision.transforms import autoaugment, v2
from torchvision.transforms.functional import InterpolationMode

from ..harness.script import Args, Epochs, script
from .common import IMAGENET_MEAN, IMAGENET_STD, normalize


@script(engine="dali", workers=2)
def pytorch_imagenet(args: Args, DataLoader: Any) -> Epochs:
    """pytorch/examples imagenet: crop, flip, normalize; a shuffled and a sequential loader."""
    train_dataset = datasets.ImageFolder(
        os.path.join(args.data, "train"),
        transforms.Compose(
            [transforms.RandomResizedCrop(32), transforms.RandomHorizontalFlip(), transforms.ToTensor(), normalize]
        ),
    )
    val_dataset = datasets.ImageFolder(
        os.path.join(args.data, "val"),
        transforms.Compose([transforms.Resize(40), transforms.CenterCrop(32), transforms.ToTensor(), normalize]),
    )
    train_loader = DataLoader(
        train_dataset, batch_size=8, shuffle=True, num_workers=args.workers, pin_memory=True, sampler=None
    )
    val_loader = DataLoader(val_dataset, batch_size=8, shuffle=False, num_workers=args.workers, pin_memory=True)
    for _ in range(args.epochs):
        yield train_loader
        yield val_loader


@script(engine="dali")
def imagenet_two_ranks(args: Args, DataLoader: Any) -> Epochs:
    """pytorch/examples imagenet under DDP: the second of two ranks, and the rest of the validation set for all."""
    world_size, rank = 2, 1
    train_dataset = datasets.ImageFolder(
        os.path.join(args.data, "train"),
        transforms.Compose(
            [transforms.RandomResizedCrop(32), transforms.RandomHorizontalFlip(), transforms.ToTensor(), normalize]
        ),
    )
    val_dataset = datasets.ImageFolder(
        os.path.join(args.data, "val"),
        transforms.Compose([transforms.Resize(40), transforms.CenterCrop(32), transforms.ToTensor(), normalize]),
    )
    train_sampler = DistributedSampler(train_dataset, num_replicas=world_size, rank=rank)
    val_sampler = DistributedSampler(val_dataset, world_size, rank, shuffle=False, drop_last=True)
    train_loader = DataLoader(
        train_dataset, batch_size=6, shuffle=(train_sampler is None), num_workers=args.workers, sampler=train_sampler
    )
    val_loader = DataLoader(val_dataset, batch_size=6, shuffle=False, num_workers=args.workers, sampler=val_sampler)
    for epoch in range(args.epochs):
        train_sampler.set_epoch(epoch)
        yield train_loader
        yield val_loader
        rest = torch.utils.data.Subset(val_dataset, range(len(val_loader.sampler) * world_size - 3, len(val_dataset)))
        yield DataLoader(rest, batch_size=6, shuffle=False, num_workers=args.workers)


class PresetTrain:
    """A class that only holds a Compose, as torchvision's references have it."""

    def __init__(self, crop_size: int, policy: str | None = None, erase: float = 0.0):
        steps: list[Any] = [transforms.RandomResizedCrop(crop_size, interpolation=InterpolationMode.BILINEAR)]
        steps.append(transforms.RandomHorizontalFlip(0.5))
        if policy == "ta_wide":
            steps.append(autoaugment.TrivialAugmentWide(interpolation=InterpolationMode.BILINEAR))
        elif policy is not None:
            steps.append(autoaugment.AutoAugment(autoaugment.AutoAugmentPolicy(policy)))
        steps += [transforms.PILToTensor(), transforms.ConvertImageDtype(torch.float), normalize]
        if erase > 0:
            steps.append(transforms.RandomErasing(p=erase))
        self.transforms = transforms.Compose(steps)

    def __call__(self, image: Any) -> Any:
        return self.transforms(image)


class PresetEval:
    def __init__(self, crop_size: int, resize_size: int):
        self.transforms = transforms.Compose(
            [
                transforms.Resize(resize_size, interpolation=InterpolationMode.BILINEAR),
                transforms.CenterCrop(crop_size),
                transforms.PILToTensor(),
                transforms.ConvertImageDtype(torch.float),
                normalize,
            ]
        )

    def __call__(self, image: Any) -> Any:
        return self.transforms(image)


@script(engine="dali")
def torchvision_presets(args: Args, DataLoader: Any) -> Epochs:
    """torchvision references/classification: presets as classes, TrivialAugment, erasing, explicit samplers."""
    train = datasets.ImageFolder(args.data / "train", PresetTrain(32, "ta_wide", 0.3))
    test = datasets.ImageFolder(args.data / "val", PresetEval(32, 40))
    train_sampler = torch.utils.data.RandomSampler(train)
    test_sampler = torch.utils.data.SequentialSampler(test)
    loader = DataLoader(train, batch_size=8, sampler=train_sampler, num_workers=args.workers, pin_memory=True)
    loader_test = DataLoader(test, batch_size=8, sampler=test_sampler, num_workers=args.workers, pin_memory=True)
    yield from [loader] * args.epochs
    yield loader_test


@script(engine="dali")
def torchvision_mixup_collate(args: Args, DataLoader: Any) -> Epochs:
    """torchvision references/classification: default_collate followed by a choice of MixUp and CutMix."""
    dataset = datasets.ImageFolder(args.data / "train", PresetTrain(32))
    mix = v2.RandomChoice([v2.MixUp(num_classes=36, alpha=0.2), v2.CutMix(num_classes=36, alpha=1.0)])

    def collate_fn(batch: list[Any]) -> Any:
        return mix(*default_collate(batch))

    loader = DataLoader(dataset, batch_size=12, shuffle=True, num_workers=args.workers, collate_fn=collate_fn)
    yield from [loader] * args.epochs


@script(engine="dali")
def torchvision_v2(args: Args, DataLoader: Any) -> Epochs:
    """torchvision's transforms.v2 as its documentation recommends them for speed: tensors, uint8, then float."""
    train = v2.Compose(
        [
            v2.ToImage(),
            v2.RandomResizedCrop(size=(32, 32), antialias=True),
            v2.RandomHorizontalFlip(p=0.5),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize(mean=IMAGENET_MEAN, std=IMAGENET_STD),
        ]
    )
    test = v2.Compose(
        [
            v2.Resize((36, 36), antialias=True),
            v2.CenterCrop(32),
            v2.PILToTensor(),
            v2.ToDtype(torch.float32, scale=True),
            v2.ToPureTensor(),
        ]
    )
    loader = DataLoader(datasets.ImageFolder(args.data / "train", train), batch_size=8, shuffle=True, drop_last=True)
    yield from [loader] * args.epochs
    yield DataLoader(datasets.ImageFolder(args.data / "val", test), batch_size=8)


@script(engine="dali")
def transfer_learning_tutorial(args: Args, DataLoader: Any) -> Epochs:
    """PyTorch's transfer learning tutorial: dicts of transforms, datasets and loaders by phase."""
    data_transforms = {
        "train": transforms.Compose(
            [transforms.RandomResizedCrop(32), transforms.RandomHorizontalFlip(), transforms.ToTensor(), normalize]
        ),
        "val": transforms.Compose([transforms.Resize(40), transforms.CenterCrop(32), transforms.ToTensor(), normalize]),
    }
    image_datasets = {x: datasets.ImageFolder(args.data / x, data_transforms[x]) for x in ("train", "val")}
    dataloaders = {
        x: DataLoader(image_datasets[x], batch_size=4, shuffle=True, num_workers=args.workers) for x in image_datasets
    }
    class_names = image_datasets["train"].classes
    for _ in range(args.epochs):
        for phase in ("train", "val"):
            assert len(dataloaders[phase].dataset.classes) <= len(class_names)
            yield dataloaders[phase]


class Lighting:
    """AlexNet's noise along the principal components of colors, on a tensor."""

    def __init__(self, alphastd: float):
        self.alphastd = alphastd
        self.eigval = torch.tensor([0.2175, 0.0188, 0.0045])
        self.eigvec = torch.tensor([[-0.5675, 0.7192, 0.4009], [-0.5808, -0.0045, -0.8140], [-0.5836, -0.6948, 0.4203]])

    def __call__(self, img: Tensor) -> Tensor:
        if self.alphastd == 0:
            return img
        alpha = img.new_empty(3).normal_(0, self.alphastd)
        shift = (self.eigvec * alpha.view(1, 3) * self.eigval.view(1, 3)).sum(1)
        return img.add(shift.view(3, 1, 1))


@script(engine="dali")
def imagenet_lighting(args: Args, DataLoader: Any) -> Epochs:
    """datasets.ImageNet with ColorJitter and AlexNet's noise by hand, as many ResNet and MobileNet scripts."""
    train = datasets.ImageNet(
        args.data, split="train",
        transform=transforms.Compose(
            [
                transforms.RandomResizedCrop(32, scale=(0.25, 1)),
                transforms.ColorJitter(brightness=0.4, contrast=0.4, saturation=0.4),
                transforms.RandomHorizontalFlip(),
                transforms.ToTensor(),
                Lighting(0.1),
                normalize,
            ]
        ),
    )  # fmt: skip
    val = datasets.ImageNet(
        args.data, split="val",
        transform=transforms.Compose(
            [transforms.Resize(36, Image.BICUBIC), transforms.CenterCrop(32), transforms.ToTensor(), normalize]
        ),
    )  # fmt: skip
    loader = DataLoader(train, batch_size=8, shuffle=True, num_workers=args.workers, pin_memory=True)
    yield from [loader] * args.epochs
    yield DataLoader(val, batch_size=8, num_workers=args.workers)


class SubPolicy:
    """Two operations of Pillow, each with a probability: how copies of AutoAugment are written."""

    def __init__(self, p1: float, name1: str, level1: int, p2: float, name2: str, level2: int):
        self.steps = ((p1, name1, level1), (p2, name2, level2))

    def __call__(self, img: Any) -> Any:
        for p, name, level in self.steps:
            if random.random() < p:
                img = self.apply(img, name, level)
        return img

    def apply(self, img: Any, name: str, level: int) -> Any:
        sign = random.choice([-1, 1])
        if name == "rotate":
            return img.rotate(3 * level * sign, fillcolor=(128, 128, 128))
        if name == "posterize":
            return ImageOps.posterize(img, 8 - level // 3)
        if name == "color":
            return ImageEnhance.Color(img).enhance(1 + 0.09 * level * sign)
        if name == "equalize":
            return ImageOps.equalize(img)
        return ImageOps.autocontrast(img)


class ImageNetPolicy:
    def __init__(self) -> None:
        self.policies = [
            SubPolicy(0.4, "posterize", 8, 0.6, "rotate", 9),
            SubPolicy(0.6, "autocontrast", 5, 0.6, "color", 5),
            SubPolicy(0.8, "equalize", 8, 0.6, "rotate", 3),
        ]

    def __call__(self, img: Any) -> Any:
        return self.policies[random.randint(0, len(self.policies) - 1)](img)


@script(engine="dali")
def autoaugment_copy(args: Args, DataLoader: Any) -> Epochs:
    """A copied AutoAugment policy between torchvision's transforms, as hundreds of repositories have it."""
    transform = transforms.Compose(
        [
            transforms.RandomResizedCrop(32),
            transforms.RandomHorizontalFlip(),
            ImageNetPolicy(),
            transforms.ToTensor(),
            normalize,
        ]
    )
    loader = DataLoader(
        datasets.ImageFolder(args.data / "train", transform), batch_size=8, shuffle=True, num_workers=args.workers
    )
    yield from [loader] * args.epochs


@script(engine="dali")
def random_choices(args: Args, DataLoader: Any) -> Epochs:
    """Stochastic choices of torchvision around each other: RandomApply, RandomChoice, RandomOrder, vertical flips."""
    transform = transforms.Compose(
        [
            transforms.Resize((40, 40)),
            transforms.RandomChoice([transforms.RandomCrop(32), transforms.CenterCrop(32)]),
            transforms.RandomOrder([transforms.RandomVerticalFlip(), transforms.RandomGrayscale(0.3)]),
            transforms.RandomApply([transforms.RandomRotation(15)], p=0.5),
            transforms.ToTensor(),
        ]
    )
    loader = DataLoader(datasets.ImageFolder(args.data / "train", transform), batch_size=8, shuffle=True)
    yield from [loader] * args.epochs


@script(engine="dali")
def long_tailed(args: Args, DataLoader: Any) -> Epochs:
    """Long-tailed recognition: an own dataset from a json table, weights by the square root."""

    class LongTailed(Dataset[Any]):
        def __init__(self, root: Any, transform: Any):
            with open(os.path.join(root, "boxes.json")) as file:
                names = sorted(json.load(file))
            self.img_path = [os.path.join(root, "images", f"{name}.jpg") for name in names]
            self.labels = [int(name.split("_")[0]) for name in names]
            self.transform = transform

        def __len__(self) -> int:
            return len(self.labels)

        def __getitem__(self, index: int) -> Any:
            path, label = self.img_path[index], self.labels[index]
            with open(path, "rb") as file:
                sample = Image.open(file).convert("RGB")
            if self.transform is not None:
                sample = self.transform(sample)
            return sample, label, index

    transform = transforms.Compose(
        [
            transforms.RandomResizedCrop(32),
            transforms.RandomHorizontalFlip(),
            transforms.ColorJitter(0.4, 0.4, 0.4, 0),
            transforms.ToTensor(),
            normalize,
        ]
    )
    dataset = LongTailed(args.data, transform)
    weights = 1 / np.sqrt(1 + np.asarray(dataset.labels))
    sampler = torch.utils.data.WeightedRandomSampler(weights.tolist(), len(dataset))
    loader = DataLoader(dataset, batch_size=8, sampler=sampler, num_workers=args.workers)
    yield from [loader] * args.epochs
