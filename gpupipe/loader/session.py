"""Interface between a loader and its implementations: plans and engines (``planned.py``), or the
script's own code (``live_session.py``)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import ConfigError
from ..reasons import Reason
from ..types import Plan, Shard
from .arguments import Arguments
from .bad_sample_report import BadSampleReport
from .bottleneck import Measured, Work, bottleneck
from .stats import Stats

_NO_PLANS = (
    "the script's own code runs this dataset in torch's DataLoader, which only knows the next batch; pass one of "
    "gpupipe.datasets, or a dataset class of torchvision with transforms that gpupipe knows"
)


@dataclass
class Counts:
    """Counts since the loader was made."""

    epochs: int = 0
    batches: int = 0
    samples: int = 0
    repaired: int = 0
    """Batches that were read a second time because of a bad sample."""
    wait_seconds: float = 0.0
    work_seconds: float = 0.0
    measured: Measured = field(default_factory=Measured)
    """Where the time went."""

    @classmethod
    def total(cls, ranks: Iterable[Counts]) -> Counts:
        """Return the sums over all ranks, which are in the same epoch."""
        each = [asdict(rank) for rank in ranks]
        sums = _sum(each)
        sums |= {"epochs": max(values["epochs"] for values in each), "measured": Measured(**sums["measured"])}
        return cls(**sums)

    def shown(self, work: Work, images: dict[str, Any] | None = None) -> Stats:
        """Return the counts, the speed, the time by stage, the bottleneck, and what happened to images."""
        counts = {name: value for name, value in vars(self).items() if name != "measured"}
        total = self.wait_seconds + self.work_seconds
        found = bottleneck(self.measured, work)
        return Stats(
            **counts,
            samples_per_second=self.samples / total if total else 0.0,
            stall=self.wait_seconds / total if total else 0.0,
            stages=dict(self.measured.stages),
            bottleneck=None if found is None else asdict(found),
            images=images,
        )


def _sum(each: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return {
        name: _sum([values[name] for values in each]) if isinstance(first, dict) else sum(v[name] for v in each)
        for name, first in each[0].items()
    }


class Session(ABC):
    """State of a loader behind its arguments: its position, what it has started, and what has happened.

    It knows neither the loader nor its iterators. Both keep it alive: when the last of them is deleted, what was
    started ends.
    """

    images: dict[str, Any] | None = None
    """What happened to images that the script's own code opened, for :class:`Stats`."""
    arguments: Arguments
    device: torch.device
    """Device of the batches."""
    batch_size: int | None
    drop_last: bool
    shard: Shard
    sampler: Any
    """Value of ``loader.sampler``."""
    batch_sampler: Any
    """Value of ``loader.batch_sampler``."""
    prefetch_factor: int | None

    def __init__(self, arguments: Arguments):
        self.arguments = arguments
        self.report = BadSampleReport()
        self.stats = Counts()
        self.valid = 0
        """Number of real samples in the batch just delivered. The others pad it to the size of other ranks' batches."""

    @property
    @abstractmethod
    def seed(self) -> int:
        """Seed of order and augmentation."""

    @property
    @abstractmethod
    def has_begun(self) -> bool:
        """Return whether there is a state to save: a seed, or an epoch that was begun or set."""

    @abstractmethod
    def refreshed(self) -> Session:
        """Return the session for an epoch that begins now.

        This is the same session, updated to changes in dataset and sampler, or another one if it cannot follow them.
        """

    def has_batches(self, batches: Any) -> bool:
        """Return whether ``loader.batch_sampler`` is still what this session follows."""
        return batches is self.batch_sampler

    @abstractmethod
    def __len__(self) -> int:
        """Batches of a whole epoch on this rank. Raises TypeError if the number is unknown before the epoch ends."""

    @abstractmethod
    def iterate(self) -> Iterator[Any]:
        """Iterate over an epoch, which begins with its first batch."""

    def plan_at(self, epoch: int, step: int) -> Plan:
        """Return the plan of a step; see :meth:`gpupipe.DataLoader.plan_at`."""
        raise ConfigError(_NO_PLANS)

    def batch_at(self, epoch: int, step: int) -> Any:
        """Return the batch of a step; see :meth:`gpupipe.DataLoader.at`."""
        raise ConfigError(_NO_PLANS)

    def step_at(self, epoch: int, step: int) -> Any:
        """Return the images, targets and plan of a step, a :class:`gpupipe.loader.any_step.FoundStep`."""
        raise ConfigError(_NO_PLANS)

    @abstractmethod
    def set_epoch(self, epoch: int) -> None:
        """Set the epoch that begins next."""

    @abstractmethod
    def state(self, *, next_epoch: bool = False) -> dict[str, Any]:
        """Return the position, to be saved; or where the next ``iter()`` will begin, even if an epoch is running."""

    @abstractmethod
    def load(self, state: dict[str, Any]) -> None:
        """Continue from a saved state. Raises :class:`StateError` if it does not fit."""

    @abstractmethod
    def close(self) -> None:
        """Stop every thread and process and free the memory. A later epoch starts them again."""

    @property
    @abstractmethod
    def engine(self) -> tuple[str, str]:
        """Return the name of what makes the batches, and why it was chosen."""

    @property
    @abstractmethod
    def reasons(self) -> tuple[Reason, ...]:
        """Return why DALI does not do the work; empty if it does, or if another engine was named."""

    @property
    @abstractmethod
    def work(self) -> Work:
        """Return what the loader does, for advice."""

    @property
    @abstractmethod
    def source(self) -> str:
        """The dataset, for ``repr``."""

    def remarks(self) -> list[str]:
        """Notes on how the work is done, for ``repr`` and the report."""
        return []

    @abstractmethod
    def describe(self) -> list[str]:
        """Lines for ``repr``: the order, the engine and why it was chosen, the pipeline."""


def count_samples(batch: Any) -> int:
    """Return the number of samples in a batch, as far as its structure shows it."""
    while isinstance(batch, (list, tuple, Mapping)) and batch:
        batch = next(iter(batch.values() if isinstance(batch, Mapping) else batch))
    return len(batch) if isinstance(batch, (Tensor, np.ndarray)) and batch.ndim else 1
