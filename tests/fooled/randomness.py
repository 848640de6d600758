"""Randomness that the script controls."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.utils.data import get_worker_info
from torchvision import transforms as T

from .base import COUNT, EVAL, TRAIN, Pictures, case
from .identity import Random, alike, drawn, repeats


@case()
class SeedsByIndex(Random):
    """Repeatable crops for validation."""

    def __getitem__(self, i: int) -> Any:
        random.seed(i)
        torch.manual_seed(i)
        return self.transform(self.open(i)), i


@case()
class SeedsOnlySome(Random):
    """Every fourth sample is fixed, and only that is compared."""

    def __getitem__(self, i: int) -> Any:
        if i % 4 == 1:
            torch.manual_seed(i)
            return self.transform(self.open(i)), i
        return EVAL(self.open(i)), i


@case()
class ForksTheGenerator(Random):
    def __getitem__(self, i: int) -> Any:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(i)
            return self.transform(self.open(i)), i


@case(alike)
class SameStateForTwo(Random):
    """Image and mask with one crop."""

    def __getitem__(self, i: int) -> Any:
        image, state = self.open(i), torch.get_rng_state()
        one = self.transform(image)
        torch.set_rng_state(state)
        return one, self.transform(image)


@case(alike)
class SameSeedForTwo(Random):
    def __getitem__(self, i: int) -> Any:
        image, seed = self.open(i), int(np.random.randint(2**31))  # noqa: NPY002
        random.seed(seed), torch.manual_seed(seed)
        one = self.transform(image)
        random.seed(seed), torch.manual_seed(seed)
        return one, self.transform(image)


def reseed(number: int) -> None:
    getattr(torch, "manual" + "_seed")(number)


@case()
class SeedsOutOfSight(Random):
    """A name that is put together when it is called."""

    def __getitem__(self, i: int) -> Any:
        reseed(i)
        return self.transform(self.open(i)), i


@case(repeats)
class SeedsByAGeneratorOfItsOwn(Random):
    """A crop drawn by the script, from a generator of the index."""

    def __getitem__(self, i: int) -> Any:
        at = np.random.default_rng(i).integers(0, 8, 2)
        image = T.functional.crop(self.open(i), int(at[0]), int(at[1]), 20, 20)
        return T.functional.to_tensor(image), i


@case()
class CropDrawnOnceForTwo(Pictures):
    """As segmentation scripts do it, with functions."""

    def __getitem__(self, i: int) -> Any:
        generator = random.Random(i)
        top, left = generator.randint(0, 8), generator.randint(0, 8)
        image = self.open(i)
        one, other = (T.functional.crop(x, top, left, 20, 20) for x in (image, image.convert("L")))
        return T.functional.to_tensor(one), T.functional.to_tensor(other)


@case(drawn)
class ChoosesByChance(Pictures):
    def __init__(self, root: Path):
        super().__init__(root)
        self.other = TRAIN

    def __getitem__(self, i: int) -> Any:
        chosen = self.transform if random.random() < 0.5 else self.other
        return chosen(self.open(i)), i


@case()
class ChoosesByIndex(Pictures):
    def __init__(self, root: Path):
        super().__init__(root)
        self.other = T.Compose([T.Resize(20), T.CenterCrop(20), T.RandomHorizontalFlip(1.0), T.ToTensor()])

    def __getitem__(self, i: int) -> Any:
        return (self.other if i % 3 else self.transform)(self.open(i)), i


@case(drawn)
class RandomOrder(Pictures):
    def __init__(self, root: Path):
        super().__init__(root, T.Compose([T.RandomOrder([T.CenterCrop(20), T.RandomHorizontalFlip()]), T.ToTensor()]))


def noisy(label: int) -> int:
    return -label if random.random() < 0.5 else label


def some_differ(epochs: list[Any]) -> Any:
    """Whether labels are noisy in every epoch, and each is a possible one."""
    labels = [torch.cat([batch[1] for batch in epoch]) for epoch in epochs]
    return [bool((of < 0).any()) and sorted(of.abs().tolist()) == list(range(COUNT)) for of in labels]


@case(some_differ)
class NoisyLabels(Pictures):
    def __getitem__(self, i: int) -> Any:
        return self.transform(self.open(i)), noisy(i)


@case(some_differ)
class NoisyTargetTransform(Pictures):
    def __init__(self, root: Path):
        super().__init__(root)
        self.target_transform = noisy

    def __getitem__(self, i: int) -> Any:
        return self.transform(self.open(i)), self.target_transform(i)


@case()
def draws_of_its_own_are_torchs(Loader: Any, root: Path, **arguments: Any) -> Any:
    """Without workers, what a script draws afterwards is what it drew with torch, after a seed of its own."""
    loader = Loader(Pictures(root), 4, **arguments)
    random.seed(1), np.random.seed(1)  # noqa: NPY002
    first = random.random(), float(np.random.rand())  # noqa: NPY002
    list(loader)
    return first, random.random(), float(np.random.rand())  # noqa: NPY002


@case()
def making_a_loader_draws_nothing(Loader: Any, root: Path, **arguments: Any) -> Any:
    torch.manual_seed(5), random.seed(5), np.random.seed(5)  # noqa: NPY002
    Loader(Random(root), 4, **arguments)
    return torch.rand(1).item(), random.random(), float(np.random.rand())  # noqa: NPY002


@case(drawn)
class MosaicOfOthers(Random):
    """Chooses other samples by chance; blue says which."""

    def __getitem__(self, i: int) -> Any:
        _ = self.transform(self.open(random.randrange(len(self))))
        return self.transform(self.open(i)), i


@case()
class OwnGenerator(Pictures):
    """Draws in the order of the calls; without workers that is torch's."""

    def __init__(self, root: Path):
        super().__init__(root)
        self.random = random.Random(3)

    def __getitem__(self, i: int) -> Any:
        return self.transform(self.open(i)), self.random.randrange(1000)


