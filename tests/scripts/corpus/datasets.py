"""torchvision's dataset classes, in the scripts that fine-tune and probe on them."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.data import random_split
from torchvision import datasets, transforms
from torchvision.models import ResNet50_Weights

from ..harness.script import Args, Epochs, script
from .common import normalize


def train_transform() -> Any:
    return transforms.Compose(
        [transforms.RandomResizedCrop(32), transforms.RandomHorizontalFlip(), transforms.ToTensor(), normalize]
    )


def test_transform() -> Any:
    return transforms.Compose([transforms.Resize(40), transforms.CenterCrop(32), transforms.ToTensor(), normalize])


@script(engine="dali")
def food101(args: Args, DataLoader: Any) -> Epochs:
    """Fine-tuning on Food101: train and test splits of one class."""
    train = datasets.Food101(root=args.data, split="train", transform=train_transform())
    test = datasets.Food101(root=args.data, split="test", transform=test_transform())
    loader = DataLoader(train, batch_size=8, shuffle=True, num_workers=args.workers, pin_memory=True)
    yield from [loader] * args.epochs
    yield DataLoader(test, batch_size=8, num_workers=args.workers)


@script(engine="dali")
def oxford_pets(args: Args, DataLoader: Any) -> Epochs:
    """Fine-tuning on OxfordIIITPet: torch's random_split of the trainval split, with a generator."""
    dataset = datasets.OxfordIIITPet(args.data, split="trainval", target_types="category", transform=test_transform())
    generator = torch.Generator().manual_seed(42)
    train, val = random_split(dataset, [0.75, 0.25], generator=generator)
    loader = DataLoader(train, batch_size=8, shuffle=True, num_workers=args.workers)
    yield from [loader] * args.epochs
    yield DataLoader(val, batch_size=8)


@script(engine="torch")
def traffic_signs(args: Args, DataLoader: Any) -> Epochs:
    """GTSRB: .ppm files, warps and colors without flips, squashed test images."""
    transform = transforms.Compose(
        [
            transforms.Resize((36, 36)),
            transforms.RandomAffine(degrees=10, translate=(0.1, 0.1), scale=(0.9, 1.1)),
            transforms.ColorJitter(brightness=0.3),
            transforms.ToTensor(),
        ]
    )
    train = datasets.GTSRB(args.data, split="train", transform=transform)
    test = datasets.GTSRB(args.data, "test", transforms.Compose([transforms.Resize((36, 36)), transforms.ToTensor()]))
    loader = DataLoader(train, batch_size=8, shuffle=True, num_workers=args.workers)
    yield from [loader] * args.epochs
    yield DataLoader(test, batch_size=8)


@script(engine="dali")
def aircraft(args: Args, DataLoader: Any) -> Epochs:
    """Fine-grained recognition on FGVCAircraft: a large resize, then a random crop."""
    transform = transforms.Compose(
        [
            transforms.Resize((44, 44), transforms.InterpolationMode.BILINEAR),
            transforms.RandomCrop((36, 36)),
            transforms.RandomHorizontalFlip(),
            transforms.ToTensor(),
            normalize,
        ]
    )
    dataset = datasets.FGVCAircraft(args.data, "trainval", annotation_level="variant", transform=transform)
    loader = DataLoader(dataset, batch_size=8, shuffle=True, num_workers=args.workers, drop_last=True)
    yield from [loader] * args.epochs


@script(engine="dali")
def eurosat(args: Args, DataLoader: Any) -> Epochs:
    """Remote sensing on EuroSAT: lengths of a split computed by hand, flips both ways."""
    transform = transforms.Compose(
        [
            transforms.Resize((32, 32)),
            transforms.RandomHorizontalFlip(),
            transforms.RandomVerticalFlip(),
            transforms.ToTensor(),
        ]
    )
    dataset = datasets.EuroSAT(root=args.data, transform=transform)
    n_train = int(0.8 * len(dataset))
    train, test = random_split(dataset, [n_train, len(dataset) - n_train], generator=torch.Generator().manual_seed(0))
    loader = DataLoader(train, batch_size=8, shuffle=True, num_workers=args.workers)
    yield from [loader] * args.epochs
    yield DataLoader(test, batch_size=8, shuffle=False)


