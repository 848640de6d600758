"""Which samples, in which order: weights, classes, ranks, repetitions, restarts."""

from __future__ import annotations

import copy
import math
import random
from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import (
    BatchSampler,
    Dataset,
    RandomSampler,
    Sampler,
    SequentialSampler,
    SubsetRandomSampler,
    WeightedRandomSampler,
)
from torch.utils.data.distributed import DistributedSampler
from torchvision import datasets, transforms

from ..harness.script import Args, Epochs, script
from .common import PLAIN, TRAIN, normalize


@script(engine="dali")
def weighted_classes(args: Args, DataLoader: Any) -> Epochs:
    """Imbalanced classes: weights from class counts, as many samples as the dataset has."""
    dataset = datasets.ImageFolder(args.data / "grouped", TRAIN)
    counts = Counter(dataset.targets)
    weights = torch.DoubleTensor([1.0 / counts[target] for target in dataset.targets])
    sampler = WeightedRandomSampler(weights, len(weights))
    loader = DataLoader(dataset, batch_size=8, sampler=sampler, num_workers=args.workers, pin_memory=True)
    yield from [loader] * args.epochs


@script(engine="dali")
def hard_mining(args: Args, DataLoader: Any) -> Epochs:
    """Hard example mining: the weights of the sampler are replaced after each epoch."""
    dataset = datasets.ImageFolder(args.data / "train", PLAIN)
    sampler = WeightedRandomSampler(torch.ones(len(dataset)), 24, replacement=False)
    loader = DataLoader(dataset, batch_size=8, sampler=sampler, num_workers=args.workers)
    yield loader
    sampler.weights = torch.tensor([1.0] * 24 + [0.0] * (len(dataset) - 24), dtype=torch.double)
    yield loader
    sampler.num_samples = 12
    yield loader


class Balanced(Sampler[int]):
    """The same number of each class, of an oversampled length, with numpy's generator."""

    def __init__(self, dataset: Any):
        labels = np.asarray(dataset.targets)
        self.of_class = [np.flatnonzero(labels == c) for c in np.unique(labels)]
        self.each = max(len(found) for found in self.of_class)

    def __iter__(self) -> Iterator[int]:
        drawn = [np.random.choice(found, self.each, replace=len(found) < self.each) for found in self.of_class]
        return iter(np.random.permutation(np.concatenate(drawn)).tolist())

    def __len__(self) -> int:
        return self.each * len(self.of_class)


@script(engine="dali")
def imbalanced_sampler(args: Args, DataLoader: Any) -> Epochs:
    """ufoym/imbalanced-dataset-sampler: an own sampler that draws with numpy."""
    dataset = datasets.ImageFolder(args.data / "grouped", PLAIN)
    loader = DataLoader(dataset, batch_size=8, sampler=Balanced(dataset), num_workers=args.workers)
    yield from [loader] * args.epochs


class Identities(Sampler[int]):
    """P identities with K images each in a row, as person re-identification needs them."""

    def __init__(self, labels: list[int], batch_size: int, num_instances: int):
        self.k, self.pids_per_batch = num_instances, batch_size // num_instances
        self.index: dict[int, list[int]] = defaultdict(list)
        for i, pid in enumerate(labels):
            self.index[pid].append(i)
        self.length = sum(len(found) - len(found) % self.k for found in self.index.values())

    def __iter__(self) -> Iterator[int]:
        chunks = {}
        for pid, found in self.index.items():
            shuffled = copy.deepcopy(found)
            random.shuffle(shuffled)
            chunks[pid] = [shuffled[i : i + self.k] for i in range(0, len(found) - self.k + 1, self.k)]
        available, final = list(self.index), []
        while len(available) >= self.pids_per_batch:
            for pid in random.sample(available, self.pids_per_batch):
                final.extend(chunks[pid].pop(0))
                if not chunks[pid]:
                    available.remove(pid)
        return iter(final)

    def __len__(self) -> int:
        return self.length


