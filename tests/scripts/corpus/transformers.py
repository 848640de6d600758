"""Training image classifiers as DeiT, Swin, ConvNeXt, MAE and timm do it."""

from __future__ import annotations

import math
import os
import random
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageFilter, ImageOps
from timm.data import FastCollateMixup, ImageDataset, Mixup, create_transform
from timm.data.loader import fast_collate
from torch.utils.data import Dataset, Sampler, SubsetRandomSampler
from torch.utils.data.distributed import DistributedSampler
from torchvision import datasets, transforms
from torchvision.transforms.functional import InterpolationMode

from ..harness.script import Args, Epochs, script
from .common import IMAGENET_MEAN, IMAGENET_STD, normalize


class AnnotatedFolder(datasets.ImageFolder):
    """An ImageFolder whose files come from a table and not from the folder, as DeiT's INatDataset."""

    def __init__(self, root: Any, annotations: str, transform: Any = None):
        self.root = str(root)
        self.loader = datasets.folder.default_loader
        self.transform, self.target_transform = transform, None
        with open(os.path.join(root, annotations)) as file:
            self.samples = []
            for line in file:
                name, label = line.split()
                self.samples.append((os.path.join(root, "images", name), int(label)))
        self.nb_classes = len({label for _, label in self.samples})


class RepeatedAugmentation(Sampler[int]):
    """Every image three times in a row before ranks take turns, as DeiT's RASampler."""

    def __init__(self, dataset: Any, num_replicas: int, rank: int):
        self.dataset, self.num_replicas, self.rank, self.epoch = dataset, num_replicas, rank, 0
        self.num_samples = math.ceil(3 * len(dataset) / num_replicas)
        self.num_selected = len(dataset) // num_replicas

    def __iter__(self) -> Any:
        generator = torch.Generator()
        generator.manual_seed(self.epoch)
        order = torch.randperm(len(self.dataset), generator=generator).repeat_interleave(3).tolist()
        order += order[: self.num_samples * self.num_replicas - len(order)]
        return iter(order[self.rank :: self.num_replicas][: self.num_selected])

    def __len__(self) -> int:
        return self.num_selected

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch


@script(engine="dali")
def deit(args: Args, DataLoader: Any) -> Epochs:
    """facebookresearch/deit: timm's transforms, an ImageFolder with its own list, repeated augmentation."""
    transform = create_transform(
        input_size=32, is_training=True, color_jitter=0.3, auto_augment="rand-m7-mstd0.5-inc1",
        interpolation="bicubic", re_prob=0.25, re_mode="pixel", re_count=1,
    )  # fmt: skip
    dataset_train = AnnotatedFolder(args.data, "train_map.txt", transform=transform)
    steps = [transforms.Resize(int(32 / 0.875), interpolation=3), transforms.CenterCrop(32), transforms.ToTensor()]
    dataset_val = datasets.ImageFolder(args.data / "val", transforms.Compose([*steps, normalize]))
    sampler_train = RepeatedAugmentation(dataset_train, num_replicas=2, rank=0)
    data_loader_train = DataLoader(
        dataset_train, sampler=sampler_train, batch_size=8, num_workers=args.workers, pin_memory=True, drop_last=True
    )
    data_loader_val = DataLoader(
        dataset_val, sampler=torch.utils.data.SequentialSampler(dataset_val), batch_size=int(1.5 * 8),
        num_workers=args.workers, pin_memory=True, drop_last=False,
    )  # fmt: skip
    for epoch in range(args.epochs):
        sampler_train.set_epoch(epoch)
        yield data_loader_train
    yield data_loader_val


class PilBlur:
    """Pillow's blur with a probability and a radius of its own."""

    def __init__(self, p: float = 0.5, radius_min: float = 0.1, radius_max: float = 2.0):
        self.prob, self.radius_min, self.radius_max = p, radius_min, radius_max

    def __call__(self, img: Any) -> Any:
        if random.random() > self.prob:
            return img
        return img.filter(ImageFilter.GaussianBlur(radius=random.uniform(self.radius_min, self.radius_max)))


class PilSolarize:
    def __init__(self, p: float = 0.2):
        self.p = p

    def __call__(self, img: Any) -> Any:
        return ImageOps.solarize(img) if random.random() < self.p else img


class PilGray:
    def __init__(self, p: float = 0.2):
        self.p = p
        self.transform = transforms.Grayscale(3)

    def __call__(self, img: Any) -> Any:
        if random.random() < self.p:
            return self.transform(img)
        return img


