"""What a loop changes after the loader was made: torch follows in the next epoch."""

from __future__ import annotations

from typing import Any

from torchvision import transforms

from ..harness.script import Args, Epochs, script
from .common import PLAIN, TRAIN, normalize, train_set


@script(engine="dali")
def progressive_resizing(args: Args, DataLoader: Any) -> Epochs:
    """fast.ai's progressive resizing: an item of the dataset's Compose is replaced between epochs."""
    transform = transforms.Compose(
        [transforms.RandomResizedCrop(24), transforms.RandomHorizontalFlip(), transforms.ToTensor(), normalize]
    )
    loader = DataLoader(train_set(args, transform), batch_size=8, shuffle=True, num_workers=args.workers)
    for size in (24, 32, 40):
        loader.dataset.transform.transforms[0] = transforms.RandomResizedCrop(size)
        yield loader


@script(engine="dali")
def augmentation_off(args: Args, DataLoader: Any) -> Epochs:
    """Augmentation switched off for the last epochs, or for a pass over the training set: dataset.transform = plain."""
    loader = DataLoader(train_set(args), batch_size=8, shuffle=False, num_workers=args.workers)
    yield loader
    loader.dataset.transform = PLAIN
    yield loader
    loader.dataset.transform = TRAIN
    yield loader


@script(engine="dali")
def stronger_jitter(args: Args, DataLoader: Any) -> Epochs:
    """A schedule on an attribute of a transform: ColorJitter grows, the dataset and its Compose stay."""
    jitter = transforms.ColorJitter(brightness=(0.9, 1.0))
    loader = DataLoader(
        train_set(args, transforms.Compose([transforms.Resize((32, 32)), jitter, transforms.ToTensor()])), batch_size=8
    )
    yield loader
    jitter.brightness = (0.2, 0.4)
    yield loader


@script(engine="dali")
def strong_jitter(args: Args, DataLoader: Any) -> Epochs:
    """Dark pictures made brighter and flatter: the order in which ColorJitter does that is drawn, and shows."""
    transform = transforms.Compose(
        [
            transforms.Resize((32, 32)),
            transforms.ColorJitter(brightness=(1.5, 2.0), contrast=(0.3, 0.6), saturation=0.4, hue=0.1),
            transforms.ToTensor(),
        ]
    )
    loader = DataLoader(train_set(args, transform), batch_size=12, shuffle=True, num_workers=args.workers)
    yield from [loader] * args.epochs


@script(engine="dali")
def fewer_samples(args: Args, DataLoader: Any) -> Epochs:
    """Debugging on a few samples: dataset.samples and target_transform are replaced after the loader was made."""
    dataset = train_set(args, PLAIN)
    loader = DataLoader(dataset, batch_size=4, num_workers=args.workers)
    yield loader
    dataset.samples = dataset.samples[::3]
    yield loader
    dataset.target_transform = lambda y: 100 + y
    yield loader
