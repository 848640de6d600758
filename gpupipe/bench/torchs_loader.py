"""torch's DataLoader as scripts use it, with torchvision's transforms."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import fields
from typing import Any

import torch
from PIL import Image

from ..datasets.subset import Subset
from ..errors import ConfigError, MissingDependency, PipelineError
from ..transforms.compose import Compose
from ..transforms.containers import _Container
from ..transforms.transform import Transform
from .measure import Batches

TORCHVISION = "torchvision"
TITLES = {TORCHVISION: "torch DataLoader + torchvision"}


class Files(torch.utils.data.Dataset[Any]):
    """Dataset of files as scripts write it: opened by Pillow, converted to RGB, transformed."""

    def __init__(self, files: Sequence[str], labels: Sequence[int], transform: Callable[[Any], Any]):
        self.files, self.labels, self.transform = files, labels, transform

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        with Image.open(self.files[index]) as image:
            return self.transform(image.convert("RGB")), self.labels[index]


class OnDevice:
    """A loader of torch, and the copy to the device that a training loop would make."""

    def __init__(self, loader: Iterable[Any], device: str):
        self.loader, self.device = loader, device

    def __iter__(self) -> Iterator[Any]:
        for images, target in self.loader:
            yield images.to(self.device, non_blocking=True), target.to(self.device, non_blocking=True)


def usual() -> str:
    """Return the name of the loader that most scripts use, or of the reference engine without torchvision."""
    try:
        _torchvision_transforms()
    except MissingDependency:
        return "torch"
    return TORCHVISION


def torchs_loader(samples: Subset, pipeline: Compose, *, batch_size: int, num_workers: int, device: str) -> Batches:
    """Return a function that starts an epoch of torch's loader.

    Raises:
        GpupipeError: torchvision cannot be imported, or cannot do this work.
    """
    transforms = _torchvision_transforms()
    transform = transforms.Compose([translated(t, transforms) for t in pipeline])
    if not samples.whole_files:
        raise ConfigError("torch's loader can be measured on files of images only")
    indices = samples.indices.tolist()
    # Files are repeated to make epochs longer; open each only once.
    opened = {index: samples.dataset.fetch(index) for index in set(indices)}
    paths, labels = [str(opened[i][0]) for i in indices], [int(opened[i][1] or 0) for i in indices]
    loader = torch.utils.data.DataLoader(
        Files(paths, labels, transform),
        batch_size=batch_size,
        shuffle=True,
        drop_last=True,
        num_workers=num_workers,
        pin_memory=device != "cpu",
        persistent_workers=num_workers > 0,
    )
    return OnDevice(loader, device).__iter__


def _torchvision_transforms() -> Any:
    try:
        return importlib.import_module("torchvision.transforms")
    except (ImportError, RuntimeError, OSError) as e:  # RuntimeError: built for another torch
        raise MissingDependency(f"torchvision cannot be imported: {str(e).splitlines()[0]}") from None


_OTHERWISE = ("Lambda", "ToDtype")
"""Transforms that torchvision defines differently under the same name."""
_OTHER_NAME = {"ToImage": "PILToTensor"}


def translated(transform: Transform, transforms: Any) -> Any:
    """Return the transform of the same name from torchvision's transforms v1, which work on PIL images."""
    name = type(transform).__name__
    cls = getattr(transforms, _OTHER_NAME.get(name, name), None)
    if cls is None or name in _OTHERWISE or isinstance(transform, _Container):
        raise PipelineError(f"{transform!r} has no equivalent in torchvision.transforms")
    values = {f.name: getattr(transform, f.name) for f in fields(transform)}
    if "interpolation" in values:
        values["interpolation"] = transforms.InterpolationMode(values["interpolation"])
    return cls(**values)
