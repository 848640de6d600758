"""Semi-supervised learning, noisy labels, clustering, active learning: datasets that change while training."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageEnhance, ImageOps
from torch import Tensor
from torch.utils.data import Dataset, RandomSampler, Sampler, SequentialSampler, Subset, SubsetRandomSampler
from torchvision import datasets, transforms

from ..harness.script import Args, Epochs, script
from .common import normalize

CIFAR_MEAN, CIFAR_STD = (0.4914, 0.4822, 0.4465), (0.2471, 0.2435, 0.2616)


class PartOfCifar(datasets.CIFAR100):
    """CIFAR cut down to some indices, with torchvision's own way to get an item written out again."""

    def __init__(self, root: Any, indexs: Any, train: bool = True, transform: Any = None):
        super().__init__(root, train=train, transform=transform)
        if indexs is not None:
            self.data = self.data[indexs]
            self.targets = np.array(self.targets)[indexs]

    def __getitem__(self, index: int) -> Any:
        img, target = self.data[index], self.targets[index]
        img = Image.fromarray(img)
        if self.transform is not None:
            img = self.transform(img)
        if self.target_transform is not None:
            target = self.target_transform(target)
        return img, target


class StrongAugment:
    """Two operations of Pillow out of a list and a gray square: copies of RandAugment look like this."""

    def __init__(self, n: int, m: int):
        self.n, self.m = n, m
        self.ops = [
            lambda img, v: ImageOps.autocontrast(img),
            lambda img, v: ImageEnhance.Brightness(img).enhance(0.05 + 0.09 * v),
            lambda img, v: ImageOps.equalize(img),
            lambda img, v: ImageOps.posterize(img, 8 - int(v * 4 / 10)),
            lambda img, v: img.rotate(3 * v if random.random() < 0.5 else -3 * v),
            lambda img, v: ImageOps.solarize(img, 256 - int(25.6 * v)),
        ]

    def __call__(self, img: Any) -> Any:
        for op in random.choices(self.ops, k=self.n):
            if random.random() < 0.5:
                img = op(img, np.random.randint(1, self.m))
        img = img.copy()
        x, y = (int(np.random.uniform(0, side - 8)) for side in img.size)
        img.paste((127, 127, 127), (x, y, x + 8, y + 8))
        return img


class WeakAndStrong:
    def __init__(self, mean: Any, std: Any):
        self.weak = transforms.Compose(
            [transforms.RandomHorizontalFlip(), transforms.RandomCrop(32, padding=4, padding_mode="reflect")]
        )
        self.strong = transforms.Compose(
            [
                transforms.RandomHorizontalFlip(),
                transforms.RandomCrop(32, padding=4, padding_mode="reflect"),
                StrongAugment(2, 10),
            ]
        )
        self.normalize = transforms.Compose([transforms.ToTensor(), transforms.Normalize(mean, std)])

    def __call__(self, x: Any) -> Any:
        weak = self.weak(x)
        strong = self.strong(x)
        return self.normalize(weak), self.normalize(strong)


@script(engine="torch")
def fixmatch(args: Args, DataLoader: Any) -> Epochs:
    """kekmodel/FixMatch-pytorch: two loaders read by next() and made anew at their ends, weak and strong views."""
    labeled = transforms.Compose(
        [
            transforms.RandomHorizontalFlip(),
            transforms.RandomCrop(size=32, padding=4, padding_mode="reflect"),
            transforms.ToTensor(),
            transforms.Normalize(CIFAR_MEAN, CIFAR_STD),
        ]
    )
    labeled_dataset = PartOfCifar(args.data, np.arange(12), transform=labeled)
    unlabeled_dataset = PartOfCifar(args.data, None, transform=WeakAndStrong(CIFAR_MEAN, CIFAR_STD))
    labeled_loader = DataLoader(
        labeled_dataset, sampler=RandomSampler(labeled_dataset), batch_size=4, num_workers=args.workers, drop_last=True
    )
    unlabeled_loader = DataLoader(
        unlabeled_dataset, sampler=RandomSampler(unlabeled_dataset), batch_size=6, num_workers=args.workers,
        drop_last=True,
    )  # fmt: skip
    labeled_iter, unlabeled_iter = iter(labeled_loader), iter(unlabeled_loader)
    for _ in range(args.epochs):
        steps = []
        for _ in range(len(unlabeled_loader)):
            try:
                inputs_x, targets_x = next(labeled_iter)
            except StopIteration:
                labeled_iter = iter(labeled_loader)
                inputs_x, targets_x = next(labeled_iter)
            try:
                (inputs_u_w, inputs_u_s), _ = next(unlabeled_iter)
            except StopIteration:
                unlabeled_iter = iter(unlabeled_loader)
                (inputs_u_w, inputs_u_s), _ = next(unlabeled_iter)
            steps.append((inputs_x, targets_x, inputs_u_w, inputs_u_s))
        yield steps
    test = transforms.Compose([transforms.ToTensor(), transforms.Normalize(CIFAR_MEAN, CIFAR_STD)])
    test_dataset = datasets.CIFAR100(args.data, train=False, transform=test)
    yield DataLoader(test_dataset, sampler=SequentialSampler(test_dataset), batch_size=8)