@script(engine="dali")
def deit_three_augment(args: Args, DataLoader: Any) -> Epochs:
    """facebookresearch/deit with --ThreeAugment: the transform is put in place after the loader was made."""
    dataset_train = datasets.ImageFolder(args.data / "train", create_transform(input_size=32, is_training=True))
    data_loader_train = DataLoader(
        dataset_train, sampler=torch.utils.data.RandomSampler(dataset_train), batch_size=8, drop_last=True
    )
    data_loader_train.dataset.transform = transforms.Compose(
        [
            transforms.Resize(36, interpolation=3),
            transforms.RandomCrop(32, padding=4, padding_mode="reflect"),
            transforms.RandomHorizontalFlip(),
            transforms.RandomChoice([PilGray(p=1.0), PilSolarize(p=1.0), PilBlur(p=1.0)]),
            transforms.ColorJitter(0.3, 0.3, 0.3),
            transforms.ToTensor(),
            transforms.Normalize(mean=torch.tensor(IMAGENET_MEAN), std=torch.tensor(IMAGENET_STD)),
        ]
    )
    for _ in range(args.epochs):
        yield data_loader_train


class MapFileDataset(Dataset[Any]):
    """Paths and labels from a tab-separated list, as Swin's cached folder and its ImageNet-22K dataset."""

    def __init__(self, root: Any, ann_file: str, prefix: str, transform: Any = None):
        with open(os.path.join(root, ann_file)) as file:
            rows = [line.rstrip("\n").split("\t") for line in file]
        self.samples = [(os.path.join(root, prefix, name), int(label)) for name, label in rows]
        self.transform = transform

    def __getitem__(self, index: int) -> Any:
        path, target = self.samples[index]
        with open(path, "rb") as file:
            image = Image.open(file).convert("RGB")
        if self.transform is not None:
            image = self.transform(image)
        return image, target

    def __len__(self) -> int:
        return len(self.samples)


@script(engine="dali", workers=1)
def swin(args: Args, DataLoader: Any) -> Epochs:
    """microsoft/Swin-Transformer: an own dataset from a list, this rank's indices sampled, timm's Mixup on batches."""
    dataset_train = MapFileDataset(
        args.data, "train_map.txt", "images",
        create_transform(
            input_size=32, is_training=True, color_jitter=0.4, auto_augment="rand-m7-mstd0.5-inc1", re_prob=0.25,
            re_mode="pixel", interpolation="bicubic",
        ),
    )  # fmt: skip
    indices = np.arange(0, len(dataset_train), 1)
    loader = DataLoader(
        dataset_train, sampler=SubsetRandomSampler(indices), batch_size=8, num_workers=args.workers,
        pin_memory=True, drop_last=True,
    )  # fmt: skip
    mixup_fn = Mixup(mixup_alpha=0.8, cutmix_alpha=1.0, label_smoothing=0.1, num_classes=36)
    for _ in range(args.epochs):
        yield [(*mixup_fn(samples, targets), targets) for samples, targets in loader]


@script(engine="dali")
def convnext(args: Args, DataLoader: Any) -> Epochs:
    """facebookresearch/ConvNeXt: timm's transforms with the file list checked; a warped evaluation size."""
    dataset_train = datasets.ImageFolder(
        os.path.join(args.data, "train"),
        transform=create_transform(
            input_size=32, is_training=True, color_jitter=0.4, auto_augment="rand-m7-mstd0.5-inc1",
            interpolation="bicubic", re_prob=0.25, re_mode="pixel", re_count=1, mean=IMAGENET_MEAN, std=IMAGENET_STD,
        ),
    )  # fmt: skip
    dataset_val = datasets.ImageFolder(
        os.path.join(args.data, "val"),
        transforms.Compose(
            [transforms.Resize((32, 32), interpolation=InterpolationMode.BICUBIC), transforms.ToTensor(), normalize]
        ),
    )
    assert len(dataset_train.class_to_idx) == 36
    sampler_train = DistributedSampler(dataset_train, num_replicas=1, rank=0, shuffle=True, seed=args.seed)
    loader = DataLoader(dataset_train, sampler=sampler_train, batch_size=8, num_workers=args.workers, drop_last=True)
    loader_val = DataLoader(
        dataset_val, sampler=torch.utils.data.SequentialSampler(dataset_val), batch_size=12, drop_last=False
    )
    for epoch in range(args.epochs):
        loader.sampler.set_epoch(epoch)
        yield loader
    yield loader_val


