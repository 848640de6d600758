"""Data in arrays: CIFAR, MNIST, tensors, memory-mapped files, one file for all."""

from __future__ import annotations

import io
import json
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor
from torch.utils.data import Dataset, TensorDataset
from torchvision import datasets, transforms
from torchvision.transforms import Lambda, ToTensor

from ..harness.script import Args, Epochs, script

CIFAR = transforms.Normalize((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010))


@script(engine="torch")
def cifar10_resnet(args: Args, DataLoader: Any) -> Epochs:
    """kuangliu/pytorch-cifar: padded crops and flips for training, plain tensors for testing."""
    transform_train = transforms.Compose(
        [transforms.RandomCrop(32, padding=4), transforms.RandomHorizontalFlip(), transforms.ToTensor(), CIFAR]
    )
    transform_test = transforms.Compose([transforms.ToTensor(), CIFAR])
    trainset = datasets.CIFAR10(root=args.data, train=True, download=False, transform=transform_train)
    trainloader = DataLoader(trainset, batch_size=8, shuffle=True, num_workers=args.workers)
    testset = datasets.CIFAR10(root=args.data, train=False, download=False, transform=transform_test)
    testloader = DataLoader(testset, batch_size=10, shuffle=False, num_workers=args.workers)
    for _ in range(args.epochs):
        yield trainloader
        yield testloader