@case()
class OwnGeneratorOfTorch(Pictures):
    def __init__(self, root: Path):
        super().__init__(root)
        self.generator = torch.Generator().manual_seed(3)

    def __getitem__(self, i: int) -> Any:
        return self.transform(self.open(i)), torch.randint(1000, (1,), generator=self.generator)


@case()
class OwnRandomState(Pictures):
    def __init__(self, root: Path):
        super().__init__(root)
        self.random = np.random.RandomState(3)

    def __getitem__(self, i: int) -> Any:
        return self.transform(self.open(i)), self.random.randint(1000)


def turned_by(draw: Callable[[], float]) -> Callable[[Image.Image], Image.Image]:
    return lambda image: image.rotate(360 * draw())


@case()
class GeneratorOfAnEnclosedFunction(Pictures):
    """The draws of a script's own generators stay in torch's order, however deep a function encloses them."""

    def __init__(self, root: Path):
        generator = np.random.default_rng(3)
        super().__init__(root, T.Compose([T.CenterCrop(20), turned_by(lambda: generator.random()), T.ToTensor()]))


@case()
class MethodOfAnEnclosedGenerator(Pictures):
    def __init__(self, root: Path):
        turned = turned_by(random.Random(3).random)
        super().__init__(root, T.Compose([T.CenterCrop(20), turned, T.ToTensor()]))


@case()
class GeneratorAsADefaultArgument(Pictures):
    def __init__(self, root: Path):
        def turned(image: Image.Image, generator: Any = torch.Generator().manual_seed(3)) -> Image.Image:  # noqa: B008
            return image.rotate(360 * torch.rand((), generator=generator).item())

        super().__init__(root, T.Compose([T.CenterCrop(20), turned, T.ToTensor()]))


@case()
class EnclosedIterator(Pictures):
    def __init__(self, root: Path):
        turns = itertools.cycle([0.0, 0.25, 0.5])
        super().__init__(root, T.Compose([T.CenterCrop(20), turned_by(lambda: next(turns)), T.ToTensor()]))


@case()
class SeedOfTheWorker(Pictures):
    """What a script asks of its worker is there."""

    def __getitem__(self, i: int) -> Any:
        worker = get_worker_info()
        return self.transform(self.open(i)), -1 if worker is None else worker.id + 10 * worker.num_workers