@script(engine="dali")
def mae(args: Args, DataLoader: Any) -> Epochs:
    """facebookresearch/mae pretraining: bicubic crops by PIL's number, the last of two ranks."""
    transform_train = transforms.Compose(
        [
            transforms.RandomResizedCrop(32, scale=(0.2, 1.0), interpolation=3),  # 3 is bicubic
            transforms.RandomHorizontalFlip(),
            transforms.ToTensor(),
            normalize,
        ]
    )
    dataset_train = datasets.ImageFolder(os.path.join(args.data, "train"), transform=transform_train)
    sampler_train = DistributedSampler(dataset_train, num_replicas=2, rank=1, shuffle=True)
    data_loader_train = DataLoader(
        dataset_train, sampler=sampler_train, batch_size=8, num_workers=args.workers, pin_memory=True, drop_last=True
    )
    for epoch in range(args.epochs):
        data_loader_train.sampler.set_epoch(epoch)
        yield data_loader_train


@script(engine="dali")
def timm_train(args: Args, DataLoader: Any) -> Epochs:
    """timm's train.py: ImageDataset, uint8 batches by fast_collate, normalized after the copy."""
    dataset_train = ImageDataset(str(args.data / "train"))
    dataset_train.transform = create_transform(
        32, is_training=True, use_prefetcher=True, auto_augment="rand-m9-mstd0.5", color_jitter=None, hflip=0.5
    )
    dataset_eval = ImageDataset(str(args.data / "val"))
    dataset_eval.transform = create_transform(32, is_training=False, use_prefetcher=True, crop_pct=0.9)
    loader = DataLoader(
        dataset=dataset_train, batch_size=8, shuffle=True, num_workers=args.workers, sampler=None,
        collate_fn=fast_collate, pin_memory=False, drop_last=True, persistent_workers=args.workers > 0,
    )  # fmt: skip
    loader_eval = DataLoader(dataset_eval, batch_size=8, shuffle=False, collate_fn=fast_collate)
    mean = torch.tensor([x * 255 for x in IMAGENET_MEAN]).view(1, 3, 1, 1)
    std = torch.tensor([x * 255 for x in IMAGENET_STD]).view(1, 3, 1, 1)
    for _ in range(args.epochs):
        yield [(images, images.float().sub_(mean).div_(std).sum((1, 2, 3)), target) for images, target in loader]
    yield loader_eval


@script(engine="torch")
def timm_mixup_collate(args: Args, DataLoader: Any) -> Epochs:
    """timm's train.py with --mixup and the prefetcher: FastCollateMixup mixes uint8 images while collating."""
    dataset = ImageDataset(str(args.data / "train"))
    dataset.transform = create_transform(32, is_training=True, use_prefetcher=True, color_jitter=0.4)
    collate_fn = FastCollateMixup(mixup_alpha=0.8, cutmix_alpha=1.0, label_smoothing=0.1, num_classes=36)
    loader = DataLoader(
        dataset, batch_size=12, shuffle=True, num_workers=args.workers, collate_fn=collate_fn, drop_last=True
    )
    for epoch in range(args.epochs):
        collate_fn.mixup_enabled = epoch < 1  # --mixup-off-epoch
        yield loader


@script(engine="dali", workers=1)
def timm_multi_epochs(args: Args, DataLoader: Any) -> Epochs:
    """timm's MultiEpochsDataLoader: a subclass whose batch sampler never ends, so that workers stay."""

    class Forever:
        def __init__(self, sampler: Any):
            self.sampler = sampler

        def __iter__(self) -> Any:
            while True:
                yield from iter(self.sampler)

    class MultiEpochsLoader(DataLoader):  # type: ignore[misc]
        def __init__(self, *arguments: Any, **named: Any):
            super().__init__(*arguments, **named)
            self._DataLoader__initialized = False
            self.batch_sampler = Forever(self.batch_sampler)
            self._DataLoader__initialized = True
            self.iterator = super().__iter__()

        def __len__(self) -> int:
            return len(self.batch_sampler.sampler)

        def __iter__(self) -> Any:
            for _ in range(len(self)):
                yield next(self.iterator)

    dataset = datasets.ImageFolder(args.data / "train", create_transform(32, is_training=True, hflip=0.5))
    loader = MultiEpochsLoader(dataset, batch_size=8, shuffle=True, num_workers=args.workers, drop_last=True)
    yield from [loader] * args.epochs