class Cutout:
    """Black squares at random places of a tensor, clipped at the edges."""

    def __init__(self, n_holes: int, length: int):
        self.n_holes, self.length = n_holes, length

    def __call__(self, img: Tensor) -> Tensor:
        h, w = img.size(1), img.size(2)
        mask = np.ones((h, w), np.float32)
        for _ in range(self.n_holes):
            y, x = np.random.randint(h), np.random.randint(w)
            y1, y2 = np.clip(y - self.length // 2, 0, h), np.clip(y + self.length // 2, 0, h)
            x1, x2 = np.clip(x - self.length // 2, 0, w), np.clip(x + self.length // 2, 0, w)
            mask[y1:y2, x1:x2] = 0.0
        return img * torch.from_numpy(mask).expand_as(img)


@script(engine="torch")
def cifar100_cutout(args: Args, DataLoader: Any) -> Epochs:
    """uoguelph-mlrg/Cutout: an own class appended to the transforms of CIFAR-100."""
    train_transform = transforms.Compose([])
    train_transform.transforms.append(transforms.RandomCrop(32, padding=4))
    train_transform.transforms.append(transforms.RandomHorizontalFlip())
    train_transform.transforms.append(transforms.ToTensor())
    train_transform.transforms.append(CIFAR)
    train_transform.transforms.append(Cutout(n_holes=1, length=8))
    train_dataset = datasets.CIFAR100(root=args.data, train=True, transform=train_transform, download=False)
    train_loader = DataLoader(
        dataset=train_dataset, batch_size=8, shuffle=True, pin_memory=True, num_workers=args.workers
    )
    for _ in range(args.epochs):
        yield train_loader


@script(engine="torch")
def mnist_example(args: Args, DataLoader: Any) -> Epochs:
    """pytorch/examples mnist: keyword arguments in dicts, a bigger batch for testing."""
    train_kwargs: dict[str, Any] = {"batch_size": 8}
    test_kwargs: dict[str, Any] = {"batch_size": 16}
    cuda_kwargs = {"num_workers": args.workers, "pin_memory": True, "shuffle": True}
    train_kwargs.update(cuda_kwargs)
    test_kwargs.update(cuda_kwargs)
    transform = transforms.Compose([transforms.ToTensor(), transforms.Normalize((0.1307,), (0.3081,))])
    dataset1 = datasets.MNIST(args.data, train=True, download=False, transform=transform)
    dataset2 = datasets.MNIST(args.data, train=False, transform=transform)
    train_loader = DataLoader(dataset1, **train_kwargs)
    test_loader = DataLoader(dataset2, **test_kwargs)
    for _ in range(args.epochs):
        yield train_loader
        yield test_loader


@script(engine="torch")
def mnist_as_rgb(args: Args, DataLoader: Any) -> Epochs:
    """MNIST for a network with three channels: resized, and repeated by a lambda."""
    transform = transforms.Compose(
        [
            transforms.Resize(32),
            transforms.RandomRotation(10),
            transforms.ToTensor(),
            transforms.Lambda(lambda x: x.repeat(3, 1, 1)),
            transforms.Normalize((0.5, 0.5, 0.5), (0.5, 0.5, 0.5)),
        ]
    )
    dataset = datasets.MNIST(str(args.data), train=True, transform=transform)
    loader = DataLoader(dataset, batch_size=8, shuffle=True, num_workers=args.workers)
    yield from [loader] * args.epochs


@script(engine="torch")
def fashion_one_hot(args: Args, DataLoader: Any) -> Epochs:
    """PyTorch's beginner tutorial on transforms: labels made one-hot by a lambda."""
    ds = datasets.FashionMNIST(
        root=args.data,
        train=True,
        download=False,
        transform=ToTensor(),
        target_transform=Lambda(
            lambda y: torch.zeros(36, dtype=torch.float).scatter_(dim=0, index=torch.tensor(y), value=1)
        ),
    )
    yield DataLoader(ds, batch_size=8, shuffle=True)
    yield DataLoader(ds, batch_size=8)


@script(engine="dali")
def gan_training(args: Args, DataLoader: Any) -> Epochs:
    """DCGAN and WGAN scripts: one transform written inline, values scaled to -1 and 1 by a lambda."""
    dataset = datasets.ImageFolder(
        root=str(args.data / "train"),
        transform=transforms.Compose(
            [
                transforms.Resize(32),
                transforms.CenterCrop(32),
                transforms.ToTensor(),
                transforms.Lambda(lambda t: (t * 2) - 1),
            ]
        ),
    )
    dataloader = DataLoader(dataset, batch_size=8, shuffle=True, num_workers=int(args.workers))
    for _ in range(args.epochs):
        yield dataloader


@script(engine="torch")
def tensor_dataset(args: Args, DataLoader: Any) -> Epochs:
    """Tensors in memory: a TensorDataset of images and labels, normalized before."""
    images = torch.from_numpy(np.load(args.data / "images.npy")).permute(0, 3, 1, 2).float().div(255)
    labels = torch.from_numpy(np.load(args.data / "labels.npy"))
    dataset = TensorDataset((images - 0.5) / 0.5, labels)
    loader = DataLoader(dataset, batch_size=8, shuffle=True, drop_last=True)
    yield from [loader] * args.epochs
    yield DataLoader(dataset, batch_size=16, shuffle=False)


@script(engine="torch", workers=1)
def memmap_batches(args: Args, DataLoader: Any) -> Epochs:
    """A memory-mapped array that hands out whole batches by itself, with batch_size=None."""

    class Chunks(Dataset[Any]):
        def __init__(self, root: Any, size: int):
            self.images = np.load(root / "images.npy", mmap_mode="r")
            self.labels = np.load(root / "labels.npy")
            self.size = size

        def __len__(self) -> int:
            return len(self.labels) // self.size

        def __getitem__(self, index: int) -> Any:
            if index >= len(self):
                raise IndexError
            part = slice(index * self.size, (index + 1) * self.size)
            return torch.from_numpy(self.images[part].transpose(0, 3, 1, 2).copy()), torch.from_numpy(self.labels[part])

    loader = DataLoader(Chunks(args.data, 8), batch_size=None, shuffle=True, num_workers=args.workers)
    yield from [loader] * args.epochs


class OneFile(Dataset[Any]):
    """Encoded images in one file, opened on first use in each worker, as with LMDB and HDF5."""

    def __init__(self, root: Any, transform: Any):
        self.path, self.transform = root / "blob.bin", transform
        self.entries = json.loads((root / "blob.json").read_text())
        self.file: Any = None

    def __len__(self) -> int:
        return len(self.entries)

    def __getitem__(self, index: int) -> Any:
        if self.file is None:
            self.file = open(self.path, "rb")  # noqa: SIM115
        offset, length, label = self.entries[index]
        self.file.seek(offset)
        buffer = io.BytesIO(self.file.read(length))
        img = Image.open(buffer).convert("RGB")
        if self.transform is not None:
            img = self.transform(img)
        return img, label

    def __getstate__(self) -> Any:
        return {**self.__dict__, "file": None}


@script(engine="dali", workers=1)
def lmdb_like(args: Args, DataLoader: Any) -> Epochs:
    """Datasets in LMDB or HDF5: encoded bytes out of one big file, decoded by Pillow from memory."""
    transform = transforms.Compose(
        [transforms.RandomResizedCrop(32), transforms.RandomHorizontalFlip(), transforms.ToTensor(), CIFAR]
    )
    loader = DataLoader(
        OneFile(args.data, transform), batch_size=8, shuffle=True, num_workers=args.workers, pin_memory=True,
        persistent_workers=args.workers > 0,
    )  # fmt: skip
    yield from [loader] * args.epochs
    test = transforms.Compose([transforms.Resize((32, 32)), transforms.ToTensor()])
    yield DataLoader(OneFile(args.data, test), batch_size=8, num_workers=args.workers)


@script(engine="torch")
def augmix(args: Args, DataLoader: Any) -> Epochs:
    """google-research/augmix: a dataset around CIFAR that mixes chains of Pillow's operations into two more views."""
    preprocess = transforms.Compose([transforms.ToTensor(), transforms.Normalize([0.5] * 3, [0.5] * 3)])
    operations = [ImageOps.autocontrast, ImageOps.equalize, ImageOps.mirror, lambda img: ImageOps.posterize(img, 4)]

    def mixed(image: Any) -> Tensor:
        weights = np.float32(np.random.dirichlet([1] * 3))
        m = np.float32(np.random.beta(1, 1))
        mix = torch.zeros_like(preprocess(image))
        for weight in weights:
            augmented = image.copy()
            for _ in range(np.random.randint(1, 4)):
                augmented = operations[np.random.randint(len(operations))](augmented)
            mix += weight * preprocess(augmented)
        return (1 - m) * preprocess(image) + m * mix

    class AugMixDataset(Dataset[Any]):
        def __init__(self, dataset: Any):
            self.dataset = dataset

        def __getitem__(self, i: int) -> Any:
            x, y = self.dataset[i]
            return (preprocess(x), mixed(x), mixed(x)), y

        def __len__(self) -> int:
            return len(self.dataset)

    train_transform = transforms.Compose([transforms.RandomHorizontalFlip(), transforms.RandomCrop(32, padding=4)])
    train_data = AugMixDataset(datasets.CIFAR100(args.data, train=True, transform=train_transform))
    loader = DataLoader(train_data, batch_size=8, shuffle=True, num_workers=args.workers, pin_memory=True)
    for _ in range(args.epochs):
        yield [(torch.cat(images, 0), targets) for images, targets in loader]


@script(engine="torch")
def corruption_test(args: Args, DataLoader: Any) -> Epochs:
    """CIFAR-10-C: a test set whose data and targets are replaced for every corruption, in new and old loaders."""
    transform = transforms.Compose([transforms.ToTensor(), transforms.Normalize([0.5] * 3, [0.5] * 3)])
    test_data = datasets.CIFAR10(args.data, train=False, transform=transform)
    clean, labels = test_data.data, torch.tensor(test_data.targets)
    same = DataLoader(test_data, batch_size=8, shuffle=False, num_workers=args.workers)
    yield same
    for shift in (40, 90):
        test_data.data = np.clip(clean.astype(int) + shift, 0, 255).astype(np.uint8)
        test_data.targets = torch.LongTensor(labels)
        yield DataLoader(test_data, batch_size=8, shuffle=False, num_workers=args.workers)
        yield same
