"""Contrastive learning: two or more views of each image."""

from __future__ import annotations

import random
from typing import Any

import torch
from PIL import Image, ImageFilter, ImageOps
from torch import Tensor
from torch.utils.data.distributed import DistributedSampler
from torchvision import datasets, transforms

from ..harness.script import Args, Epochs, script
from .common import normalize


class TwoCrops:
    """Two views as a list, as MoCo and SimSiam have it."""

    def __init__(self, base_transform: Any):
        self.base_transform = base_transform

    def __call__(self, x: Any) -> Any:
        q = self.base_transform(x)
        k = self.base_transform(x)
        return [q, k]


class BlurOfSigmas:
    """Pillow's blur with a radius between two numbers of a list."""

    def __init__(self, sigma: tuple[float, float] = (0.1, 2.0)):
        self.sigma = sigma

    def __call__(self, x: Any) -> Any:
        sigma = random.uniform(self.sigma[0], self.sigma[1])
        return x.filter(ImageFilter.GaussianBlur(radius=sigma))


class Solarize:
    def __call__(self, x: Any) -> Any:
        return ImageOps.solarize(x)


@script(engine="dali")
def moco_v1(args: Args, DataLoader: Any) -> Epochs:
    """facebookresearch/moco, first version: gray before jitter, two crops."""
    augmentation = [
        transforms.RandomResizedCrop(32, scale=(0.2, 1.0)),
        transforms.RandomGrayscale(p=0.2),
        transforms.ColorJitter(0.4, 0.4, 0.4, 0.4),
        transforms.RandomHorizontalFlip(),
        transforms.ToTensor(),
        normalize,
    ]
    train_dataset = datasets.ImageFolder(args.data / "train", TwoCrops(transforms.Compose(augmentation)))
    train_loader = DataLoader(
        train_dataset, batch_size=8, shuffle=True, num_workers=args.workers, pin_memory=True, drop_last=True
    )
    for _ in range(args.epochs):
        yield train_loader


@script(engine="dali", workers=1)
def moco_v2(args: Args, DataLoader: Any) -> Epochs:
    """facebookresearch/moco with --aug-plus: a blur by Pillow in RandomApply, a DistributedSampler."""
    augmentation = [
        transforms.RandomResizedCrop(32, scale=(0.2, 1.0)),
        transforms.RandomApply([transforms.ColorJitter(0.4, 0.4, 0.4, 0.1)], p=0.8),
        transforms.RandomGrayscale(p=0.2),
        transforms.RandomApply([BlurOfSigmas((0.1, 2.0))], p=0.5),
        transforms.RandomHorizontalFlip(),
        transforms.ToTensor(),
        normalize,
    ]
    train_dataset = datasets.ImageFolder(args.data / "train", TwoCrops(transforms.Compose(augmentation)))
    train_sampler = DistributedSampler(train_dataset, num_replicas=1, rank=0)
    train_loader = DataLoader(
        train_dataset, batch_size=8, shuffle=(train_sampler is None), num_workers=args.workers, pin_memory=True,
        sampler=train_sampler, drop_last=True,
    )  # fmt: skip
    for epoch in range(args.epochs):
        train_sampler.set_epoch(epoch)
        yield train_loader


class TwoDifferentCrops:
    def __init__(self, base_transform1: Any, base_transform2: Any):
        self.base_transform1, self.base_transform2 = base_transform1, base_transform2

    def __call__(self, x: Any) -> Any:
        im1 = self.base_transform1(x)
        im2 = self.base_transform2(x)
        return [im1, im2]


@script(engine="dali")
def moco_v3(args: Args, DataLoader: Any) -> Epochs:
    """facebookresearch/moco-v3: two different augmentations, solarization by Pillow in one of them."""

    def augmentation(blur: float, solarize: float) -> Any:
        return transforms.Compose(
            [
                transforms.RandomResizedCrop(32, scale=(0.08, 1.0)),
                transforms.RandomApply([transforms.ColorJitter(0.4, 0.4, 0.2, 0.1)], p=0.8),
                transforms.RandomGrayscale(p=0.2),
                transforms.RandomApply([BlurOfSigmas()], p=blur),
                transforms.RandomApply([Solarize()], p=solarize),
                transforms.RandomHorizontalFlip(),
                transforms.ToTensor(),
                normalize,
            ]
        )

    train_dataset = datasets.ImageFolder(
        args.data / "train", TwoDifferentCrops(augmentation(1.0, 0.0), augmentation(0.1, 0.2))
    )
    loader = DataLoader(train_dataset, batch_size=8, shuffle=True, num_workers=args.workers, drop_last=True)
    yield from [loader] * args.epochs


