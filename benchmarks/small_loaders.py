"""How fast are loaders of small images and of few batches beside torch's own, with one changed import?

Prediction: no loader is below 0.9 of torch's, and CIFAR-10 with a random crop and a flip is five times as fast.

The loaders have torchvision's datasets of small images (made of noise), a ``TensorDataset``, a user-defined Dataset and
folders of small files, with the transforms of public scripts and their batch sizes, workers and numbers of epochs. Each
loader is made, iterated over and closed, by torch and by gpupipe in turns within one process; the first round is not
counted. A ratio is torch's seconds divided by gpupipe's in the same round, of wall clock and of CPU time of the
process and its workers. With ``--minutes`` the loaders run in random order until the time is over.

    python benchmarks/small_loaders.py [--rounds N] [--minutes M] [--only WORD ...]
                                                                          # writes results/small_loaders_cpu.json
"""

from __future__ import annotations

import argparse
import gc
import random
import resource
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import lru_cache
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import torch
from _common import Budget, Table, heading, import_torchvision, save
from PIL import Image
from torch.utils.data import DataLoader as TorchLoader, TensorDataset

import gpupipe

torchvision = import_torchvision()
T, D = torchvision.transforms, torchvision.datasets

GRAY, COLOR = ((0.1307,), (0.3081,)), ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616))


def _ending(mean_std: Any) -> list[Any]:
    return [T.ToTensor(), T.Normalize(*mean_std)]


def _recipes(size: int, mean_std: Any) -> dict[str, list[Any]]:
    end, crop, flip = _ending(mean_std), T.RandomCrop(size, padding=4), T.RandomHorizontalFlip()
    return {
        "ToTensor": [T.ToTensor()],
        "ToTensor, Normalize": end,
        "crop, flip": [crop, flip, *end],
        "flip": [flip, *end],
        "Resize(32)": [T.Resize((32, 32)), *end],
        "Resize(64)": [T.Resize(64), *end],
        "RandomRotation": [T.RandomRotation(15), *end],
        "RandomAffine": [T.RandomAffine(10, translate=(0.1, 0.1)), *end],
        "crop, flip, RandomErasing": [crop, flip, *end, T.RandomErasing()],
        "ColorJitter": [flip, T.ColorJitter(0.2, 0.2, 0.2, 0.1), *end],
        "AutoAugment": [crop, flip, T.AutoAugment(T.AutoAugmentPolicy.CIFAR10), *end],
        "RandomResizedCrop": [T.RandomResizedCrop(size), flip, *end],
        "Resize(224)": [T.Resize(224), *end],
    }


