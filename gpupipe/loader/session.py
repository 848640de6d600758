"""What stands behind a loader: gpupipe's own engines (``native.py``), or torch's own loader (``plain.py``)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

import torch

from ..types import Shard
from .arguments import Arguments
from .bad_sample_report import BadSampleReport
from .memory_limits import Estimate

__all__ = ["Session", "Stats"]


@dataclass
class Stats:
    """What a loader counted since it was made."""

    epochs: int = 0
    batches: int = 0
    samples: int = 0
    repaired: int = 0
    """Batches that were read a second time, because a sample turned out to be bad."""
    by_hand: int = 0
    """Samples that the script's own code made, transforms and all."""
    wait_seconds: float = 0.0
    work_seconds: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        total = self.wait_seconds + self.work_seconds
        return {**asdict(self), "stall": self.wait_seconds / total if total else 0.0}


class Session(ABC):
    """What follows from a loader's arguments, where it stands, what it has started, and what has happened.

    It knows neither the loader nor its iterators, and both keep it alive: when the last of them goes, what was started
    ends.
    """

    arguments: Arguments
    device: torch.device
    """Of the batches."""
    batch_size: int | None
    drop_last: bool
    shard: Shard
    sampler: Any
    """``loader.sampler``."""
    batch_sampler: Any
    """``loader.batch_sampler``."""
    prefetch_factor: int | None

    def __init__(self, arguments: Arguments):
        self.arguments = arguments
        self.report = BadSampleReport()
        self.stats = Stats()
        self.valid = 0
        """How many samples of the batch just handed out are real; the others pad it to the size of other ranks'."""

    @property
    @abstractmethod
    def seed(self) -> int:
        """Of order and augmentation."""

    @property
    @abstractmethod
    def has_begun(self) -> bool:
        """Whether there is a state to be saved: a seed, or an epoch that began or was set."""

    @abstractmethod
    def refreshed(self) -> Session:
        """The session for an epoch that begins now: this one, which has followed what has changed in dataset and
        sampler, or another one if it cannot."""

    @abstractmethod
    def take_batches(self, batches: Any) -> None:
        """A subclass has put ``batches``, which may have no end, in the place of ``loader.batch_sampler``."""

    @abstractmethod
    def __len__(self) -> int:
        """Batches of a whole epoch on this rank. Raises TypeError if that shows only when it ends."""

    @abstractmethod
    def iterate(self) -> Iterator[Any]:
        """An epoch, which begins with its first batch."""

    @abstractmethod
    def set_epoch(self, epoch: int) -> None:
        """The epoch that begins next."""

    @abstractmethod
    def state(self) -> dict[str, Any]:
        """Where it stands, to be saved."""

    @abstractmethod
    def load(self, state: dict[str, Any]) -> None:
        """Go on from there. Raises :class:`StateError` if the state does not fit."""

    @abstractmethod
    def close(self) -> None:
        """Stop every thread and process and free the memory. A later epoch starts them again."""

    def estimate(self) -> Estimate:
        """The memory that it will take, as far as that is known."""
        return Estimate(())

    @property
    @abstractmethod
    def source(self) -> str:
        """The dataset, for ``repr``."""

    def remarks(self) -> list[str]:
        """For ``repr`` and the report: what a person should know of how the work is done."""
        return []

    @abstractmethod
    def describe(self) -> list[str]:
        """For ``repr``: the order, the engine and why it is this one, the pipeline."""
