"""A case of the witness: something to look at, by each of some engines."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from gpupipe import DataLoader, GpupipeError, datasets, transforms as T

from .inputs import Inputs
from .watch import Watch, refused

__all__ = ["ALL", "BATCH", "ENGINES", "EVAL", "EVERY", "SEED", "TRAIN", "Case", "loader", "noisy", "photos", "plain"]

BATCH = 5
SEED = 11
ENGINES: dict[str, dict[str, Any]] = {
    "null": {"engine": "null"},
    "torch": {"engine": "torch"},
    "torch-2": {"engine": "torch", "num_workers": 2},
    "dali": {"engine": "dali", "num_workers": 2},
    "auto": {"engine": "auto", "num_workers": 2},
}
"""By the names that the witness file has. The number is that of worker processes."""
ALL = ("null", "torch", "dali")
EVERY = ("null", "torch", "torch-2", "dali", "auto")
TRAIN = T.Compose(
    [T.RandomResizedCrop(32), T.RandomHorizontalFlip(), T.ToTensor(), T.Normalize((0.5,) * 3, (0.2,) * 3)]
)
EVAL = T.Compose([T.Resize(40), T.CenterCrop(32), T.PILToTensor()])


@dataclass(frozen=True)
class Case:
    """One thing to look at, by each of some engines."""

    name: str
    engines: tuple[str, ...]
    look: Callable[[Inputs, str], Watch | dict[str, str]] = field(repr=False)
    """(inputs, engine) to what was seen."""


def loader(dataset: Any, engine: str, **arguments: Any) -> DataLoader:
    """Shuffled batches of five on the CPU, unless the arguments say otherwise."""
    given = {"batch_size": BATCH, "shuffle": True, "seed": SEED, "device": "cpu", **ENGINES[engine], **arguments}
    if "batch_sampler" in arguments:
        del given["batch_size"]
    if "sampler" in arguments or "batch_sampler" in arguments:
        del given["shuffle"]
    return DataLoader(dataset, **given)


def plain(
    name: str,
    make: Callable[[Inputs], Any],
    engines: Sequence[str] = ALL,
    *,
    facts: bool = False,
    epochs: int = 2,
    **arguments: Any,
) -> Case:
    """Some epochs of a dataset. ``facts``: also lengths, counts, states and the dataset's fingerprint."""

    def look(inputs: Inputs, engine: str) -> Watch | dict[str, str]:
        dataset = make(inputs)
        try:
            made = loader(dataset, engine, **arguments)
        except GpupipeError as e:
            return refused(e)
        with made as one:
            watch = Watch()
            state = one.state_dict()
            if not facts:
                if engine == engines[0]:
                    watch.found["pipeline"] = [state["pipeline"]]
                return watch.epochs(one, epochs).coarse()
            watch.found["dataset"] = [state.get("dataset", "torch's own loader")]
            return watch.says(one).epochs(one, epochs).says(one).facts(one)

    return Case(name, tuple(engines), look)


def photos(transform: Any) -> Callable[[Inputs], Any]:
    """The folder of photographs."""
    return lambda inputs: datasets.ImageFolder(inputs.photos, transform)


def noisy(x: torch.Tensor) -> torch.Tensor:
    """Draws from all three global generators."""
    import random

    return x + 0.1 * torch.rand_like(x) + 0.1 * float(np.random.rand()) + 0.1 * random.random()  # noqa: NPY002
