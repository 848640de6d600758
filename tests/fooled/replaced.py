"""Methods and functions that a script has replaced: the replacement runs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from PIL import Image
from torchvision import datasets, transforms as T
from torchvision.transforms import functional as TF, v2

from .base import BATCH, Pictures, case


def epoch(Loader: Any, dataset: Any, **arguments: Any) -> Any:
    return list(Loader(dataset, BATCH, **arguments))


def folder(root: Path, transform: Any, **options: Any) -> Any:
    """Two classes of the pictures, for torchvision's ImageFolder."""
    made = root / "folder"
    for number, path in enumerate(sorted(root.glob("*.jpg"))):
        target = made / f"class{number % 2}" / path.name
        if not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(path.read_bytes())
    return datasets.ImageFolder(str(made), transform, **options)


@contextlib.contextmanager
def replacing(of: Any, name: str, by: Any) -> Iterator[None]:
    with mock.patch.object(of, name, by):
        yield


def corner(*_: Any) -> tuple[int, int, int, int]:
    return 1, 2, 20, 20


@case(forks=True)
def get_params_of_an_instance(Loader: Any, root: Path, **arguments: Any) -> Any:
    crop = T.RandomCrop(20)
    crop.get_params = corner
    return epoch(Loader, folder(root, T.Compose([crop, T.ToTensor()])), **arguments)


@case(forks=True)
def get_params_of_a_class(Loader: Any, root: Path, **arguments: Any) -> Any:
    with replacing(T.RandomCrop, "get_params", staticmethod(corner)):
        return epoch(Loader, Pictures(root, T.Compose([T.RandomCrop(20), T.ToTensor()])), **arguments)


@case(forks=True)
def forward_of_a_class(Loader: Any, root: Path, **arguments: Any) -> Any:
    with replacing(T.RandomHorizontalFlip, "forward", lambda self, image: TF.vflip(image)):
        transform = T.Compose([T.CenterCrop(20), T.RandomHorizontalFlip(), T.ToTensor()])
        return epoch(Loader, folder(root, transform), **arguments)


@case(forks=True)
def make_params_of_an_instance(Loader: Any, root: Path, **arguments: Any) -> Any:
    crop = v2.RandomCrop(20)
    found = crop.make_params([Image.new("RGB", (36, 32))])
    crop.make_params = lambda _: {**found, "top": 1, "left": 2}
    return epoch(Loader, folder(root, v2.Compose([crop, v2.PILToTensor()])), **arguments)


@case(forks=True)
def transform_of_an_instance(Loader: Any, root: Path, **arguments: Any) -> Any:
    flip = v2.RandomHorizontalFlip(1.0)
    flip.transform = lambda image, params: image
    return epoch(Loader, folder(root, v2.Compose([flip, v2.CenterCrop(20), v2.PILToTensor()])), **arguments)


@case(forks=True)
def call_of_an_instances_class(Loader: Any, root: Path, **arguments: Any) -> Any:
    with replacing(T.ToTensor, "__call__", lambda self, image: TF.to_tensor(image) * 0.5):
        return epoch(Loader, folder(root, T.Compose([T.CenterCrop(20), T.ToTensor()])), **arguments)


@case(forks=True)
def hflip_of_the_module(Loader: Any, root: Path, **arguments: Any) -> Any:
    with replacing(TF, "hflip", lambda image: image):
        transform = T.Compose([T.CenterCrop(20), T.RandomHorizontalFlip(1.0), T.ToTensor()])
        return epoch(Loader, folder(root, transform), **arguments)


def green(path: str) -> Image.Image:
    return Image.new("RGB", (36, 32), (0, 200, 0))


@case(forks=True)
def pil_loader_of_the_module(Loader: Any, root: Path, **arguments: Any) -> Any:
    with replacing(datasets.folder, "pil_loader", green):
        return epoch(Loader, folder(root, T.Compose([T.CenterCrop(20), T.ToTensor()])), **arguments)


