"""One image in several places, and images that a script keeps."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torchvision import transforms as T

from .base import TRAIN, Pictures, case


class Random(Pictures):
    def __init__(self, root: Path):
        super().__init__(root, TRAIN)


def alike(epochs: list[Any]) -> Any:
    """Which of the images of each sample are equal, and whether they may be written to one by one."""
    found: list[Any] = []
    for batch in (batch for epoch in epochs for batch in epoch):
        images = [part for part in batch if isinstance(part, torch.Tensor) and part.ndim == 4]
        found.append([[torch.equal(a, b) for b in images] for a in images])
        found.append([len({image.data_ptr() for image in images})])
    return found


def drawn(epochs: list[Any]) -> Any:
    """What is fixed of samples of random crops: all but where they were cut."""
    return [
        [(batch[0].shape, batch[0].dtype, [round(v, 2) for v in batch[0][:, 2, 0, 0].tolist()], batch[1])]
        for epoch in epochs
        for batch in epoch
    ]


def repeats(epochs: list[Any]) -> Any:
    """Whether the second epoch has the images of the first."""
    one, two = (torch.cat([batch[0] for batch in epoch]) for epoch in epochs)
    # An engine and the script's own code may round differently.
    return [torch.allclose(a, b, atol=1e-6) for a, b in zip(one, two, strict=True)].count(True) > len(one) // 2


@case(alike)
class Twice(Random):
    def __getitem__(self, i: int) -> Any:
        x = self.transform(self.open(i))
        return x, x


@case(alike)
class ThreeTimesInAList(Random):
    def __getitem__(self, i: int) -> Any:
        return [self.transform(self.open(i))] * 3


@case(alike)
class TwoViews(Random):
    def __getitem__(self, i: int) -> Any:
        image = self.open(i)
        return self.transform(image), self.transform(image)


@case(alike)
class ViewAndCopy(Random):
    def __getitem__(self, i: int) -> Any:
        x = self.transform(self.open(i))
        return x, x.clone(), x.float(), self.transform(self.open(i))


@case(alike)
class CleanAndNoisy(Random):
    def __getitem__(self, i: int) -> Any:
        x = self.transform(self.open(i))
        return x, x + torch.randn_like(x) * 0.1


@case(alike)
class CleanAndChanged(Random):
    """The second one is a view of the first, so both change."""

    def __getitem__(self, i: int) -> Any:
        x = self.transform(self.open(i))
        y = x
        y[:, 0] = 0
        return x, y, x[:, :5, :5]


@case(alike)
class CropThenTwoColors(Random):
    def __init__(self, root: Path):
        super().__init__(root)
        self.crop, self.color = T.RandomCrop(20), T.ColorJitter(0.5)

    def __getitem__(self, i: int) -> Any:
        crop, tensor = self.crop(self.open(i)), T.functional.to_tensor
        return tensor(self.color(crop)), tensor(self.color(crop)), tensor(crop), tensor(crop)


@case(repeats, forks=True)
class KeepsTensors(Random):
    def __init__(self, root: Path):
        super().__init__(root)
        self.kept: dict[int, Any] = {}

    def __getitem__(self, i: int) -> Any:
        if i not in self.kept:
            self.kept[i] = self.transform(self.open(i))
        return self.kept[i], i


@case(repeats, forks=True)
class KeepsTensorsOfItsClass(Random):
    kept: dict[int, Any] = {}

    def __init__(self, root: Path):
        super().__init__(root)
        type(self).kept = {}

    def __getitem__(self, i: int) -> Any:
        if i not in self.kept:
            self.kept[i] = self.transform(self.open(i))
        return self.kept[i], i


@case(drawn)
class KeepsImages(Random):
    def __init__(self, root: Path):
        super().__init__(root)
        self.kept: dict[int, Any] = {}

    def __getitem__(self, i: int) -> Any:
        if i not in self.kept:
            self.kept[i] = self.open(i)
        return self.transform(self.kept[i]), i


@case()
class KeepsArrays(Pictures):
    def __init__(self, root: Path):
        super().__init__(root)
        self.kept: dict[int, Any] = {}

    def __getitem__(self, i: int) -> Any:
        if i not in self.kept:
            self.kept[i] = np.array(Image.open(self.paths[i]))
        return self.transform(Image.fromarray(self.kept[i])), i


@case()
class KeepsFromTheStart(Pictures):
    def __init__(self, root: Path):
        super().__init__(root)
        self.images = [self.open(i) for i in range(len(self))]

    def __getitem__(self, i: int) -> Any:
        return self.transform(self.images[i]), i


@case()
class KeepsOpen(Pictures):
    def __init__(self, root: Path):
        super().__init__(root)
        self.images = [Image.open(path) for path in self.paths]

    def __getitem__(self, i: int) -> Any:
        return self.transform(self.images[i].convert("RGB")), i


@case()
class KeepsBytes(Pictures):
    def __init__(self, root: Path):
        super().__init__(root)
        self.arrays = np.stack([np.asarray(self.open(i)) for i in range(len(self))])

    def __getitem__(self, i: int) -> Any:
        return self.transform(Image.fromarray(self.arrays[i])), i


@functools.cache
def remembered(path: Path) -> Any:
    return Image.open(path).convert("RGB")


@case()
class RemembersByFunction(Pictures):
    def __getitem__(self, i: int) -> Any:
        return self.transform(remembered(self.paths[i])), i


@functools.cache
def transformed(path: Path) -> Any:
    return TRAIN(Image.open(path).convert("RGB"))


@case(repeats, forks=True)
class RemembersTransformed(Pictures):
    def __getitem__(self, i: int) -> Any:
        return transformed(self.paths[i]), i


@case()
class SameImageTwice(Pictures):
    """Neighbors share a file."""

    def __getitem__(self, i: int) -> Any:
        return self.transform(self.open(i // 2)), i


@case()
class PairOfNeighbors(Pictures):
    def __getitem__(self, i: int) -> Any:
        one, other = self.transform(self.open(i)), self.transform(self.open((i + 1) % len(self)))
        return one, other, int(i % 3 == 0)


@case()
class Triplets(Pictures):
    def __getitem__(self, i: int) -> Any:
        return tuple(self.transform(self.open((i + step) % len(self))) for step in (0, 3, 7))


@case()
class DifferenceOfTwo(Pictures):
    def __getitem__(self, i: int) -> Any:
        return self.transform(self.open(i)) - self.transform(self.open((i + 1) % len(self))), i


@case()
class ContentAndStyle(Pictures):
    """Two images with transforms of their own."""

    def __init__(self, root: Path):
        super().__init__(root)
        self.style = T.Compose([T.Resize(16), T.CenterCrop(12), T.ToTensor()])

    def __getitem__(self, i: int) -> Any:
        return {"content": self.transform(self.open(i)), "style": self.style(self.open(-i - 1))}


@case()
class Cameras(Pictures):
    def __getitem__(self, i: int) -> Any:
        return {"cameras": torch.stack([self.transform(self.open((i + k) % len(self))) for k in range(4)]), "at": i}


@case()
class MixesByHand(Pictures):
    def __getitem__(self, i: int) -> Any:
        x, y = self.transform(self.open(i)), self.transform(self.open((i + 5) % len(self)))
        return 0.3 * x + 0.7 * y, i


@case()
class ChangesACopy(Pictures):
    """And what it was made of stays."""

    def __getitem__(self, i: int) -> Any:
        x = self.transform(self.open(i))
        y = x.clone()
        if i % 12 == 5:
            y[:, :5] = 0
        z = torch.tensor(x)
        if i % 12 == 6:
            z.mul_(0.5)
        return x, y, z


@case()
class ChangesAView(Pictures):
    """And what it is a view of with it."""

    def __getitem__(self, i: int) -> Any:
        x = self.transform(self.open(i))
        turned, squeezed = x.transpose(1, 2), x[None]
        if i % 12 == 5:
            turned[:, :5] = 0
        if i % 12 == 6:
            squeezed.mul_(0.5)
        return x, turned, squeezed.squeeze(0)


@case()
class InAnotherShape(Pictures):
    def __getitem__(self, i: int) -> Any:
        x = self.transform(self.open(i))
        x.unsqueeze_(0)
        shape = x.shape
        x.squeeze_(0)
        return x.permute(1, 2, 0), x.flip(-1), x.flip([0, 1]), torch.flip(x, dims=(2,)), x.transpose(0, 2), list(shape)
