"""What frameworks do with a loader: look into it, copy it, take it apart, give its workers orders."""

from __future__ import annotations

import copy
import itertools
import pickle
import random
from typing import Any

import numpy as np
import torch
from torch.utils.data import random_split
from torchvision import datasets, transforms

from ..harness.script import Args, Epochs, script
from .common import PLAIN, train_set


@script(engine="torch")
def lightning_module(args: Args, DataLoader: Any) -> Epochs:
    """Lightning-like: a DataModule with setup, train_dataloader, val_dataloader and test_dataloader."""

    class CifarModule:
        def __init__(self, data_dir: Any, batch_size: int):
            self.data_dir, self.batch_size = data_dir, batch_size
            self.transform = transforms.Compose([transforms.ToTensor(), transforms.Normalize((0.5,) * 3, (0.5,) * 3)])

        def setup(self) -> None:
            full = datasets.CIFAR100(self.data_dir, train=True, transform=self.transform)
            self.train, self.val = random_split(full, [0.75, 0.25], generator=torch.Generator().manual_seed(42))
            self.test = datasets.CIFAR100(self.data_dir, train=False, transform=self.transform)

        def train_dataloader(self) -> Any:
            return DataLoader(self.train, batch_size=self.batch_size, shuffle=True, num_workers=args.workers)

        def val_dataloader(self) -> Any:
            return DataLoader(self.val, batch_size=self.batch_size, num_workers=args.workers)

        def test_dataloader(self) -> Any:
            return DataLoader(self.test, batch_size=self.batch_size)

    module = CifarModule(args.data, 6)
    module.setup()
    train, val = module.train_dataloader(), module.val_dataloader()
    yield itertools.islice(val, 2)  # the sanity check
    for _ in range(args.epochs):
        yield train
        yield val
    yield module.test_dataloader()


@script(engine="dali")
def ignite_engine(args: Args, DataLoader: Any) -> Epochs:
    """ignite-like: an engine that counts iterations and takes a new iterator whenever one ends."""

    class Engine:
        def __init__(self, loader: Any):
            self.loader, self.iterator = loader, iter(loader)

        def next_batch(self) -> Any:
            try:
                return next(self.iterator)
            except StopIteration:
                self.iterator = iter(self.loader)
                return next(self.iterator)

    engine = Engine(DataLoader(train_set(args), batch_size=9, shuffle=True, num_workers=args.workers))
    for _ in range(args.epochs):
        yield [engine.next_batch() for _ in range(4)]


@script(engine="dali")
def accelerate_skip(args: Args, DataLoader: Any) -> Epochs:
    """huggingface/accelerate: skip_first_batches to go on in the middle of an epoch."""
    from accelerate import skip_first_batches

    loader = DataLoader(train_set(args, PLAIN), batch_size=8, shuffle=False, num_workers=args.workers)
    yield skip_first_batches(loader, 2)
    yield loader


@script(engine="dali")
def rebuilt_by_framework(args: Args, DataLoader: Any) -> Epochs:
    """Frameworks that take a loader apart by its attributes and make another one with their own sampler."""
    loader = DataLoader(train_set(args), batch_size=8, shuffle=True, num_workers=args.workers, drop_last=True)
    names = (
        "num_workers", "collate_fn", "pin_memory", "timeout", "worker_init_fn", "multiprocessing_context",
        "generator", "prefetch_factor", "persistent_workers", "pin_memory_device",
    )  # fmt: skip
    settings = {name: getattr(loader, name) for name in names}
    sampler = torch.utils.data.DistributedSampler(loader.dataset, num_replicas=2, rank=0, shuffle=False)
    rebuilt = DataLoader(
        loader.dataset, batch_size=loader.batch_size, drop_last=loader.drop_last, sampler=sampler, **settings
    )
    yield rebuilt
    assert loader.collate_fn([(torch.zeros(3), 1), (torch.zeros(3), 2)])[0].shape == (2, 3)
    assert isinstance(loader.sampler, torch.utils.data.RandomSampler)
    yield loader


@script(engine="some")
def batch_size_finder(args: Args, DataLoader: Any) -> Epochs:
    """A search for the largest batch: batch_size cannot be set on a loader, so another one is made."""
    dataset = train_set(args)
    loader = DataLoader(dataset, batch_size=4, shuffle=True, num_workers=args.workers)
    for batch_size in (6, 12):
        try:
            loader.batch_size = batch_size
        except ValueError:
            loader = DataLoader(loader.dataset, batch_size=batch_size, shuffle=True, num_workers=args.workers)
        yield loader


@script(engine="dali")
def another_dataset(args: Args, DataLoader: Any) -> Epochs:
    """An attempt to change the dataset of a loader, which torch refuses with a ValueError."""
    loader = DataLoader(train_set(args, PLAIN), batch_size=8, num_workers=args.workers)
    for name, value in (("dataset", None), ("sampler", range(3)), ("drop_last", True), ("batch_sampler", [[0]])):
        try:
            setattr(loader, name, value)
        except ValueError:
            continue
        raise AssertionError(f"loader.{name} was set without an error")
    yield loader


@script(engine="dali")
def framework_dispatch(args: Args, DataLoader: Any) -> Epochs:
    """A trainer that takes torch's DataLoader and otherwise any iterable, as many frameworks tell them apart."""
    loader = DataLoader(train_set(args), batch_size=8, shuffle=True, num_workers=args.workers)
    if not isinstance(loader, torch.utils.data.DataLoader):
        raise TypeError(f"expected a torch.utils.data.DataLoader, got {type(loader).__name__}")
    yield from [loader] * args.epochs


@script(engine="torch")
def pickled_and_copied(args: Args, DataLoader: Any) -> Epochs:
    """Loaders that are sent to other processes or copied: pickle.dumps and copy.copy."""
    loader = DataLoader(train_set(args, PLAIN), batch_size=8, shuffle=True, num_workers=args.workers)
    yield pickle.loads(pickle.dumps(loader))
    yield copy.copy(loader)


@script(engine="dali", workers=1)
def reproducible_workers(args: Args, DataLoader: Any) -> Epochs:
    """PyTorch's notes on reproducibility: workers seed numpy and random from torch, the loader has a generator."""

    def seed_worker(worker_id: int) -> None:
        worker_seed = torch.initial_seed() % 2**32
        np.random.seed(worker_seed)
        random.seed(worker_seed)

    generator = torch.Generator()
    generator.manual_seed(args.seed)
    loader = DataLoader(
        train_set(args), batch_size=8, shuffle=True, num_workers=args.workers, worker_init_fn=seed_worker,
        generator=generator,
    )  # fmt: skip
    yield from [loader] * args.epochs


@script(engine="dali", workers=1)
def fork_context(args: Args, DataLoader: Any) -> Epochs:
    """A start method of its own for the workers, and a time limit for each batch."""
    loader = DataLoader(
        train_set(args),
        batch_size=8,
        shuffle=True,
        num_workers=args.workers,
        multiprocessing_context="fork",
        timeout=30,
    )
    yield from [loader] * args.epochs


@script(engine="dali", workers=1)
def out_of_order(args: Args, DataLoader: Any) -> Epochs:
    """Batches as they come: in_order=False, with one worker so that the order is known here."""
    loader = DataLoader(train_set(args, PLAIN), batch_size=8, num_workers=args.workers, in_order=False)
    yield from [loader] * args.epochs