@script(engine="dali")
def reid_triplets(args: Args, DataLoader: Any) -> Epochs:
    """KaiyangZhou/deep-person-reid: four values per sample, a sampler whose length is an estimate."""

    class People(Dataset[Any]):
        def __init__(self, items: list[Any], transform: Any):
            self.items, self.transform = items, transform

        def __len__(self) -> int:
            return len(self.items)

        def __getitem__(self, index: int) -> Any:
            img_path, pid, camid = self.items[index]
            img = Image.open(img_path).convert("RGB")
            return self.transform(img), pid, camid, img_path

    folder = datasets.ImageFolder(args.data / "grouped")
    items = [(path, pid, i % 3) for i, (path, pid) in enumerate(folder.imgs)]
    augment = transforms.Compose(
        [
            transforms.Resize((48, 24)),
            transforms.RandomHorizontalFlip(p=0.5),
            transforms.Pad(4),
            transforms.RandomCrop((48, 24)),
            transforms.ToTensor(),
            normalize,
            transforms.RandomErasing(p=0.5, value=IMAGE_MEAN),
        ]
    )
    sampler = Identities([pid for _, pid, _ in items], 8, 4)
    loader = DataLoader(People(items, augment), batch_size=8, sampler=sampler, num_workers=args.workers, drop_last=True)
    yield from [loader] * args.epochs
    plain = transforms.Compose([transforms.Resize((48, 24)), transforms.ToTensor(), normalize])
    yield DataLoader(People(items, plain), batch_size=8, shuffle=False, drop_last=False)


IMAGE_MEAN = (0.485, 0.456, 0.406)


class Episodes(Sampler[Any]):
    """N classes, K + Q images of each: few-shot learning's batches."""

    def __init__(self, labels: list[int], n_way: int, per_class: int, episodes: int):
        array = np.asarray(labels)
        self.of_class = [torch.from_numpy(np.flatnonzero(array == c)) for c in np.unique(array)]
        self.n_way, self.per_class, self.episodes = n_way, per_class, episodes

    def __len__(self) -> int:
        return self.episodes

    def __iter__(self) -> Iterator[Any]:
        for _ in range(self.episodes):
            batch = []
            for c in torch.randperm(len(self.of_class))[: self.n_way]:
                found = self.of_class[c]
                batch.append(found[torch.randperm(len(found))[: self.per_class]])
            yield torch.stack(batch).t().reshape(-1)


@script(engine="dali")
def few_shot(args: Args, DataLoader: Any) -> Epochs:
    """Prototypical networks: episodes from a batch sampler that yields tensors of indices."""
    dataset = datasets.ImageFolder(args.data / "grouped", PLAIN)
    loader = DataLoader(
        dataset, batch_sampler=Episodes(dataset.targets, 3, 4, 6), num_workers=args.workers, pin_memory=True
    )
    yield from [loader] * args.epochs


@script(engine="dali")
def torch_batch_sampler(args: Args, DataLoader: Any) -> Epochs:
    """MAE's and DETR's way: torch's BatchSampler around a random sampler, given as batch_sampler."""
    dataset = datasets.ImageFolder(args.data / "train", TRAIN)
    batch_sampler_train = BatchSampler(RandomSampler(dataset), 8, drop_last=True)
    data_loader_train = DataLoader(dataset, batch_sampler=batch_sampler_train, num_workers=args.workers)
    val = datasets.ImageFolder(args.data / "val", PLAIN)
    data_loader_val = DataLoader(val, 8, sampler=SequentialSampler(val), drop_last=False)
    for _ in range(args.epochs):
        yield data_loader_train
    yield data_loader_val


@script(engine="dali")
def with_replacement(args: Args, DataLoader: Any) -> Epochs:
    """A fixed number of iterations per epoch: RandomSampler with replacement and num_samples."""
    dataset = datasets.ImageFolder(args.data / "train", TRAIN)
    sampler = RandomSampler(dataset, replacement=True, num_samples=50)
    loader = DataLoader(dataset, batch_size=10, sampler=sampler, num_workers=args.workers)
    yield from [loader] * args.epochs


@script(engine="dali")
def limited_epochs(args: Args, DataLoader: Any) -> Epochs:
    """Part of the data per epoch: RandomSampler(num_samples=...) in a loader made anew each time."""
    dataset = datasets.ImageFolder(args.data / "train", PLAIN)
    for _ in range(args.epochs + 1):
        yield DataLoader(
            dataset, batch_size=6, sampler=RandomSampler(dataset, num_samples=18), num_workers=args.workers
        )


