"""Loaders that ``gpupipe bench`` measures side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..datasets.dataset import Dataset
from ..datasets.subset import Subset
from ..errors import ConfigError, GpupipeError
from ..loader.dataloader import DataLoader
from ..transforms.compose import Compose
from .limits import LIMITS, limit
from .torchs_loader import TITLES, TORCHVISION, torchs_loader

ENGINES = ("dali", "torch", "null")
_USUAL = (TORCHVISION, "torch")
"""What to compare with, best first."""
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
        """torch's DataLoader, otherwise the reference, otherwise the first candidate."""
        return next((name for name in _USUAL if name in self.start), next(iter(self.start)))

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
    """Create a candidate for each name from :data:`ENGINES`, :data:`~.torchs_loader.TITLES` and
    :data:`~.limits.LIMITS`. Unavailable ones are omitted; loaders raise an error if ``required``.

    Samples known to be bad are not used.
    """
    unknown = [name for name in names if name not in (*ENGINES, *TITLES, *LIMITS)]
    if unknown or not names:
        known = ", ".join((*ENGINES, *TITLES))
        raise ConfigError(f"engines must be some of {known}, not {', '.join(unknown) or 'nothing'}")
    order = np.arange(len(dataset))
    good = np.setdiff1d(order, [s.index for s in dataset.bad(order)])
    if not len(good):
        raise ConfigError(f"{dataset!r}: no sample can be read")
    many = Subset(dataset, np.tile(good, -(-max(_EPOCH, batch_size) // len(good))), transform=pipeline)
    found = Candidates()
    common: dict[str, Any] = {"batch_size": batch_size, "shuffle": True, "drop_last": True, "num_workers": num_workers}
    for name in dict.fromkeys(names):
        try:
            if name in TITLES:
                found.start[name] = torchs_loader(
                    many, pipeline, batch_size=batch_size, num_workers=num_workers, device=device
                )
                continue
            made: Any
            if name in LIMITS:
                made = limit(name, many, device=device, common=common)
            else:
                made = DataLoader(many, engine=name, device=device, seed=0, **common)  # type: ignore[call-overload]
            if isinstance(made, DataLoader):
                found._loaders.append(made)
            found.start[name] = made.__iter__ if isinstance(made, DataLoader) else made
        except GpupipeError as e:
            if required and name not in LIMITS:
                raise
            found.left_out[name] = str(e)
    if not found.start:
        raise ConfigError("; ".join(f"{name}: {why}" for name, why in found.left_out.items()))
    return found
