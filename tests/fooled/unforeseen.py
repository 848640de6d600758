"""What trials do not show: rare changes, traces outside of the dataset, other names, and what stands beside samples."""

from __future__ import annotations

import functools
import os
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import manual_seed as fix
from torch.utils.data import default_collate, get_worker_info
from torch.utils.data._utils.collate import default_collate_fn_map
from torchvision import transforms as T

from .base import BATCH, EVAL, RARE, TRAIN, Pictures, case

CROP = T.Compose([T.CenterCrop(20), T.ToTensor()])
FLIPPED = T.Compose([T.CenterCrop(20), T.RandomHorizontalFlip(1.0), T.ToTensor()])


def epochs(Loader: Any, dataset: Any, **arguments: Any) -> list[Any]:
    loader = Loader(dataset, batch_size=BATCH, **arguments)
    return [list(loader) for _ in range(2)]


# ---- changes that only some samples make


class CountsFailures(Pictures):
    def __init__(self, root: Path):
        super().__init__(root)
        self.failures = 0
        self.paths[RARE].write_bytes(b"no image")

    def __getitem__(self, i: int) -> Any:
        try:
            image = self.open(i)
        except OSError:
            self.failures += 1
            return self[i + 1]
        return self.transform(image), self.failures


@case()
def failures_are_counted(Loader: Any, root: Path, **arguments: Any) -> Any:
    dataset = CountsFailures(root)
    return epochs(Loader, dataset, **arguments), dataset.failures


class Steps(Pictures):
    def __init__(self, root: Path):
        super().__init__(root)
        self.flip = T.RandomHorizontalFlip(0.0)
        self.steps = T.Compose([T.RandomHorizontalFlip(0.0), T.CenterCrop(20), T.ToTensor()])


@case()
class ChangesATransformOnce(Steps):
    def __getitem__(self, i: int) -> Any:
        if i == RARE:
            self.flip.p = 1.0
        return self.steps(self.flip(self.open(i))), i


@case()
class ChangesAStepOnce(Steps):
    def __getitem__(self, i: int) -> Any:
        if i == RARE:
            self.steps.transforms[0].p = 1.0
        return self.steps(self.open(i)), i


class BySet(Pictures):
    def __init__(self, root: Path):
        super().__init__(root)
        self.flipped: set[int] = set()

    def __getitem__(self, i: int) -> Any:
        return (FLIPPED if i in self.flipped else CROP)(self.open(i)), i


@case()
def a_set_that_grows_in_mid_epoch(Loader: Any, root: Path, **arguments: Any) -> Any:
    dataset, found = BySet(root), []
    for number, batch in enumerate(Loader(dataset, BATCH, **arguments)):
        found.append(batch)
        if not arguments["num_workers"]:
            dataset.flipped |= {BATCH * number + BATCH, BATCH * number + BATCH + 1}
    return found