@script(engine="dali")
def resumable(args: Args, DataLoader: Any) -> Epochs:
    """Restarts in the middle of an epoch: a distributed sampler that begins at an index."""

    class Resumable(DistributedSampler):  # type: ignore[type-arg]
        start_index = 0

        def __iter__(self) -> Any:
            return iter(list(super().__iter__())[self.start_index :])

        def __len__(self) -> int:
            return super().__len__() - self.start_index

    dataset = datasets.ImageFolder(args.data / "train", TRAIN)
    sampler = Resumable(dataset, num_replicas=2, rank=1, seed=5)
    loader = DataLoader(dataset, batch_size=6, sampler=sampler, num_workers=args.workers)
    sampler.set_epoch(3)
    sampler.start_index = 6
    yield loader
    sampler.set_epoch(4)
    sampler.start_index = 0
    yield loader


@script(engine="dali")
def seeded_generator(args: Args, DataLoader: Any) -> Epochs:
    """An order of one's own: shuffle with a seeded generator, and one generator for two loaders."""
    generator = torch.Generator()
    generator.manual_seed(args.seed)
    dataset = datasets.ImageFolder(args.data / "train", PLAIN)
    first = DataLoader(dataset, batch_size=8, shuffle=True, generator=generator)
    second = DataLoader(dataset, batch_size=8, shuffle=True, generator=generator)
    for _ in range(args.epochs):
        yield first
        yield second


@script(engine="dali")
def validation_ranks(args: Args, DataLoader: Any) -> Epochs:
    """Evaluation on all ranks one after the other: DistributedSampler without shuffling takes every second sample."""
    dataset = datasets.ImageFolder(args.data / "val", PLAIN)
    for rank in range(3):
        sampler = DistributedSampler(dataset, num_replicas=3, rank=rank, shuffle=False)
        yield DataLoader(dataset, batch_size=4, sampler=sampler, num_workers=args.workers)


@script(engine="dali")
def same_epoch_again(args: Args, DataLoader: Any) -> Epochs:
    """set_epoch forgotten: a DistributedSampler then repeats its order in every epoch, with other crops."""
    dataset = datasets.ImageFolder(args.data / "train", TRAIN)
    sampler = DistributedSampler(dataset, num_replicas=1, rank=0, shuffle=True, seed=2)
    loader = DataLoader(dataset, batch_size=8, sampler=sampler, num_workers=args.workers)
    yield from [loader] * args.epochs


@script(engine="dali")
def list_as_sampler(args: Args, DataLoader: Any) -> Epochs:
    """Any iterable is a sampler: a list of indices, also with repetitions, and a numpy permutation."""
    dataset = datasets.ImageFolder(args.data / "train", PLAIN)
    yield DataLoader(dataset, batch_size=4, sampler=[5, 3, 3, 30, 1, 0, 35], num_workers=args.workers)
    yield DataLoader(dataset, batch_size=4, sampler=np.random.default_rng(1).permutation(len(dataset)))


@script(engine="dali")
def cross_validation(args: Args, DataLoader: Any) -> Epochs:
    """k-fold: one dataset, SubsetRandomSampler for the training and the validation indices of each fold."""
    dataset = datasets.ImageFolder(args.data / "train", PLAIN)
    folds = np.array_split(np.random.default_rng(0).permutation(len(dataset)), 3)
    for fold in folds[:2]:
        rest = np.setdiff1d(np.arange(len(dataset)), fold)
        yield DataLoader(dataset, batch_size=8, sampler=SubsetRandomSampler(rest), num_workers=args.workers)
        yield DataLoader(dataset, batch_size=8, sampler=SubsetRandomSampler(fold), num_workers=args.workers)


@script(engine="dali")
def curriculum_length(args: Args, DataLoader: Any) -> Epochs:
    """A sampler that changes its mind with set_epoch: easy samples first, all of them later."""

    class Curriculum(Sampler[int]):
        def __init__(self, n: int):
            self.n, self.epoch = n, 0

        def set_epoch(self, epoch: int) -> None:
            self.epoch = epoch

        def __len__(self) -> int:
            return math.ceil(self.n * min(1.0, 0.5 + 0.25 * self.epoch))

        def __iter__(self) -> Iterator[int]:
            return iter(range(len(self)))

    dataset = datasets.ImageFolder(args.data / "train", TRAIN)
    sampler = Curriculum(len(dataset))
    loader = DataLoader(dataset, batch_size=6, sampler=sampler, num_workers=args.workers)
    for epoch in range(3):
        loader.sampler.set_epoch(epoch)
        yield loader
