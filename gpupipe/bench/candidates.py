"""Loaders that ``gpupipe bench`` measures side by side."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
from PIL import Image

from ..datasets.dataset import Dataset
from ..datasets.subset import Subset
from ..errors import ConfigError, GpupipeError, PipelineError
from ..loader.dataloader import DataLoader
from ..transforms.compose import Compose
from ..transforms.containers import _Container
from ..transforms.transform import Transform
from .limits import LIMITS, limit

TORCHVISION = "torchvision"
ENGINES = ("dali", "torch", "null", TORCHVISION)
_EPOCH = 200_000
"""Minimum number of samples per epoch. Files are repeated to reach it, because short epochs measure their own start."""


@dataclass
class Candidates:
    """Loaders to measure. Use as a context manager, which closes them."""

    start: dict[str, Callable[[], Iterable[Any]]] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)
    """Reasons for missing candidates, by name."""
    _loaders: list[DataLoader] = field(default_factory=list)

    @property
    def baseline(self) -> str:
        """torch's DataLoader with torchvision if available, otherwise the reference, otherwise the first candidate."""
        return next((name for name in (TORCHVISION, "torch") if name in self.start), next(iter(self.start)))

    def __enter__(self) -> Candidates:
        return self

    def __exit__(self, *exc: object) -> None:
        for loader in self._loaders:
            loader.close()


def build(
    names: Sequence[str],
    dataset: Dataset,
    pipeline: Compose,
    *,
    batch_size: int,
    num_workers: int,
    device: str,
    required: bool = False,
) -> Candidates:
    """Create a candidate for each name from :data:`ENGINES` and :data:`~.limits.LIMITS`. Unavailable ones are omitted;
    engines raise an error if ``required``.

    Samples known to be bad are not used.
    """
    unknown = [name for name in names if name not in (*ENGINES, *LIMITS)]
    if unknown or not names:
        raise ConfigError(f"engines must be some of {', '.join(ENGINES)}, not {', '.join(unknown) or 'nothing'}")
    order = np.arange(len(dataset))
    good = np.setdiff1d(order, [s.index for s in dataset.bad(order)])
    if not len(good):
        raise ConfigError(f"{dataset!r}: no sample can be read")
    many = Subset(dataset, np.tile(good, -(-max(_EPOCH, batch_size) // len(good))), transform=pipeline)
    found = Candidates()
    common: dict[str, Any] = {"batch_size": batch_size, "shuffle": True, "drop_last": True, "num_workers": num_workers}
    for name in dict.fromkeys(names):
        try:
            if name == TORCHVISION:
                found.start[name] = _torchvision(many, pipeline, device, common).__iter__
                continue
            made: Any
            if name in LIMITS:
                made = limit(name, many, device=device, common=common)
            else:
                made = DataLoader(many, engine=name, device=device, seed=0, **common)  # type: ignore[arg-type]
            if isinstance(made, DataLoader):
                found._loaders.append(made)
            found.start[name] = made.__iter__ if isinstance(made, DataLoader) else made
        except GpupipeError as e:
            if required and name in ENGINES:
                raise
            found.left_out[name] = str(e)
    if not found.start:
        raise ConfigError("; ".join(f"{name}: {why}" for name, why in found.left_out.items()))
    return found


class _Files:
    """torch dataset that users would write today: (PIL image through torchvision's transforms, label)."""

    def __init__(self, dataset: Dataset, transform: Callable[[Any], Any]):
        self.dataset = dataset
        self.transform = transform

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> tuple[Any, int]:
        media, label = self.dataset.fetch(index)
        assert isinstance(media, str)
        with Image.open(media) as image:
            return self.transform(image.convert("RGB")), 0 if label is None else label


class _OnDevice:
    """torch's DataLoader, plus the copy to the device that a training loop would make."""

    def __init__(self, loader: Any, device: str):
        self.loader = loader
        self.device = device

    def __iter__(self) -> Any:
        for images, target in self.loader:
            yield images.to(self.device, non_blocking=True), target.to(self.device, non_blocking=True)


def _torchvision(dataset: Dataset, pipeline: Compose, device: str, common: dict[str, Any]) -> _OnDevice:
    from torch.utils.data import DataLoader as TorchLoader

    try:
        transforms = importlib.import_module("torchvision.transforms")
    except (ImportError, RuntimeError) as e:  # RuntimeError: built for another torch
        raise ConfigError(f"torchvision cannot be imported: {str(e).splitlines()[0]}") from None
    if not dataset.whole_files:
        raise ConfigError("torchvision can be measured on files only")
    steps = transforms.Compose([_translated(t, transforms) for t in pipeline])
    loader: Any = TorchLoader(
        _Files(dataset, steps),  # type: ignore[arg-type]
        pin_memory=device != "cpu",
        persistent_workers=common["num_workers"] > 0,
        **common,
    )
    return _OnDevice(loader, device)


_OTHERWISE = ("FiveCrop", "Lambda", "TenCrop", "ToDtype")
"""Transforms that torchvision defines differently under the same name."""
_OTHER_NAME = {"ToImage": "PILToTensor"}


def _translated(transform: Transform, transforms: Any) -> Any:
    """Return the transform of the same name from torchvision's transforms v1, which work on PIL images."""
    name = type(transform).__name__
    cls = getattr(transforms, _OTHER_NAME.get(name, name), None)
    if cls is None or name in _OTHERWISE or isinstance(transform, _Container):
        raise PipelineError(f"{transform!r} has no equivalent in torchvision.transforms")
    values = {f.name: getattr(transform, f.name) for f in fields(transform)}
    if "interpolation" in values:
        values["interpolation"] = transforms.InterpolationMode(values["interpolation"])
    return cls(**values)