@case(forks=True)
def loader_of_the_dataset(Loader: Any, root: Path, **arguments: Any) -> Any:
    return epoch(Loader, folder(root, T.Compose([T.CenterCrop(20), T.ToTensor()]), loader=green), **arguments)


_open, _resize, _convert = Image.open, Image.Image.resize, Image.Image.convert


@case(forks=True)
def open_of_pillow(Loader: Any, root: Path, **arguments: Any) -> Any:
    with replacing(Image, "open", lambda file, *more: _open(file, *more).transpose(Image.Transpose.FLIP_LEFT_RIGHT)):
        return epoch(Loader, Pictures(root), **arguments)


@case(forks=True)
def open_of_pillow_beneath_image_folder(Loader: Any, root: Path, **arguments: Any) -> Any:
    with replacing(Image, "open", lambda file, *more: green("")):
        return epoch(Loader, folder(root, T.Compose([T.CenterCrop(20), T.ToTensor()])), **arguments)


@case(forks=True)
def resize_of_pillow(Loader: Any, root: Path, **arguments: Any) -> Any:
    def nearest(self: Image.Image, size: Any, *args: Any, **kwargs: Any) -> Image.Image:
        return _resize(self.transpose(Image.Transpose.FLIP_TOP_BOTTOM), size, Image.Resampling.NEAREST)

    with replacing(Image.Image, "resize", nearest):
        return epoch(Loader, Pictures(root), **arguments)


@case(forks=True)
def convert_of_pillow(Loader: Any, root: Path, **arguments: Any) -> Any:
    with replacing(Image.Image, "convert", lambda self, *args, **kwargs: _convert(self, "L").convert("RGB")):
        return epoch(Loader, Pictures(root), **arguments)


@case(forks=True)
def getitem_of_the_class(Loader: Any, root: Path, **arguments: Any) -> Any:
    replacement = lambda self, i: (torch.full((3,), i), i)  # noqa: E731
    with replacing(datasets.ImageFolder, "__getitem__", replacement):
        return epoch(Loader, folder(root, T.ToTensor()), **arguments)


@case(forks=True)
def samples_of_a_folder(Loader: Any, root: Path, **arguments: Any) -> Any:
    """Cut short, relabeled and turned round, as for few labels."""
    made = folder(root, T.Compose([T.CenterCrop(20), T.ToTensor()]))
    made.samples = [(path, 7 - label) for path, label in reversed(made.samples[:13])]
    made.imgs = made.samples
    return epoch(Loader, made, **arguments)


@case(forks=True)
def target_transform_that_depends_on_time(Loader: Any, root: Path, **arguments: Any) -> Any:
    """One that answers otherwise at the second call of a class."""
    seen: list[int] = []

    def rank(label: int) -> int:
        seen.append(label)
        return seen.count(label)

    made = folder(root, T.Compose([T.CenterCrop(20), T.ToTensor()]), target_transform=rank)
    return epoch(Loader, made, **arguments)


class Halves(T.CenterCrop):
    """A subclass of torchvision's, with a result of its own."""

    def forward(self, image: Any) -> Any:
        return TF.center_crop(image, [image.height // 2, image.width // 2]).resize((20, 20))


@case()
def subclass_of_a_transform(Loader: Any, root: Path, **arguments: Any) -> Any:
    return epoch(Loader, Pictures(root, T.Compose([Halves(1), T.ToTensor()])), **arguments)


class WithPaths(datasets.ImageFolder):
    def __getitem__(self, i: int) -> Any:
        return (*super().__getitem__(i), Path(self.imgs[i][0]).name)


class OnlyLabels(datasets.ImageFolder):
    def __getitem__(self, i: int) -> Any:
        path, label = self.samples[i]
        image = self.transform(self.loader(path).rotate(90))
        return image, label * 10


@case(forks=True)
def subclass_of_image_folder(Loader: Any, root: Path, **arguments: Any) -> Any:
    first = folder(root, T.Compose([T.CenterCrop(20), T.ToTensor()]))
    return [epoch(Loader, kind(first.root, first.transform), **arguments) for kind in (WithPaths, OnlyLabels)]
