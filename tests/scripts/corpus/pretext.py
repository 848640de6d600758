"""Masked images, rotations, puzzles, and several crops of an image at test time."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import default_collate
from torch.utils.data.distributed import DistributedSampler
from torchvision import datasets, transforms

from ..harness.script import Args, Epochs, script
from .common import normalize


@script(engine="dali")
def simmim(args: Args, DataLoader: Any) -> Epochs:
    """microsoft/SimMIM: a transform that returns the image and a random mask, collated by hand."""

    class MaskGenerator:
        def __init__(self, tokens: int, ratio: float):
            self.tokens, self.count = tokens, math.ceil(tokens * ratio)

        def __call__(self) -> Any:
            mask = np.zeros(self.tokens, dtype=int)
            mask[np.random.permutation(self.tokens)[: self.count]] = 1
            return mask.reshape(4, 4)

    class MaskedTransform:
        def __init__(self) -> None:
            self.transform_img = transforms.Compose(
                [
                    transforms.Lambda(lambda img: img.convert("RGB") if img.mode != "RGB" else img),
                    transforms.RandomResizedCrop(32, scale=(0.67, 1.0), ratio=(3 / 4, 4 / 3)),
                    transforms.RandomHorizontalFlip(),
                    transforms.ToTensor(),
                    normalize,
                ]
            )
            self.mask_generator = MaskGenerator(16, 0.6)

        def __call__(self, img: Any) -> Any:
            return self.transform_img(img), self.mask_generator()

    def collate_fn(batch: list[Any]) -> Any:
        columns = [default_collate([item[0][k] for item in batch]) for k in range(len(batch[0][0]))]
        return [*columns, default_collate([item[1] for item in batch])]

    dataset = datasets.ImageFolder(args.data / "train", MaskedTransform())
    sampler = DistributedSampler(dataset, num_replicas=1, rank=0, shuffle=True)
    loader = DataLoader(
        dataset, 8, sampler=sampler, num_workers=args.workers, pin_memory=True, drop_last=True, collate_fn=collate_fn
    )
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        yield loader


@script(engine="torch")
def rotation_prediction(args: Args, DataLoader: Any) -> Epochs:
    """gidariss/FeatureLearningRotNet: four rotations of each image, made while collating."""

    def rotations(batch: list[Any]) -> tuple[Tensor, Tensor]:
        images = [torch.rot90(image, k, (1, 2)) for image, _ in batch for k in range(4)]
        return torch.stack(images), torch.arange(4).repeat(len(batch))

    transform = transforms.Compose(
        [transforms.RandomCrop(32, padding=4), transforms.RandomHorizontalFlip(), transforms.ToTensor(), normalize]
    )
    dataset = datasets.CIFAR100(args.data, train=True, transform=transform)
    loader = DataLoader(dataset, batch_size=4, shuffle=True, num_workers=args.workers, collate_fn=rotations)
    yield from [loader] * args.epochs


@script(engine="dali")
def jigsaw(args: Args, DataLoader: Any) -> Epochs:
    """Jigsaw and context prediction: nine patches of the finished tensor, cut by a function at the end."""

    def patches(image: Tensor) -> Tensor:
        tiles = image.unfold(1, 12, 12).unfold(2, 12, 12)
        return tiles.reshape(3, 9, 12, 12).transpose(0, 1).contiguous()

    transform = transforms.Compose(
        [
            transforms.Resize(44),
            transforms.RandomCrop(36),
            transforms.RandomGrayscale(0.3),
            transforms.ToTensor(),
            normalize,
            transforms.Lambda(patches),
        ]
    )
    dataset = datasets.ImageFolder(args.data / "train", transform)
    loader = DataLoader(dataset, batch_size=8, shuffle=True, num_workers=args.workers)
    yield from [loader] * args.epochs


@script(engine="dali")
def ten_crop_testing(args: Args, DataLoader: Any) -> Epochs:
    """Ten crops at test time, stacked by a lambda: what torchvision's documentation of TenCrop shows."""
    transform = transforms.Compose(
        [
            transforms.Resize(44),
            transforms.TenCrop(32),
            transforms.Lambda(lambda crops: torch.stack([transforms.ToTensor()(crop) for crop in crops])),
            transforms.Lambda(lambda crops: torch.stack([normalize(crop) for crop in crops])),
        ]
    )
    loader = DataLoader(datasets.ImageFolder(args.data / "val", transform), batch_size=4, num_workers=args.workers)
    yield [(inputs.flatten(0, 1), target) for inputs, target in loader]
    yield loader