@script(engine="dali")
def celeba_attributes(args: Args, DataLoader: Any) -> Epochs:
    """CelebA: the targets are a vector of attributes and an identity, the crop is in the middle."""
    transform = transforms.Compose(
        [
            transforms.CenterCrop(48),
            transforms.Resize(32),
            transforms.RandomHorizontalFlip(),
            transforms.ToTensor(),
            transforms.Normalize((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
        ]
    )
    dataset = datasets.CelebA(args.data, split="train", target_type=["attr", "identity"], transform=transform)
    loader = DataLoader(dataset, batch_size=8, shuffle=True, num_workers=args.workers)
    yield from [loader] * args.epochs


@script(engine="dali")
def textures_probe(args: Args, DataLoader: Any) -> Epochs:
    """A linear probe on DTD: features of the whole set once, with the transforms that came with the weights."""
    dataset = datasets.DTD(
        args.data, split="train", transform=ResNet50_Weights.IMAGENET1K_V2.transforms(crop_size=32, resize_size=36)
    )
    loader = DataLoader(dataset, batch_size=10, shuffle=False, num_workers=args.workers)
    yield loader
    yield loader


@script(engine="dali")
def inaturalist(args: Args, DataLoader: Any) -> Epochs:
    """INaturalist with two levels of labels as a tuple."""
    dataset = datasets.INaturalist(
        args.data / "inat", version="2021_train_mini", target_type=["full", "order"], transform=train_transform()
    )
    loader = DataLoader(dataset, batch_size=8, shuffle=True, num_workers=args.workers)
    for _ in range(args.epochs):
        yield [(images, full, order) for images, (full, order) in loader]


@script(engine="dali")
def imagenette_fastai(args: Args, DataLoader: Any) -> Epochs:
    """fast.ai-like training on Imagenette: squashed items, transforms of the batch in the loop."""
    item_transforms = transforms.Compose([transforms.Resize((40, 40)), transforms.ToTensor()])
    dls = {
        "train": DataLoader(
            datasets.Imagenette(args.data, split="train", size="160px", transform=item_transforms), batch_size=8,
            shuffle=True, num_workers=args.workers, drop_last=True,
        ),
        "valid": DataLoader(
            datasets.Imagenette(args.data, split="val", size="160px", transform=item_transforms), batch_size=16
        ),
    }  # fmt: skip
    for _ in range(args.epochs):
        yield [(normalize(xb[..., 4:36, 4:36]), yb) for xb, yb in dls["train"]]
        yield dls["valid"]


@script(engine="dali")
def country_probe(args: Args, DataLoader: Any) -> Epochs:
    """openai/CLIP's linear probes: Country211 with bicubic resizing and convert("RGB") as a function."""

    def to_rgb(image: Any) -> Any:
        return image.convert("RGB")

    preprocess = transforms.Compose(
        [
            transforms.Resize(32, interpolation=transforms.InterpolationMode.BICUBIC),
            transforms.CenterCrop(32),
            to_rgb,
            transforms.ToTensor(),
            transforms.Normalize((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)),
        ]
    )
    yield DataLoader(datasets.Country211(args.data, "train", preprocess), batch_size=10, num_workers=args.workers)
    yield DataLoader(datasets.Country211(args.data, "valid", preprocess), batch_size=10, num_workers=args.workers)


@script(engine="torch")
def fake_data(args: Args, DataLoader: Any) -> Epochs:
    """FakeData, as torchvision's and many others' benchmarks take it with --fake-data."""
    dataset = datasets.FakeData(
        24, (3, 40, 40), 24, transforms.Compose([transforms.CenterCrop(32), transforms.ToTensor()])
    )
    loader = DataLoader(dataset, 8, True, num_workers=args.workers, pin_memory=True)
    yield from [loader] * args.epochs