@script(engine="torch")
def mixmatch(args: Args, DataLoader: Any) -> Epochs:
    """YU1ut/MixMatch-pytorch: CIFAR normalized once as float arrays, augmented in numpy, returned twice."""

    class NormalizedCifar(datasets.CIFAR100):
        def __init__(self, root: Any, transform: Any):
            super().__init__(root, train=True, transform=transform)
            pixels = (self.data.astype(np.float32) / 255 - CIFAR_MEAN) / CIFAR_STD
            self.data = np.ascontiguousarray(pixels.transpose(0, 3, 1, 2).astype(np.float32))
            self.targets = [-1] * len(self.targets)

        def __getitem__(self, index: int) -> Any:
            return self.transform(self.data[index]), self.targets[index]

    def augment(x: Any) -> Tensor:
        x = np.pad(x, [(0, 0), (4, 4), (4, 4)], mode="reflect")
        top, left = np.random.randint(0, 9, size=2)
        x = x[:, top : top + 32, left : left + 32]
        return torch.from_numpy((x[:, :, ::-1] if np.random.rand() < 0.5 else x).copy())

    class Twice:
        def __init__(self, transform: Any):
            self.transform = transform

        def __call__(self, inp: Any) -> Any:
            return self.transform(inp), self.transform(inp)

    dataset = NormalizedCifar(args.data, Twice(augment))
    loader = DataLoader(dataset, batch_size=8, shuffle=True, num_workers=args.workers, drop_last=True)
    yield from [loader] * args.epochs


@script(engine="torch")
def mean_teacher(args: Args, DataLoader: Any) -> Epochs:
    """CuriousAI/mean-teacher: a batch sampler that puts unlabeled and labeled images into every batch."""

    class TwoStreams(Sampler[Any]):
        def __init__(self, primary: list[int], secondary: list[int], batch_size: int, secondary_size: int):
            self.primary, self.secondary = primary, secondary
            self.sizes = batch_size - secondary_size, secondary_size

        def __iter__(self) -> Iterator[Any]:
            first = np.random.permutation(self.primary)
            second = (i for _ in iter(int, 1) for i in np.random.permutation(self.secondary))
            for k in range(len(self)):
                unlabeled = first[k * self.sizes[0] : (k + 1) * self.sizes[0]]
                yield (*unlabeled.tolist(), *(int(next(second)) for _ in range(self.sizes[1])))

        def __len__(self) -> int:
            return len(self.primary) // self.sizes[0]

    transform = transforms.Compose(
        [transforms.RandomCrop(32, 4), transforms.RandomHorizontalFlip(), transforms.ToTensor(), normalize]
    )

    class Twice:
        def __init__(self, transform: Any):
            self.transform = transform

        def __call__(self, inp: Any) -> Any:
            out1 = self.transform(inp)
            out2 = self.transform(inp)
            return out1, out2

    dataset = datasets.CIFAR100(args.data, transform=Twice(transform))
    batch_sampler = TwoStreams(list(range(12, len(dataset))), list(range(12)), 8, 2)
    loader = DataLoader(dataset, batch_sampler=batch_sampler, num_workers=args.workers, pin_memory=True)
    yield from [loader] * args.epochs


@script(engine="torch")
def pseudo_labels(args: Args, DataLoader: Any) -> Epochs:
    """Self-training: images that the model is sure of join the arrays of the dataset, which grows between epochs."""
    transform = transforms.Compose(
        [transforms.RandomCrop(32, 4), transforms.RandomHorizontalFlip(), transforms.ToTensor(), normalize]
    )
    dataset = datasets.CIFAR100(args.data, transform=transform)
    all_data, all_targets = dataset.data, list(dataset.targets)
    dataset.data, dataset.targets = all_data[:16], all_targets[:16]
    loader = DataLoader(dataset, batch_size=8, shuffle=True, num_workers=args.workers)
    for epoch in range(args.epochs):
        yield loader
        sure = 16 + 8 * (epoch + 1)
        loader.dataset.data, loader.dataset.targets = all_data[:sure], all_targets[:sure]
    yield loader


