"""Loaders of images that people use today, beside gpupipe's."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any

import torch
from PIL import Image

from ..datasets.subset import Subset
from ..engines.dali import installed
from ..errors import ConfigError, MissingDependency, PipelineError
from ..transforms.compose import Compose
from ..transforms.containers import _Container
from ..transforms.transform import Transform
from .by_hand import batches, classic, graph
from .measure import Batches
from .pillow_steps import PillowSteps


@dataclass(frozen=True)
class Work:
    """What all candidates do."""

    samples: Subset
    pipeline: Compose
    batch_size: int
    workers: int
    device: str

    def files(self) -> tuple[list[str], list[int]]:
        """Return (paths, labels) of the samples.

        Raises:
            ConfigError: the samples are not files.
        """
        if not self.samples.whole_files:
            raise ConfigError("other loaders can be measured on files only")
        indices = self.samples.indices.tolist()
        # Files are repeated to make epochs longer; open each only once.
        opened = {index: self.samples.dataset.fetch(index) for index in set(indices)}
        return [str(opened[index][0]) for index in indices], [int(opened[index][1] or 0) for index in indices]


def _nothing(work: Work) -> str:
    return ""


@dataclass(frozen=True)
class Peer:
    """A loader that is not gpupipe's."""

    title: str
    start: Callable[[Work], Batches]
    """Prepares the work, and returns what starts an epoch of (images, labels) on the device. Raises
    :class:`MissingDependency` if its library is not installed, and another :class:`GpupipeError` if it cannot do this
    work."""
    pixels: Callable[[Work], str] = _nothing
    """Tells how its pixels differ from those of torchvision on images of Pillow; empty if they do not."""


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


def torch_loader(work: Work, dataset: torch.utils.data.Dataset[Any]) -> Batches:
    """Return torch's DataLoader of a dataset."""
    loader = torch.utils.data.DataLoader(
        dataset,
        batch_size=work.batch_size,
        shuffle=True,
        drop_last=True,
        num_workers=work.workers,
        pin_memory=work.device != "cpu",
        persistent_workers=work.workers > 0,
    )
    return OnDevice(loader, work.device).__iter__


def imported(name: str) -> Any:
    """Return a module. Raises :class:`MissingDependency` if it cannot be imported."""
    try:
        return importlib.import_module(name)
    except (ImportError, RuntimeError, OSError) as e:  # RuntimeError: built for another torch
        raise MissingDependency(f"{name.partition('.')[0]} cannot be imported: {str(e).splitlines()[0]}") from None


def _torchvision(work: Work) -> Batches:
    transforms = imported("torchvision.transforms")
    steps = transforms.Compose([translated(t, transforms) for t in work.pipeline])
    return torch_loader(work, Files(*work.files(), steps))


_OTHERWISE = ("FiveCrop", "Lambda", "TenCrop", "ToDtype")
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


def _pillow(work: Work) -> Batches:
    return torch_loader(work, Files(*work.files(), PillowSteps(work.pipeline)))


def _dali_by_hand(work: Work) -> Batches:
    cuda = work.device != "cpu"
    if not installed():
        raise MissingDependency("DALI is not installed")
    pipe = graph(*work.files(), work.pipeline, batch_size=work.batch_size, threads=work.workers, cuda=cuda)
    return lambda: batches(pipe, cuda=cuda)


def _timm(work: Work) -> Batches:
    loader = timm_loader(*work.files(), work.pipeline, work.batch_size, work.workers, work.device)
    return loader.__iter__  # type: ignore[no-any-return]


def timm_loader(
    files: Sequence[str], labels: Sequence[int], pipeline: Compose, batch_size: int, workers: int, device: str
) -> Any:
    """Return timm's loader of the classic pipeline. Raises :class:`PipelineError` for another one."""
    timm = imported("timm.data")
    crop, flip, normalize = classic(pipeline)
    return timm.create_loader(
        Files(files, labels, lambda image: image),
        crop.size,
        batch_size,
        is_training=True,
        scale=crop.scale,
        ratio=crop.ratio,
        hflip=flip.p,
        color_jitter=None,
        interpolation=crop.interpolation,
        mean=normalize.mean,
        std=normalize.std,
        num_workers=workers,
        device=torch.device(device),
    )


TORCHVISION, PILLOW = "torchvision", "pillow"
PEERS: dict[str, Peer] = {
    TORCHVISION: Peer("torch DataLoader + torchvision", _torchvision),
    PILLOW: Peer("torch DataLoader + Pillow", _pillow),
    "timm": Peer("timm's loader", _timm),
    "dali-by-hand": Peer("DALI by hand", _dali_by_hand, lambda work: "DALI's decoder and resize; draws of its own"),
}
"""By name, the usual baselines first."""