_TRAINING = ("ToTensor, Normalize", "crop, flip", "RandomRotation", "RandomAffine", "crop, flip, RandomErasing")
_PLAIN = ("ToTensor", "ToTensor, Normalize", "Resize(32)")
_OF: dict[str, tuple[str, ...]] = {
    "MNIST": (*_PLAIN, "crop, flip", "RandomRotation", "RandomAffine"),
    "FashionMNIST": (*_PLAIN, "flip", "crop, flip, RandomErasing"),
    "EMNIST": (*_PLAIN, "RandomRotation"),
    "KMNIST": ("ToTensor", "Resize(64)"),
    "USPS": ("ToTensor", "Resize(32)"),
    "CIFAR10": (
        "ToTensor", *_TRAINING, "flip", "ColorJitter", "AutoAugment", "RandomResizedCrop", "Resize(64)", "Resize(224)",
    ),
    "CIFAR100": ("ToTensor", *_TRAINING, "ColorJitter", "AutoAugment"),
    "SVHN": ("ToTensor", "ToTensor, Normalize", "crop, flip", "RandomRotation"),
    "STL10": ("ToTensor, Normalize", "crop, flip", "RandomResizedCrop", "ColorJitter"),
    "TensorDataset": ("-",),
    "own Dataset of arrays": (
        "ToTensor, Normalize", "crop, flip", "RandomRotation", "ColorJitter", "AutoAugment", "Resize(224)",
    ),
    "own Dataset of floats": ("-",),
    "own part of CIFAR10": ("ToTensor, Normalize", "crop, flip"),
    "own pairs of views": ("crop, flip", "RandomResizedCrop"),
    "own Dataset that computes": ("ToTensor, Normalize", "crop, flip"),
    "ImageFolder of 32 x 32": ("ToTensor", "ToTensor, Normalize", "crop, flip", "ColorJitter", "AutoAugment"),
    "ImageFolder of 96 x 96": ("ToTensor, Normalize", "Resize(64)", "RandomResizedCrop"),
}  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A loader as a script has it."""

    data: str
    recipe: str
    batch_size: int
    workers: int
    shuffle: bool
    samples: int
    epochs: int

    @property
    def name(self) -> str:
        order = "shuffled" if self.shuffle else "in order"
        return (
            f"{self.data}; {self.recipe}; {order}, batches of {self.batch_size}, {self.workers} workers, "
            f"{self.epochs} x {self.samples:,}"
        )


def cases() -> Iterator[Case]:
    """Every dataset with its recipes, each four times: for training and for a test, with few batches and with many."""
    batches, workers = cycle((64, 128, 32, 256, 512, 100)), cycle((0, 2, 0, 4, 1, 0, 2))
    for data, recipes in _OF.items():
        for recipe in recipes:
            slow = 4 if "224" in recipe or data == "STL10" or "96" in data else 1
            for samples, shuffle, epochs in ((4_000, True, 1), (1_000, True, 3), (2_000, False, 1), (320, False, 2)):
                size = next(batches)
                yield Case(data, recipe, size, next(workers), shuffle, max(samples // slow, 2 * size), epochs)


# ---- datasets


def _noise(*shape: int) -> Any:
    return np.random.default_rng(0).integers(0, 256, shape, np.uint8)


class _Own(torch.utils.data.Dataset[Any]):
    """The dataset of a script that has its images in one array."""

    def __init__(self, images: Any, labels: Any, transform: Any):
        self.images, self.labels, self.transform = images, labels, transform

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Any, ...]:
        return self.transform(Image.fromarray(self.images[index])), int(self.labels[index])


class _Floats(_Own):
    def __getitem__(self, index: int) -> tuple[Any, ...]:
        return self.images[index], self.labels[index]


class _Views(_Own):
    def __getitem__(self, index: int) -> tuple[Any, ...]:
        image = Image.fromarray(self.images[index])
        return self.transform(image), self.transform(image), self.labels[index]


class _Computes(_Own):
    def __getitem__(self, index: int) -> tuple[Any, ...]:
        return self.transform(Image.fromarray(255 - self.images[index])), int(self.labels[index])


class _Part(torch.utils.data.Dataset[Any]):
    """A part of another dataset, as in federated learning."""

    def __init__(self, dataset: Any, indices: Any):
        self.dataset, self.indices = dataset, list(indices)

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, item: int) -> tuple[Any, ...]:
        image, label = self.dataset[self.indices[item]]
        return image, label


_OWN = {"own Dataset of arrays": _Own, "own pairs of views": _Views, "own Dataset that computes": _Computes}


@lru_cache(maxsize=4)
def _folder(size: int, samples: int, root: str) -> Path:
    folder = Path(root, f"{size}-{samples}")
    for i, pixels in enumerate(_noise(samples, size // 8, size // 8, 3)):
        path = folder / str(i % 10) / f"{i:05d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels).resize((size, size), Image.Resampling.BICUBIC).save(path, quality=90)
    return folder


def dataset(case: Case, root: str) -> Any:
    """Make the dataset as a script's own line does, without a download."""
    n, labels = case.samples, np.arange(case.samples) % 10
    if case.data == "TensorDataset":
        return TensorDataset(torch.from_numpy(_noise(n, 3, 32, 32)).float().div(255), torch.from_numpy(labels))
    if case.data == "own Dataset of floats":
        return _Floats(_noise(n, 3, 32, 32).astype(np.float32) / 255, labels.tolist(), None)
    gray = case.data.endswith("MNIST") or case.data == "USPS"
    size = {"USPS": 16, "STL10": 96, "ImageFolder of 96 x 96": 96}.get(case.data, 28 if gray else 32)
    transform = T.Compose(_recipes(size, GRAY if gray else COLOR)[case.recipe])
    if "Folder" in case.data:
        return D.ImageFolder(str(_folder(size, n, root)), transform)
    if case.data in _OWN:
        return _OWN[case.data](_noise(n, size, size, 3), labels, transform)
    is_part = case.data == "own part of CIFAR10"
    cls = D.CIFAR10 if is_part else getattr(D, case.data)
    n, labels = (2 * n, np.arange(2 * n) % 10) if is_part else (n, labels)
    made = cls.__new__(cls)
    made.transform, made.target_transform, made.transforms, made.root = transform, None, None, root
    made.train, made.split = True, "train"
    if case.data in ("SVHN", "STL10"):
        made.data, made.labels = _noise(n, 3, size, size), labels
    elif case.data == "USPS":
        made.data, made.targets = _noise(n, size, size), labels.tolist()
    elif gray:
        made.data, made.targets = torch.from_numpy(_noise(n, size, size)), torch.from_numpy(labels)
    else:
        made.data, made.targets = _noise(n, size, size, 3), labels.tolist()
    return _Part(made, np.random.default_rng(0).permutation(n)[: case.samples]) if is_part else made


