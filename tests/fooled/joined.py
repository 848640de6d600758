"""Transforms that gpupipe does not have, and what they return in between; transforms that get no image at first."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torchvision import datasets, transforms as T

from .base import Pictures, case
from .identity import Random, alike, drawn, repeats


def halved(image: Image.Image) -> Image.Image:
    return image.resize((image.width // 2, image.height))


def square(image: Image.Image) -> Image.Image:
    """A random window as large as the shorter edge, as GANs crop the longer one."""
    size = min(image.size)
    left, top = random.randint(0, image.width - size), random.randint(0, image.height - size)
    return image.crop((left, top, left + size, top + size))


def without_border(image: Image.Image) -> Image.Image:
    """What it returns depends on pixels: columns whose red is zero are cut off."""
    columns = np.asarray(image)[..., 0].max(0) > 0
    return image.crop((int(columns.argmax()), 0, image.width, image.height))


class Standardized:
    """Own classes from end to end: arrays of float64 between them."""

    def __call__(self, image: Image.Image) -> Any:
        return (np.asarray(image) / 255.0 - 0.5) / 0.25


class HoleOfArray:
    def __call__(self, array: Any) -> Any:
        array = array.copy()
        array[3:9, 4:8] = 0
        return array


class ToTensorOfItsOwn:
    def __call__(self, array: Any) -> torch.Tensor:
        return torch.from_numpy(array.transpose(2, 0, 1).astype(np.float32))


class MiddleColumns(T.RandomCrop):
    @staticmethod
    def get_params(img: Any, output_size: Any) -> Any:
        height, width = output_size
        return random.randint(0, 12), (img.width - width) // 2, height, width


def of(*transforms: Any) -> Any:
    return lambda root: Pictures(root, T.Compose(list(transforms)))


def dataset(name: str, *transforms: Any, facts: Any = None) -> None:
    """A case of an own Dataset with these transforms."""

    class Transformed(Pictures):
        def __init__(self, root: Path):
            super().__init__(root, T.Compose(list(transforms)))

    Transformed.__name__ = name
    case(facts)(Transformed)


dataset("ArrayBetween", T.CenterCrop(20), np.array, T.ToTensor())
dataset(
    "ArrayBetweenRandomOnes", T.RandomCrop(24), np.array, T.ToPILImage(), T.RandomCrop(20), T.ToTensor(), facts=drawn
)
dataset("ArrayAtTheEnd", T.CenterCrop(20), np.array)
dataset("SizeThatDepends", halved, T.Resize((20, 20)), T.ToTensor())
dataset("SizeThatDependsToTheEnd", halved, T.ToTensor())
dataset("SizeThatDependsOnPixels", without_border, T.Resize((20, 20)), T.ToTensor())
dataset("SizeOfTheBatchThatDependsOnPixels", without_border, T.ToTensor())
dataset("WindowOfTheShorterEdge", square, T.Resize(20), T.ToTensor(), facts=drawn)
dataset("OwnClassesFromEndToEnd", T.CenterCrop(20), Standardized(), HoleOfArray(), ToTensorOfItsOwn())
dataset("TensorToImage", T.ToTensor(), lambda x: x[:, 2:], T.ToPILImage(), T.CenterCrop(20), T.ToTensor())
dataset("SubclassThatDraws", MiddleColumns(20), T.ToTensor(), facts=drawn)
dataset(
    "SubclassOfCompose",
    type("Shown", (T.Compose,), {"__call__": lambda self, x: self.transforms[0](x)})([T.ToTensor()]),
)
dataset("UnknownOfTheLibrary", T.ToTensor(), T.LinearTransformation(torch.eye(3 * 36 * 32), torch.zeros(3 * 36 * 32)))


class CountsImages:
    """A function that remembers: every second image is turned."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, image: Image.Image) -> Any:
        self.count += 1
        return np.array(image.rotate(180 * (self.count % 2)))


@case()
class CountsBeforeItGivesAnArray(Pictures):
    def __init__(self, root: Path):
        super().__init__(root, T.Compose([T.CenterCrop(20), CountsImages(), T.ToTensor()]))


def seeded(image: Image.Image) -> Any:
    torch.manual_seed(3)
    return np.array(image)


dataset("SeedsBeforeItGivesAnArray", seeded, T.ToPILImage(), T.RandomCrop(20), T.ToTensor())


