"""Every medium that images come from, and files of every kind."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch

import gpupipe
from gpupipe import datasets, transforms as T

from .case import ALL, ENGINES, EVAL, EVERY, TRAIN, Case, noisy, plain
from .inputs import COUNT, Inputs, package
from .watch import Watch

__all__ = ["made_of", "media", "odd_files"]


class Opaque(torch.utils.data.Dataset[dict[str, Any]]):
    """Nobody knows what it returns; it draws from all three global generators."""

    def __len__(self) -> int:
        return COUNT

    def __getitem__(self, i: int) -> dict[str, Any]:
        return {"x": noisy(torch.full((2, 3), float(i))), "i": i, "pair": (np.float32(i), f"sample {i}")}


def together(items: list[Any]) -> dict[str, Any]:
    """A collate function of one's own."""
    return {"sum": torch.stack([item["x"] for item in items]).sum(0), "which": [item["i"] for item in items]}


def media() -> Iterator[Case]:
    for name, transform in {"train": TRAIN, "eval": EVAL}.items():
        for medium, make in made_of(transform).items():
            engines = EVERY if medium == "folder" else ALL
            yield plain(f"medium/{medium} {name}", make, engines, facts=True, shuffle=name == "train")
    user = ("torch", "torch-2")
    yield plain("medium/opaque", lambda _: Opaque(), user, facts=True)
    yield plain("medium/opaque collate_fn", lambda _: Opaque(), user, facts=True, collate_fn=together, drop_last=True)
    yield plain("medium/opaque refused", lambda _: Opaque(), ("null",))
    yield Case("medium/from_torch", ALL, _taken_over)


def made_of(transform: T.Compose) -> dict[str, Callable[[Inputs], Any]]:
    def torchvision_folder(x: Inputs) -> Any:
        vision = package("torchvision.transforms")
        steps = [vision.RandomResizedCrop(32), vision.RandomHorizontalFlip(), vision.ToTensor()]
        if transform is EVAL:
            steps = [vision.Resize(40), vision.CenterCrop(32), vision.PILToTensor()]
        return package("torchvision.datasets").ImageFolder(x.photos, vision.Compose(steps))

    some = [12, 3, 3, 7, 0, 9, 1]
    return {
        "folder": lambda x: datasets.ImageFolder(x.photos, transform),
        "list": lambda x: datasets.ImageList(x.files[::-1], list(range(COUNT)), transform=transform),
        "list without labels": lambda x: datasets.ImageList([str(f) for f in x.files], transform=transform),
        "list from CSV": lambda x: datasets.ImageList(x.list_file, transform=transform),
        "arrays": lambda x: datasets.Arrays(x.pixels, np.arange(COUNT), transform=transform),
        "arrays in gray": lambda x: datasets.Arrays(x.pixels[..., 0], transform=EVAL),
        "torchvision folder": torchvision_folder,
        "subset": lambda x: datasets.Subset(datasets.ImageFolder(x.photos, EVAL), some, transform=transform),
        "torch subset": lambda x: torch.utils.data.Subset(torchvision_folder(x), some),
    }


def _taken_over(inputs: Inputs, engine: str) -> Watch:
    vision = package("torchvision.transforms")
    steps = vision.Compose([vision.RandomCrop(32), vision.ToTensor()])
    dataset = package("torchvision.datasets").ImageFolder(inputs.photos, steps)
    generator = torch.Generator().manual_seed(5)
    given: Any = torch.utils.data.DataLoader(dataset, 4, shuffle=True, drop_last=True, generator=generator)
    with gpupipe.from_torch(given, engine=ENGINES[engine]["engine"], device="cpu") as one:
        return Watch().epochs(one).says(one).facts(one)


def odd_files() -> Iterator[Case]:
    endings = (".jpg", ".png", ".gif", ".webp", ".bmp", ".ppm", ".tif")
    pipelines = {
        "whole": [T.Resize((40, 44)), T.PILToTensor()],
        "window": [T.RandomResizedCrop(24), T.PILToTensor()],
    }
    for exif, (name, transform) in itertools.product((False, True), pipelines.items()):

        def make(x: Inputs, exif: bool = exif, transform: Any = transform) -> Any:
            return datasets.ImageFolder(x.odd, transform, exif=exif, extensions=endings)

        turned = "exif" if exif else "as stored"
        # One at a time, so that a difference names its file.
        yield plain(f"odd/{name} {turned}", make, facts=True, epochs=1, batch_size=1, shuffle=False)