# ---- measuring


def _cpu_seconds() -> float:
    """CPU time of this process and of the workers that have ended."""
    uses = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(use.ru_utime + use.ru_stime for use in uses)


def _timed(make: Callable[..., Any], case: Case, data: Any) -> dict[str, float]:
    """Seconds to make a loader, iterate over its epochs and end its workers."""
    gc.collect()
    began, busy = time.perf_counter(), _cpu_seconds()
    loader = make(data, batch_size=case.batch_size, shuffle=case.shuffle, num_workers=case.workers)
    for _ in range(case.epochs):
        count = 0
        for images, *_ in loader:
            count += len(images)
        assert count == case.samples, (count, case)
    if isinstance(loader, gpupipe.DataLoader):
        loader.close()
    return {"wall": time.perf_counter() - began, "cpu": _cpu_seconds() - busy}


def measure(case: Case, rounds: int, root: str) -> dict[str, Any]:
    data = dataset(case, root)
    loader = gpupipe.DataLoader(data, batch_size=case.batch_size, num_workers=case.workers)
    engine = next(line for line in repr(loader).splitlines() if "engine:" in line).strip()
    loader.close()
    seconds: dict[str, list[dict[str, float]]] = {"torch": [], "gpupipe": []}
    pairs = [("torch", TorchLoader), ("gpupipe", gpupipe.DataLoader)]
    for number in range(rounds + 1):
        for name, make in pairs if number % 2 else pairs[::-1]:
            took = _timed(make, case, data)
            if number:
                seconds[name].append(took)
    found: dict[str, Any] = {**asdict(case), "engine": engine}
    for clock in ("wall", "cpu"):
        ratios = [a[clock] / b[clock] for a, b in zip(seconds["torch"], seconds["gpupipe"], strict=True)]
        found[clock] = {
            **{f"{name}_seconds": statistics.median(some[clock] for some in took) for name, took in seconds.items()},
            "ratio": {"median": statistics.median(ratios), "min": min(ratios), "max": max(ratios)},
        }
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--minutes", type=float, metavar="M", help="start no loader after this time")
    parser.add_argument("--only", nargs="*", default=[], metavar="WORD", help="cases whose names have all of these")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    chosen = [case for case in cases() if all(word in case.name for word in args.only)]
    result: dict[str, Any] = {**heading(__doc__, args), "of": len(chosen), "cases": []}
    if args.minutes is not None:
        random.Random(0).shuffle(chosen)
    budget = Budget(float("inf") if args.minutes is None else 60 * args.minutes)
    table = Table("loader", "wall", "least", "most", "CPU", "least", "most", first=100)
    with tempfile.TemporaryDirectory(prefix="gpupipe-bench-") as root:
        for case in chosen:
            if budget.left() < 0:
                break
            found = measure(case, args.rounds, root)
            result["cases"].append(found)
            ratios = [found[clock]["ratio"][kind] for clock in ("wall", "cpu") for kind in ("median", "min", "max")]
            table.row(case.name, *ratios)
            path = save("small_loaders_cpu", result)  # after every case, so that an interruption loses nothing
    print(f"{len(result['cases'])} of {len(chosen)} loaders")
    for clock in ("wall", "cpu"):
        medians = sorted(found[clock]["ratio"]["median"] for found in result["cases"])
        quartiles = [medians[len(medians) * k // 4] for k in (1, 2, 3)]
        print(f"{clock}: {sum(m < 0.9 for m in medians)} below 0.9, {sum(m < 1 for m in medians)} below 1;", end=" ")
        print("least {:.2f}, quartiles {:.2f} {:.2f} {:.2f}, most {:.2f}".format(medians[0], *quartiles, medians[-1]))
    print(path)


if __name__ == "__main__":
    main()
