"""What nearly every training script defines at its top."""

from __future__ import annotations

from typing import Any

from torchvision import datasets, transforms

from ..harness.script import Args

__all__ = ["IMAGENET_MEAN", "IMAGENET_STD", "PLAIN", "TRAIN", "normalize", "train_set"]

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)

normalize = transforms.Normalize(mean=IMAGENET_MEAN, std=IMAGENET_STD)

TRAIN = transforms.Compose(
    [transforms.RandomResizedCrop(32), transforms.RandomHorizontalFlip(), transforms.ToTensor(), normalize]
)
"""The crop and flip that nearly all share. Scripts that change it make their own."""
PLAIN = transforms.Compose([transforms.Resize((32, 32)), transforms.ToTensor()])


def train_set(args: Args, transform: Any = TRAIN) -> Any:
    return datasets.ImageFolder(args.data / "train", transform)