class Weighted(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.full((3, 1, 1), 0.5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.weight


@case()
def weights_that_change(Loader: Any, root: Path, **arguments: Any) -> Any:
    weighted = Weighted().requires_grad_(False)
    loader = Loader(Pictures(root, T.Compose([*CROP.transforms, weighted])), BATCH, **arguments)
    first = list(loader)
    weighted.weight.data *= 0.5
    return first, list(loader)


@case(lambda epochs: [batch[0].requires_grad for epoch in epochs for batch in epoch])
class WeightsThatLearn(Pictures):
    def __init__(self, root: Path):
        super().__init__(root, T.Compose([*CROP.transforms, Weighted()]))


# ---- seeds by other names


def fixed(epochs: list[Any]) -> Any:
    return [image for epoch in epochs for batch in epoch for image, i in zip(*batch, strict=True) if i % 12 == RARE]


class Helper:
    def settle(self, i: int) -> None:
        torch.manual_seed(i)


class SeedsSome(Pictures):
    def __init__(self, root: Path):
        super().__init__(root, TRAIN)
        self.helper = Helper()

    def prepare(self, i: int) -> None:
        raise NotImplementedError

    def __getitem__(self, i: int) -> Any:
        if i % 12 == RARE:
            self.prepare(i)
        return self.transform(self.open(i)), i


@case(fixed)
class SeedsByAnAlias(SeedsSome):
    def prepare(self, i: int) -> None:
        fix(i)


@case(fixed)
class SeedsByAHelper(SeedsSome):
    def prepare(self, i: int) -> None:
        self.helper.settle(i)


@case(fixed)
class SeedsSomeOutOfSight(SeedsSome):
    def prepare(self, i: int) -> None:
        getattr(torch, "manual" + "_seed")(i)


# ---- traces


def counted(function: Any) -> Any:
    @functools.wraps(function)
    def inner(self: Any, i: int) -> Any:
        inner.calls += 1  # type: ignore[attr-defined]
        return *function(self, i), inner.calls  # type: ignore[attr-defined]

    inner.calls = 0  # type: ignore[attr-defined]
    return inner


class Decorated(Pictures):
    __getitem__ = counted(Pictures.__getitem__)


@case()
def a_decorator_that_counts(Loader: Any, root: Path, **arguments: Any) -> Any:
    Decorated.__getitem__.calls = 0
    return epochs(Loader, Decorated(root), **arguments)


@functools.cache
def number_of(path: Path, numbers: list[int] = []) -> int:  # noqa: B006
    numbers.append(len(numbers))
    return numbers[-1]


class Numbered(Pictures):
    def __getitem__(self, i: int) -> Any:
        return self.transform(self.open(i)), number_of(self.paths[i])


@case(forks=True)
def a_function_that_keeps_results(Loader: Any, root: Path, **arguments: Any) -> Any:
    number_of.cache_clear()
    (numbers,) = number_of.__wrapped__.__defaults__ or ()
    numbers.clear()
    return epochs(Loader, Numbered(root), sampler=[3, 9, 4, 23, 0, 1], **arguments)


class Logged(Pictures):
    def __getitem__(self, i: int) -> Any:
        with (self.paths[0].parent / "log.txt").open("a") as file:
            file.write(f"{i}\n")
        return self.transform(self.open(i)), i


@case()
def a_log_in_a_file(Loader: Any, root: Path, **arguments: Any) -> Any:
    return epochs(Loader, Logged(root), **arguments), sorted((root / "log.txt").read_text().split())


# ---- images


@case()
class AsksForTheFormat(Pictures):
    def __getitem__(self, i: int) -> Any:
        opened = Image.open(self.paths[i])
        return self.transform(opened.convert("RGB")), str(opened.format), str(opened.convert("RGB").format)


@case()
class TransparentPalettes(Pictures):
    """Pillow warns of them when they are converted."""

    def __init__(self, root: Path):
        super().__init__(root)
        for path in self.paths:
            Image.open(path).convert("P").save(path, transparency=bytes([0, 3, 77]))

    def __getitem__(self, i: int) -> Any:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            image = self.open(i)
        return self.transform(image), len(caught), "transparency" in image.info


@case(lambda epochs: [[part[:, 2].mean((1, 2)) for part in batch] for epoch in epochs for batch in epoch])
class OneTemporaryFile(Pictures):
    def __init__(self, root: Path):
        super().__init__(root, T.Compose([T.RandomCrop(20), T.ToTensor()]))

    def saved(self, i: int) -> Image.Image:
        path = self.paths[0].parent / f"{os.getpid()}.bmp"
        self.open(i).save(path)
        return Image.open(path).convert("RGB")

    def __getitem__(self, i: int) -> Any:
        return self.transform(self.saved(i)), self.transform(self.saved((i + 7) % len(self)))


@case()
class PastesASmallOne(Pictures):
    def __getitem__(self, i: int) -> Any:
        image, small = self.open(i), self.open((i + 3) % len(self)).resize((10, 12))
        image.paste(small, (4, 5))
        return self.transform(image), self.transform(small)


SCALES: dict[Any, Any] = {torch.Tensor: lambda x: x * 0}


@case(lambda epochs: [batch[0].abs().max() for epoch in epochs for batch in epoch])
class ChoosesByType(Pictures):
    def __init__(self, root: Path):
        super().__init__(root, TRAIN)

    def __getitem__(self, i: int) -> Any:
        x = self.transform(self.open(i))
        return SCALES.get(type(x), lambda x: x)(x), i


@case()
class AsksForTheClass(Pictures):
    def __getitem__(self, i: int) -> Any:
        image = self.open(i)
        return self.transform(image), image.__class__.__name__


# ---- loaders


def halves(batch: Any, *, collate_fn_map: Any = None) -> torch.Tensor:
    return torch.stack(batch).half()


@case(forks=True)
def another_way_to_collate_tensors(Loader: Any, root: Path, **arguments: Any) -> Any:
    before = default_collate_fn_map[torch.Tensor]
    default_collate_fn_map[torch.Tensor] = halves
    try:
        return epochs(Loader, Pictures(root), **arguments)
    finally:
        default_collate_fn_map[torch.Tensor] = before


def with_worker(samples: list[Any]) -> Any:
    worker = get_worker_info()
    return default_collate(samples), -1 if worker is None else worker.id


@case(collate_fn=with_worker)
class CollatesWithItsWorker(Pictures):
    pass


@case()
def another_order_in_the_batches(Loader: Any, root: Path, **arguments: Any) -> Any:
    loader = Loader(Pictures(root, EVAL), BATCH, **arguments)
    first = list(loader)
    loader.batch_sampler.sampler = np.array([9, 3, 5, 11, 2]).tolist()
    return first, len(loader), list(loader)