@case()
def a_folder_whose_sizes_depend(Loader: Any, root: Path, **arguments: Any) -> Any:
    (root / "class").mkdir()
    for file in root.glob("*.jpg"):
        file.rename(root / "class" / file.name)
    transform = T.Compose([halved, T.Lambda(np.array), T.ToPILImage(), T.Resize((20, 20)), T.ToTensor()])
    return list(Loader(datasets.ImageFolder(str(root), transform), batch_size=4, **arguments))


# ---- which get something else than an image


def opened(path: Any) -> Image.Image:
    return Image.open(path).convert("RGB")


class OpensByItself(Pictures):
    """The file is opened by the first of the transforms, as in MAML."""

    steps: Any = (opened, T.Resize((20, 20)), T.ToTensor())

    def __init__(self, root: Path):
        super().__init__(root, T.Compose(list(self.steps)))

    def __getitem__(self, i: int) -> Any:
        return self.transform(str(self.paths[i])), i


case()(OpensByItself)


@case(drawn)
class OpensByItselfAndDraws(OpensByItself):
    steps = (opened, T.RandomCrop(20), T.ToTensor())


@case()
class OpensByItselfSometimes(OpensByItself):
    def __getitem__(self, i: int) -> Any:
        return self.transform(str(self.paths[i])) if i % 5 else T.Compose(self.transform.transforms[1:])(
            self.open(i)
        ), i


@case()
class TensorFirst(Pictures):
    """A tensor that becomes an image again."""

    def __init__(self, root: Path):
        super().__init__(root, T.Compose([T.ToPILImage(), T.Resize((20, 20)), T.ToTensor()]))

    def __getitem__(self, i: int) -> Any:
        return self.transform(T.functional.to_tensor(self.open(i))), i


@case(alike)
class TensorFirstInTwoViews(TensorFirst):
    """Two images, each made by itself."""

    def __init__(self, root: Path):
        Pictures.__init__(self, root, T.Compose([T.ToPILImage(), T.RandomCrop(20), T.ToTensor()]))

    def __getitem__(self, i: int) -> Any:
        x = T.functional.to_tensor(self.open(i))
        return self.transform(x), self.transform(x)


class OtherMode(Pictures):
    """Files of a mode that no engine has, which the first of the transforms converts."""

    mode, only = "RGBA", 1

    def __init__(self, root: Path):
        steps = [T.Lambda(lambda image: image.convert("RGB")), T.Resize((20, 20)), T.ToTensor()]
        super().__init__(root, T.Compose(steps))
        for path in self.paths[:: self.only]:
            with Image.open(path) as image:
                image.load()
            image.convert(self.mode).save(path)

    def open(self, i: int) -> Image.Image:
        return Image.open(self.paths[i])


case()(OtherMode)


@case()
class OtherModeOfAPalette(OtherMode):
    mode = "P"


@case()
class OtherModeOfSome(OtherMode):
    only = 6


@case(repeats)
class DrawsWhatItOpens(OpensByItself):
    """The function that opens draws which file it is."""

    steps = (
        lambda path: opened(Path(path).with_name(f"{random.randrange(24):02}.jpg")),
        T.CenterCrop(20),
        T.ToTensor(),
    )


@case()
class PathThatIsDamaged(OpensByItself):
    def __init__(self, root: Path):
        super().__init__(root)
        self.paths[5].write_bytes(b"no image")

    def __getitem__(self, i: int) -> Any:
        try:
            return super().__getitem__(i)
        except OSError:
            return super().__getitem__(i + 1)


class InTurn(Random):
    """A transform in each class."""

    augment = T.Compose([T.Resize((20, 20)), T.ToTensor()])
    by_name = {"small": T.Compose([T.CenterCrop(20), T.ToTensor()])}


@case()
class TransformOfItsClass(InTurn):
    def __getitem__(self, i: int) -> Any:
        return self.augment(self.open(i)), self.by_name["small"](self.open(i)), i


@case()
class TransformOfTheClassAbove(TransformOfItsClass):
    augment = T.Compose([T.CenterCrop(20), T.ToTensor()])


@case()
def replaces_a_transform_of_the_class(Loader: Any, root: Path, **arguments: Any) -> Any:
    class Replaced(TransformOfItsClass):
        augment = TransformOfItsClass.augment

    loader = Loader(Replaced(root), batch_size=4, **arguments)
    one = list(loader)
    Replaced.augment = T.Compose([T.Resize((20, 20)), T.Grayscale(3), T.ToTensor()])
    return one, list(loader)
