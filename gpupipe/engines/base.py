"""Interface between planning and execution: an engine turns plans into batches, in order, and does nothing else."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from ..reading.setup import Setup
from ..transforms.ops import Call, Op, Views
from ..types import Batch, Plan

if TYPE_CHECKING:
    from .delivery import KeepAlive  # imports torch


def names_of(ops: Sequence[Op]) -> list[str]:
    """Return the names of ops, including those in their branches."""
    names = []
    for op in ops:
        if isinstance(op, Views):
            names += [name for branch in op.branches for name in names_of(branch)]
        else:
            names.append(op.name if isinstance(op, Call) else type(op).__name__)
    return names


class Run(ABC):
    """One pass over a sequence of plans. Iterating yields one :class:`Batch` per plan, in order.

    ``next()`` raises :class:`gpupipe.errors.SampleError` if samples of a batch could not be read. The following
    ``next()`` returns the batch of the next plan.
    """

    def __iter__(self) -> Run:
        return self

    @abstractmethod
    def __next__(self) -> Batch: ...

    @abstractmethod
    def close(self) -> None:
        """Discard everything in flight. The engine can run again afterwards. Closing twice is allowed."""


class Engine(ABC):
    """Executes plans. Costs nothing until the first :meth:`run`."""

    kept: KeepAlive | None = None
    """Batches that the consumer's stream may still read; ``None`` on the CPU. To be ended before the engine closes."""

    @abstractmethod
    def run(self, plans: Iterator[Plan]) -> Run:
        """Start on a sequence of plans. A previous run must have been closed."""

    @abstractmethod
    def close(self) -> None:
        """Stop every thread and process and free all memory. Closing twice is allowed."""

    def rest(self) -> None:  # noqa: B027, most engines have nothing to do
        """Do work of a few milliseconds at the end of an epoch. A run may already work for the next epoch."""

    def facts(self) -> dict[str, Any]:
        """Facts for users: versions, threads, decoder, staging; for ``repr`` and ``doctor``."""
        return {}

    def remarks(self) -> list[str]:
        """Notes on what happened so far, for ``repr`` and the report."""
        return []


class EngineConfig(ABC):
    """Options of an engine: a frozen dataclass, passed as ``DataLoader(engine=...)``."""

    name: ClassVar[str]

    @abstractmethod
    def check(self, setup: Setup) -> None:
        """Raise an error if this engine cannot run the setup. Starts nothing.

        Raises:
            PipelineError, ConfigError: the engine cannot run it.
            MissingDependency: the engine is not installed.
        """

    @abstractmethod
    def build(self, setup: Setup) -> Engine: ...

    def remarks(self, setup: Setup) -> list[str]:
        """Notes on how the engine will run the setup, for ``repr`` and the report."""
        return []