@script(engine="dali")
def simsiam(args: Args, DataLoader: Any) -> Epochs:
    """facebookresearch/simsiam: views for training, a plain loader of the same folder for the linear probe."""
    augmentation = transforms.Compose(
        [
            transforms.RandomResizedCrop(32, scale=(0.2, 1.0)),
            transforms.RandomApply([transforms.ColorJitter(0.4, 0.4, 0.4, 0.1)], p=0.8),
            transforms.RandomGrayscale(p=0.2),
            transforms.RandomApply([BlurOfSigmas()], p=0.5),
            transforms.RandomHorizontalFlip(),
            transforms.ToTensor(),
            normalize,
        ]
    )
    probe = transforms.Compose(
        [transforms.RandomResizedCrop(32), transforms.RandomHorizontalFlip(), transforms.ToTensor(), normalize]
    )
    pretraining = datasets.ImageFolder(args.data / "train", TwoCrops(augmentation))
    yield DataLoader(pretraining, batch_size=8, shuffle=True, num_workers=args.workers, drop_last=True)
    yield DataLoader(datasets.ImageFolder(args.data / "train", probe), batch_size=8, shuffle=True)


class ViewGenerator:
    """As many views as asked for, in a list made by a comprehension."""

    def __init__(self, base_transform: Any, n_views: int = 2):
        self.base_transform, self.n_views = base_transform, n_views

    def __call__(self, x: Any) -> Any:
        return [self.base_transform(x) for _ in range(self.n_views)]


@script(engine="torch")
def simclr_stl10(args: Args, DataLoader: Any) -> Epochs:
    """sthalles/SimCLR: STL10's unlabeled split, torchvision's blur, views generated in a list."""
    size, s = 32, 1
    pipeline = transforms.Compose(
        [
            transforms.RandomResizedCrop(size=size),
            transforms.RandomHorizontalFlip(),
            transforms.RandomApply([transforms.ColorJitter(0.8 * s, 0.8 * s, 0.8 * s, 0.2 * s)], p=0.8),
            transforms.RandomGrayscale(p=0.2),
            transforms.GaussianBlur(kernel_size=int(0.1 * size)),
            transforms.ToTensor(),
        ]
    )
    dataset = datasets.STL10(args.data, split="unlabeled", transform=ViewGenerator(pipeline, 2), download=False)
    loader = DataLoader(dataset, batch_size=8, shuffle=True, num_workers=args.workers, pin_memory=True, drop_last=True)
    for _ in range(args.epochs):
        yield [torch.cat(images, dim=0) for images, _ in loader]


@script(engine="torch")
def byol(args: Args, DataLoader: Any) -> Epochs:
    """sthalles/PyTorch-BYOL: a list of pipelines, each run on the image."""

    class MultiViewInjector:
        def __init__(self, *pipelines: Any):
            self.transforms = pipelines[0]
            self.random_flip = transforms.RandomHorizontalFlip()

        def __call__(self, sample: Any) -> Any:
            return [transform(sample) for transform in self.transforms]

    color = transforms.ColorJitter(0.8, 0.8, 0.8, 0.2)
    pipeline = transforms.Compose(
        [
            transforms.RandomResizedCrop(size=32),
            transforms.RandomHorizontalFlip(),
            transforms.RandomApply([color], p=0.8),
            transforms.RandomGrayscale(p=0.2),
            BlurOfSigmas(),
            transforms.ToTensor(),
        ]
    )
    dataset = datasets.CIFAR100(args.data, train=True, transform=MultiViewInjector([pipeline, pipeline]))
    loader = DataLoader(dataset, batch_size=8, num_workers=args.workers, drop_last=False, shuffle=True)
    for _ in range(args.epochs):
        yield [(view_1, view_2, target) for (view_1, view_2), target in loader]


class MaybeBlur:
    def __init__(self, p: float):
        self.p = p

    def __call__(self, img: Any) -> Any:
        if random.random() < self.p:
            sigma = random.random() * 1.9 + 0.1
            return img.filter(ImageFilter.GaussianBlur(sigma))
        return img


class MaybeSolarize:
    def __init__(self, p: float):
        self.p = p

    def __call__(self, img: Any) -> Any:
        if random.random() < self.p:
            return ImageOps.solarize(img)
        return img


