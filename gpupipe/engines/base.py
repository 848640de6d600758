"""The boundary between planning and executing: an engine turns plans into batches, in order. That is all it does."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from ..reading.setup import Setup
from ..transforms.ops import Call, Op, Views
from ..types import Batch, Plan
from .memory_uses import MemoryUse, Workload

__all__ = ["Engine", "EngineConfig", "Run", "names_of"]


def names_of(ops: Sequence[Op]) -> list[str]:
    """The names of ops, and of those in their branches."""
    names = []
    for op in ops:
        if isinstance(op, Views):
            names += [name for branch in op.branches for name in names_of(branch)]
        else:
            names.append(op.name if isinstance(op, Call) else type(op).__name__)
    return names


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

    most: int | None = None
    """Samples of a batch at most; ``None``: any number."""

    @abstractmethod
    def run(self, plans: Iterator[Plan]) -> Run:
        """Start on a sequence of plans. A previous run must have been closed."""

    @abstractmethod
    def close(self) -> None:
        """Stop every thread and process and free all memory. Closing twice is fine."""

    def renew(self) -> None:  # noqa: B027, most engines have nothing to do
        """End worker processes in which user code runs, so that the next epoch has it as it is then."""

    def rest(self) -> None:  # noqa: B027, most engines have nothing to do
        """An epoch is over: time for what takes some milliseconds. There may be a run, at work for the next epoch."""

    def forked(self) -> None:  # noqa: B027, most engines have nothing to do
        """Called in a forked child, where this engine is the parent's: see that nothing of it is ended here at exit."""

    def facts(self) -> dict[str, Any]:
        """What a person wants to know: versions, threads, decoder, staging; for ``repr`` and ``doctor``."""
        return {}

    def remarks(self) -> list[str]:
        """Sentences about what happened so far that a person should know; for ``repr`` and the report."""
        return []


class EngineConfig(ABC):
    """An engine's own options: a frozen dataclass, passed as ``DataLoader(engine=...)``."""

    name: ClassVar[str]

    @abstractmethod
    def check(self, setup: Setup) -> None:
        """Raise :class:`PipelineError` or :class:`ConfigError` if this engine cannot run the setup, or
        :class:`MissingDependency` if it is not installed. Starts nothing."""

    @abstractmethod
    def build(self, setup: Setup) -> Engine: ...

    def remarks(self, setup: Setup) -> list[str]:
        """Sentences about how it will run the setup that a person should know; for ``repr`` and the report."""
        return []

    def memory_uses(self, workload: Workload) -> Sequence[MemoryUse]:
        """The memory that the engine will hold for a workload, as far as it can be told before anything is read.
        Costs milliseconds and starts nothing."""
        return ()
