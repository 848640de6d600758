"""Self-distillation: many crops of each image, in several sizes, with masks, from samplers without an end."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import torch
from PIL import ImageFilter
from torch.utils.data import Sampler
from torch.utils.data.distributed import DistributedSampler
from torchvision import datasets, transforms

from ..harness.script import Args, Epochs, script
from .common import normalize
from .contrastive import MaybeBlur, MaybeSolarize


class DinoAugmentation:
    """Two global crops and several local ones."""

    def __init__(self, local_crops_number: int):
        flip_and_color = transforms.Compose(
            [
                transforms.RandomHorizontalFlip(p=0.5),
                transforms.RandomApply(
                    [transforms.ColorJitter(brightness=0.4, contrast=0.4, saturation=0.2, hue=0.1)], p=0.8
                ),
                transforms.RandomGrayscale(p=0.2),
            ]
        )
        to_tensor = transforms.Compose([transforms.ToTensor(), normalize])
        bicubic = transforms.InterpolationMode.BICUBIC
        self.first = transforms.Compose(
            [
                transforms.RandomResizedCrop(32, (0.4, 1.0), interpolation=bicubic),
                flip_and_color,
                MaybeBlur(1.0),
                to_tensor,
            ]
        )
        self.second = transforms.Compose(
            [
                transforms.RandomResizedCrop(32, (0.4, 1.0), interpolation=bicubic),
                flip_and_color,
                MaybeBlur(0.1),
                MaybeSolarize(0.2),
                to_tensor,
            ]
        )
        self.local_crops_number = local_crops_number
        self.local = transforms.Compose(
            [
                transforms.RandomResizedCrop(16, (0.05, 0.4), interpolation=bicubic),
                flip_and_color,
                MaybeBlur(0.5),
                to_tensor,
            ]
        )

    def __call__(self, image: Any) -> Any:
        crops = []
        crops.append(self.first(image))
        crops.append(self.second(image))
        for _ in range(self.local_crops_number):
            crops.append(self.local(image))
        return crops


@script(engine="dali")
def dino(args: Args, DataLoader: Any) -> Epochs:
    """facebookresearch/dino: global and local crops of different sizes in one list."""
    dataset = datasets.ImageFolder(args.data / "train", transform=DinoAugmentation(3))
    sampler = DistributedSampler(dataset, num_replicas=1, rank=0, shuffle=True)
    data_loader = DataLoader(
        dataset, sampler=sampler, batch_size=8, num_workers=args.workers, pin_memory=True, drop_last=True
    )
    for epoch in range(args.epochs):
        data_loader.sampler.set_epoch(epoch)
        yield data_loader


@script(engine="dali")
def dino_knn(args: Args, DataLoader: Any) -> Epochs:
    """facebookresearch/dino eval_knn: an ImageFolder that returns the index and no label."""

    class IndexedFolder(datasets.ImageFolder):
        def __getitem__(self, idx: int) -> Any:
            img, _ = super().__getitem__(idx)
            return img, idx

    transform = transforms.Compose(
        [transforms.Resize(36, interpolation=3), transforms.CenterCrop(32), transforms.ToTensor(), normalize]
    )
    dataset_train = IndexedFolder(args.data / "train", transform=transform)
    sampler = DistributedSampler(dataset_train, num_replicas=2, rank=0, shuffle=False)
    yield DataLoader(dataset_train, sampler=sampler, batch_size=8, num_workers=args.workers, drop_last=False)
    yield DataLoader(IndexedFolder(args.data / "val", transform=transform), batch_size=8, num_workers=args.workers)


class Endless(Sampler[int]):
    """Indices without an end and without a length; ends with an error if it is read to its end."""

    def __init__(self, sample_count: int, seed: int, start: int, step: int):
        self.sample_count, self.seed, self.start, self.step = sample_count, seed, start, step

    def __iter__(self) -> Iterator[int]:
        yield from itertools.islice(self.shuffled(), self.start, None, self.step)

    def shuffled(self) -> Iterator[int]:
        generator = torch.Generator().manual_seed(self.seed)
        for turn in itertools.count():
            if turn > 2000:
                raise RuntimeError("a sampler without an end was read to its end")
            yield from torch.randperm(self.sample_count, generator=generator).tolist()


@script(engine="dali", workers=1)
def dinov2_endless(args: Args, DataLoader: Any) -> Epochs:
    """facebookresearch/dinov2: an infinite sampler without a length, cut into pseudo-epochs by the loop."""
    transform = transforms.Compose(
        [
            transforms.RandomResizedCrop(32, interpolation=transforms.InterpolationMode.BICUBIC),
            transforms.RandomHorizontalFlip(),
            transforms.ToTensor(),
            normalize,
        ]
    )
    dataset = datasets.ImageFolder(args.data / "train", transform)
    loader = DataLoader(
        dataset, sampler=Endless(len(dataset), args.seed, start=0, step=2), batch_size=8, num_workers=args.workers,
        drop_last=True,
    )  # fmt: skip
    iterator = iter(loader)
    for _ in range(args.epochs):
        yield [next(iterator) for _ in range(5)]


@script(engine="dali")
def dinov2_masks(args: Args, DataLoader: Any) -> Epochs:
    """facebookresearch/dinov2: crops in a dict, and a collate function that stacks them and draws masks."""
    crop = transforms.Compose([transforms.RandomResizedCrop(32), transforms.ToTensor(), normalize])
    small = transforms.Compose([transforms.RandomResizedCrop(16), transforms.ToTensor(), normalize])

    def augment(image: Any) -> dict[str, Any]:
        return {
            "global_crops": [crop(image), crop(image)],
            "local_crops": [small(image) for _ in range(2)],
            "offsets": (),
        }

    def collate(samples: list[Any], ratio: float, n_tokens: int, dtype: torch.dtype) -> dict[str, Any]:
        n_global, n_local = len(samples[0][0]["global_crops"]), len(samples[0][0]["local_crops"])
        global_crops = torch.stack([s[0]["global_crops"][i] for i in range(n_global) for s in samples])
        local_crops = torch.stack([s[0]["local_crops"][i] for i in range(n_local) for s in samples])
        masks = torch.zeros(len(global_crops), n_tokens, dtype=torch.bool)
        for mask in masks:
            mask[torch.randperm(n_tokens)[: int(ratio * n_tokens)]] = True
        upperbound = int(masks.sum())
        return {
            "collated_global_crops": global_crops.to(dtype),
            "collated_local_crops": local_crops.to(dtype),
            "collated_masks": masks,
            "mask_indices_list": masks.flatten().nonzero().flatten(),
            "upperbound": upperbound,
        }

    dataset = datasets.ImageFolder(args.data / "train", augment, target_transform=lambda _: ())
    collate_fn = partial(collate, ratio=0.4, n_tokens=16, dtype=torch.half)
    loader = DataLoader(
        dataset, batch_size=8, shuffle=True, num_workers=args.workers, collate_fn=collate_fn, drop_last=True
    )
    yield from [loader] * args.epochs


@script(engine="dali", workers=1)
def ibot(args: Args, DataLoader: Any) -> Epochs:
    """bytedance/ibot: a folder that adds random masks, with a ratio that begins in the second epoch."""

    class MaskedFolder(datasets.ImageFolder):
        epoch = 0

        def set_epoch(self, epoch: int) -> None:
            self.epoch = epoch

        def __getitem__(self, index: int) -> Any:
            images, target = super().__getitem__(index)
            masks = []
            for image in images:
                side = image.shape[1] // 8
                high = 0 if self.epoch < 1 else int(random.uniform(0.2, 0.4) * side * side)
                mask = np.hstack([np.zeros(side * side - high), np.ones(high)]).astype(bool)
                np.random.shuffle(mask)
                masks.append(mask.reshape(side, side))
            return images, target, masks

    dataset = MaskedFolder(args.data / "train", transform=DinoAugmentation(1))
    loader = DataLoader(dataset, batch_size=8, shuffle=True, num_workers=args.workers, drop_last=True)
    for epoch in range(args.epochs):
        loader.dataset.set_epoch(epoch)
        yield loader


@script(engine="dali")
def swav(args: Args, DataLoader: Any) -> Epochs:
    """facebookresearch/swav: a subclass of ImageFolder that opens the image itself and makes crops of two sizes."""

    class RandomPilBlur:
        def __call__(self, img: Any) -> Any:
            if np.random.rand() <= 0.5:
                return img
            return img.filter(ImageFilter.GaussianBlur(np.random.rand() * 1.9 + 0.1))

    class MultiCropFolder(datasets.ImageFolder):
        def __init__(self, data_path: Any, size_crops: list[int], nmb_crops: list[int], scales: list[Any], size: int):
            super().__init__(data_path)
            if size >= 0:
                self.samples = self.samples[:size]
            jitter = transforms.RandomApply([transforms.ColorJitter(0.8, 0.8, 0.8, 0.2)], p=0.8)
            color = transforms.Compose([jitter, transforms.RandomGrayscale(p=0.2), RandomPilBlur()])
            self.trans: list[Any] = []
            for size_crop, count, scale in zip(size_crops, nmb_crops, scales, strict=True):
                crop = transforms.RandomResizedCrop(size_crop, scale=scale)
                flip = transforms.RandomHorizontalFlip(p=0.5)
                self.trans += [transforms.Compose([crop, flip, color, transforms.ToTensor(), normalize])] * count

        def __getitem__(self, index: int) -> Any:
            path, _ = self.samples[index]
            image = self.loader(path)
            return [trans(image) for trans in self.trans]

    dataset = MultiCropFolder(args.data / "train", [32, 16], [2, 3], [(0.14, 1.0), (0.05, 0.14)], -1)
    sampler = DistributedSampler(dataset, num_replicas=1, rank=0)
    loader = DataLoader(
        dataset, sampler=sampler, batch_size=8, num_workers=args.workers, pin_memory=True, drop_last=True
    )
    for epoch in range(args.epochs):
        loader.sampler.set_epoch(epoch)
        yield loader