@script(engine="dali")
def barlow_twins(args: Args, DataLoader: Any) -> Epochs:
    """facebookresearch/barlowtwins: a transform without arguments, views as a tuple, bicubic by Pillow's constant."""

    class Transform:
        def __init__(self) -> None:
            self.transform = self.one(1.0, 0.0)
            self.transform_prime = self.one(0.1, 0.2)

        def one(self, blur: float, solarize: float) -> Any:
            return transforms.Compose(
                [
                    transforms.RandomResizedCrop(32, interpolation=transforms.InterpolationMode.BICUBIC),
                    transforms.RandomHorizontalFlip(p=0.5),
                    transforms.RandomApply(
                        [transforms.ColorJitter(brightness=0.4, contrast=0.4, saturation=0.2, hue=0.1)], p=0.8
                    ),
                    transforms.RandomGrayscale(p=0.2),
                    MaybeBlur(p=blur),
                    MaybeSolarize(p=solarize),
                    transforms.ToTensor(),
                    normalize,
                ]
            )

        def __call__(self, x: Any) -> Any:
            y1 = self.transform(x)
            y2 = self.transform_prime(x)
            return y1, y2

    dataset = datasets.ImageFolder(args.data / "train", Transform())
    sampler = DistributedSampler(dataset, num_replicas=2, rank=0)
    loader = DataLoader(dataset, batch_size=6, num_workers=args.workers, pin_memory=True, sampler=sampler)
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        yield [(y1, y2, step) for step, ((y1, y2), _) in enumerate(loader, start=epoch * len(loader))]


@script(engine="torch")
def supcon(args: Args, DataLoader: Any) -> Epochs:
    """HobbitLong/SupContrast: two views of CIFAR, concatenated in the loop."""
    train_transform = transforms.Compose(
        [
            transforms.RandomResizedCrop(size=32, scale=(0.2, 1.0)),
            transforms.RandomHorizontalFlip(),
            transforms.RandomApply([transforms.ColorJitter(0.4, 0.4, 0.4, 0.1)], p=0.8),
            transforms.RandomGrayscale(p=0.2),
            transforms.ToTensor(),
            transforms.Normalize(mean=(0.5071, 0.4867, 0.4408), std=(0.2675, 0.2565, 0.2761)),
        ]
    )
    train_dataset = datasets.CIFAR100(root=str(args.data), transform=TwoCrops(train_transform), download=False)
    train_loader = DataLoader(
        train_dataset, batch_size=8, shuffle=True, num_workers=args.workers, pin_memory=True, sampler=None
    )
    for _ in range(args.epochs):
        yield [(torch.cat([images[0], images[1]], dim=0), labels) for images, labels in train_loader]


@script(engine="dali")
def solo_learn(args: Args, DataLoader: Any) -> Epochs:
    """vturrisi/solo-learn: an index beside the image, a list of N-crop transforms in a class that holds a list."""

    def with_index(dataset_class: Any) -> Any:
        class DatasetWithIndex(dataset_class):  # type: ignore[misc]
            def __getitem__(self, index: int) -> Any:
                return (index, *super().__getitem__(index))

        return DatasetWithIndex

    class NCropAugmentation:
        def __init__(self, transform: Any, num_crops: int):
            self.transform, self.num_crops = transform, num_crops

        def __call__(self, x: Image.Image) -> list[Tensor]:
            return [self.transform(x) for _ in range(self.num_crops)]

    class FullTransform:
        def __init__(self, transforms_: list[Any]):
            self.transforms = transforms_

        def __call__(self, x: Image.Image) -> list[Tensor]:
            out: list[Tensor] = []
            for transform in self.transforms:
                out.extend(transform(x))
            return out

    large = transforms.Compose([transforms.RandomResizedCrop(32, (0.2, 1.0)), transforms.ToTensor(), normalize])
    small = transforms.Compose(
        [
            transforms.RandomResizedCrop(16, (0.05, 0.2)),
            transforms.RandomHorizontalFlip(),
            transforms.ToTensor(),
            normalize,
        ]
    )
    transform = FullTransform([NCropAugmentation(large, 2), NCropAugmentation(small, 2)])
    dataset = with_index(datasets.ImageFolder)(args.data / "train", transform)
    loader = DataLoader(dataset, batch_size=8, shuffle=True, num_workers=args.workers, pin_memory=True, drop_last=True)
    yield from [loader] * args.epochs