@script(engine="torch")
def noisy_labels(args: Args, DataLoader: Any) -> Epochs:
    """Co-teaching and label correction: targets are rewritten after an epoch, an index comes with each sample."""

    class IndexedCifar(datasets.CIFAR100):
        def __getitem__(self, index: int) -> Any:
            image, target = super().__getitem__(index)
            return image, target, index

    transform = transforms.Compose([transforms.RandomHorizontalFlip(), transforms.ToTensor(), normalize])
    dataset = IndexedCifar(args.data, train=True, transform=transform)
    loader = DataLoader(dataset, batch_size=8, shuffle=True, num_workers=args.workers, drop_last=False)
    yield loader
    loader.dataset.targets = [(target + 1) % 100 for target in loader.dataset.targets]
    yield loader


class Reassigned(Dataset[Any]):
    """Images with the numbers of their clusters as labels."""

    def __init__(self, indexes: list[int], pseudolabels: list[int], images: list[Any], transform: Any = None):
        self.imgs = [(images[i][0], label) for i, label in zip(indexes, pseudolabels, strict=True)]
        self.transform = transform

    def __getitem__(self, index: int) -> Any:
        path, pseudolabel = self.imgs[index]
        img = datasets.folder.pil_loader(path)
        if self.transform is not None:
            img = self.transform(img)
        return img, pseudolabel

    def __len__(self) -> int:
        return len(self.imgs)


class UniformClusters(Sampler[int]):
    """As many samples of each cluster, drawn with replacement."""

    def __init__(self, n: int, clusters: list[list[int]]):
        self.n, self.clusters = n, clusters
        self.indexes = self.draw()

    def draw(self) -> Any:
        each = self.n // len(self.clusters) + 1
        drawn = np.concatenate([np.random.choice(cluster, each) for cluster in self.clusters])
        np.random.shuffle(drawn)
        return drawn[: self.n].astype("int")

    def __iter__(self) -> Iterator[int]:
        return iter(self.indexes)

    def __len__(self) -> int:
        return len(self.indexes)


@script(engine="dali", workers=1)
def deepcluster(args: Args, DataLoader: Any) -> Epochs:
    """facebookresearch/deepcluster: a new dataset, sampler and loader in every epoch, after a pass for features."""
    plain = transforms.Compose([transforms.Resize(36), transforms.CenterCrop(32), transforms.ToTensor(), normalize])
    dataset = datasets.ImageFolder(args.data / "train", transform=plain)
    features = DataLoader(dataset, batch_size=8, num_workers=args.workers, pin_memory=True)
    augment = transforms.Compose(
        [transforms.RandomResizedCrop(32), transforms.RandomHorizontalFlip(), transforms.ToTensor(), normalize]
    )
    for _ in range(args.epochs):
        yield features
        clusters = [list(range(k, len(dataset), 6)) for k in range(6)]
        order = [i for cluster in clusters for i in cluster]
        labels = [k for k, cluster in enumerate(clusters) for _ in cluster]
        train_dataset = Reassigned(order, labels, dataset.imgs, augment)
        sampler = UniformClusters(len(train_dataset), [list(range(6 * k, 6 * k + 6)) for k in range(6)])
        yield DataLoader(train_dataset, batch_size=8, num_workers=args.workers, sampler=sampler, pin_memory=True)


@script(engine="dali")
def loader_per_epoch(args: Args, DataLoader: Any) -> Epochs:
    """A loader made anew in each epoch by a function, as in many notebooks: each draws anew."""
    transform = transforms.Compose([transforms.RandomResizedCrop(32), transforms.ToTensor()])

    def get_loader() -> Any:
        return DataLoader(datasets.ImageFolder(args.data / "train", transform), batch_size=8, shuffle=True)

    for _ in range(args.epochs + 1):
        yield get_loader()


@script(engine="dali")
def active_learning(args: Args, DataLoader: Any) -> Epochs:
    """Active learning: the indices of a Subset grow while loader and subset stay."""
    transform = transforms.Compose(
        [transforms.Resize((32, 32)), transforms.RandomHorizontalFlip(), transforms.ToTensor()]
    )
    dataset = datasets.ImageFolder(args.data / "train", transform)
    pool = Subset(dataset, list(range(10)))
    loader = DataLoader(pool, batch_size=4, shuffle=True, num_workers=args.workers)
    yield loader
    pool.indices = [*pool.indices, *range(20, 30)]
    yield loader


@script(engine="dali")
def growing_subset_sampler(args: Args, DataLoader: Any) -> Epochs:
    """Curriculum learning: the indices of a SubsetRandomSampler are replaced by a longer list."""
    transform = transforms.Compose([transforms.Resize((32, 32)), transforms.ToTensor(), normalize])
    dataset = datasets.ImageFolder(args.data / "train", transform)
    sampler = SubsetRandomSampler(range(12))
    loader = DataLoader(dataset, batch_size=4, sampler=sampler, num_workers=args.workers)
    yield loader
    sampler.indices = range(24)
    yield loader
