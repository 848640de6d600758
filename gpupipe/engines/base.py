"""The boundary between planning and executing: an engine turns plans into batches, in order. That is all it does."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from ..datasets.base import Dataset
from ..transforms.compose import Compose
from ..types import Batch, Plan
from .needs import Load, Need

__all__ = ["Engine", "EngineConfig", "Run", "Setup"]


@dataclass(frozen=True)
class Setup:
    """Everything an engine is built from. The values are checked by the loader."""

    dataset: Dataset
    pipeline: Compose
    device: str
    """``"cpu"`` or ``"cuda:N"``."""
    batch_size: int
    num_workers: int
    prefetch_factor: int = 2
    pin_memory: bool = False
    timeout: float = 0
    worker_init_fn: Callable[[int], None] | None = None
    multiprocessing_context: Any = None

    @property
    def cuda(self) -> bool:
        return self.device != "cpu"

    @property
    def threads(self) -> int:
        """Of what works in threads of this process. ``num_workers=0`` asks for no processes, and threads are none."""
        return self.num_workers or min(len(os.sched_getaffinity(0)), 8)


class Run(ABC):
    """One pass over a sequence of plans. Iterating gives one :class:`Batch` per plan, in order.

    ``next()`` raises :class:`gpupipe.errors.SampleError` in place of a batch whose samples could not be read; the
    ``next()`` after it
    gives the batch of the following plan.
    """

    def __iter__(self) -> Run:
        return self

    @abstractmethod
    def __next__(self) -> Batch: ...

    @abstractmethod
    def close(self) -> None:
        """Give up what is still in flight. The engine can run again afterwards. Closing twice is fine."""


class Engine(ABC):
    """Executes plans. Costs nothing until the first :meth:`run`."""

    @abstractmethod
    def run(self, plans: Iterator[Plan]) -> Run:
        """Start on a sequence of plans. A previous run must have been closed."""

    @abstractmethod
    def close(self) -> None:
        """Stop every thread and process and free all memory. Closing twice is fine."""

    def forked(self) -> None:  # noqa: B027, most engines have nothing to do
        """Called in a forked child, where this engine is the parent's: see that nothing of it is ended here at exit."""

    def facts(self) -> dict[str, Any]:
        """What a person wants to know: versions, threads, decoder, staging; for ``repr`` and ``doctor``."""
        return {}


class EngineConfig(ABC):
    """An engine's own options: a frozen dataclass, passed as ``DataLoader(engine=...)``."""

    name: ClassVar[str]

    @abstractmethod
    def check(self, setup: Setup) -> None:
        """Raise :class:`PipelineError` or :class:`ConfigError` if this engine cannot run the setup, or
        :class:`MissingDependency` if it is not installed. Starts nothing."""

    @abstractmethod
    def build(self, setup: Setup) -> Engine: ...

    def needs(self, load: Load) -> Sequence[Need]:
        """The memory that the engine will hold for such a load, as far as it can be told before anything is read.
        Costs milliseconds and starts nothing."""
        return ()
