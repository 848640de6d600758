"""How a loop reads a loader: several iterators at once, for ever, in parts."""

from __future__ import annotations

import itertools
import random
from typing import Any

import numpy as np
import torch
from torchvision import datasets, transforms

from ..harness.script import Args, Epochs, script
from .common import PLAIN, TRAIN, train_set


@script(engine="dali")
def zip_two_loaders(args: Args, DataLoader: Any) -> Epochs:
    """Domain adaptation, mutual learning: two shuffled loaders of one dataset side by side."""
    dataset = train_set(args)
    source = DataLoader(dataset, batch_size=8, shuffle=True, num_workers=args.workers, drop_last=True)
    target = DataLoader(dataset, batch_size=8, shuffle=True, num_workers=args.workers, drop_last=True)
    for _ in range(args.epochs):
        yield zip(source, target, strict=False)


@script(engine="dali", workers=1)
def zip_one_loader(args: Args, DataLoader: Any) -> Epochs:
    """Mixing two random batches: one loader zipped with itself."""
    loader = DataLoader(train_set(args), batch_size=8, shuffle=True, num_workers=args.workers)
    for _ in range(args.epochs):
        yield zip(loader, loader, strict=False)


@script(engine="dali")
def peek_while_training(args: Args, DataLoader: Any) -> Epochs:
    """A look at next(iter(loader)) before and in the middle of an epoch, for a picture in the log."""
    loader = DataLoader(train_set(args), batch_size=8, shuffle=True, num_workers=args.workers)
    images, _ = next(iter(loader))
    assert images.shape[1:] == (3, 32, 32)
    for _ in range(args.epochs):
        steps = []
        for step, batch in enumerate(loader):
            if step == 2:
                sample, labels = next(iter(loader))
                assert len(sample) == len(labels) == 8
            steps.append(batch)
        yield steps


@script(engine="dali")
def nested_loops(args: Args, DataLoader: Any) -> Epochs:
    """Retrieval: every batch of queries against every batch of the gallery, out of one loader."""
    loader = DataLoader(datasets.ImageFolder(args.data / "val", PLAIN), batch_size=8, num_workers=args.workers)
    yield [
        (query, gallery, query_labels, gallery_labels)
        for query, query_labels in loader
        for gallery, gallery_labels in loader
    ]


@script(engine="dali")
def endless_generator(args: Args, DataLoader: Any) -> Epochs:
    """StyleGAN2 and diffusion scripts: a generator that goes over the loader for ever, training by iterations."""

    def sample_data(loader: Any) -> Any:
        while True:
            yield from loader

    transform = transforms.Compose(
        [transforms.RandomHorizontalFlip(), transforms.Resize(32), transforms.CenterCrop(32), transforms.ToTensor(),
         transforms.Normalize((0.5, 0.5, 0.5), (0.5, 0.5, 0.5), inplace=True)]
    )  # fmt: skip
    loader = DataLoader(train_set(args, transform), batch_size=8, shuffle=True, drop_last=True)
    data = sample_data(loader)
    yield [next(data) for _ in range(len(loader))]
    yield [next(data) for _ in range(len(loader))]


@script(engine="dali")
def cycle_batches(args: Args, DataLoader: Any) -> Epochs:
    """itertools.cycle over a small loader beside a large one: the first epoch's batches come back."""
    small = DataLoader(datasets.ImageFolder(args.data / "val", TRAIN), batch_size=8, shuffle=True, drop_last=True)
    large = DataLoader(train_set(args), batch_size=8, shuffle=True, drop_last=True, num_workers=args.workers)
    for _ in range(args.epochs):
        yield zip(large, itertools.cycle(small), strict=False)


@script(engine="dali", workers=1)
def early_break(args: Args, DataLoader: Any) -> Epochs:
    """A limit of batches per epoch by break, then whole epochs; workers are kept."""
    loader = DataLoader(
        train_set(args), batch_size=8, shuffle=True, num_workers=args.workers, persistent_workers=True,
        prefetch_factor=4, pin_memory=True,
    )  # fmt: skip
    steps = []
    for i, batch in enumerate(loader):
        if i == 2:
            break
        steps.append(batch)
    yield steps
    yield loader
    yield loader


@script(engine="dali")
def seed_per_fold(args: Args, DataLoader: Any) -> Epochs:
    """set_seed at the start of each fold: folds with the same seed see the same order and the same crops."""

    def set_seed(seed: int) -> None:
        random.seed(seed)
        np.random.seed(seed)
        torch.manual_seed(seed)

    for fold in range(3):
        set_seed(args.seed + fold // 2)
        loader = DataLoader(train_set(args), batch_size=8, shuffle=True, num_workers=args.workers)
        yield loader


@script(engine="dali")
def mean_and_std(args: Args, DataLoader: Any) -> Epochs:
    """Statistics of a dataset: batches of one image, each of its own size."""
    loader = DataLoader(train_set(args, transforms.ToTensor()), batch_size=1, shuffle=False, num_workers=args.workers)
    yield [(data.mean((0, 2, 3)), data.std((0, 2, 3))) for data, _ in loader][:0]
    yield loader


@script(engine="dali")
def dict_of_loaders(args: Args, DataLoader: Any) -> Epochs:
    """Passes over (loader, loader) by library functions that only know an iterable: enumerate, islice, len, sorted."""
    loader = DataLoader(train_set(args), batch_size=8, shuffle=True, num_workers=args.workers)
    loaders = {"train": loader, "eval": DataLoader(datasets.ImageFolder(args.data / "val", PLAIN), batch_size=8)}
    for _ in range(args.epochs):
        total = sum(len(loaders[name].dataset) for name in sorted(loaders))
        assert total == len(loader.dataset) + 20
        yield [batch for _, batch in enumerate(loaders["train"])]
        yield itertools.islice(loaders["eval"], 1)
