"""From plans to what engines execute them on: paths, encoded bytes, pixels or frames, in order, ahead, and bounded.

This folder alone looks at kinds of datasets. An engine says which forms it accepts, and gets a reader
(:func:`gpupipe.reading.choose.reader_for`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

import torch

from ..errors import BadSample
from ..types import Plan
from .setup import Setup

__all__ = ["AheadReader", "Form", "Loaded", "Pending", "Reader"]

R = TypeVar("R")

Form = Literal["paths", "encoded", "pixels", "frames"]
"""What an engine is given of each sample: the path of a local file, the bytes of one, u8[H, W, 3], or of a clip T times
u8[H, W, 3]."""


@dataclass(frozen=True)
class Loaded:
    """A plan with everything that an engine needs for it."""

    plan: Plan
    media: Any = None
    """Of ``"paths"`` u8[B, L] with at least one zero after each; otherwise a list of arrays: u8[L] encoded bytes, or
    u8[H, W, 3] pixels, of clips B * T of them."""
    target: Any = None
    bad: tuple[BadSample, ...] = ()
    """Samples that cannot be read; then nothing else is there."""
    owner: Any = None
    """What ``media`` points into: it must live until it was read."""


class Reader(ABC):
    """Reads for one engine. Starts nothing before the first :meth:`run`."""

    @abstractmethod
    def run(self, plans: Iterator[Plan]) -> Iterator[Loaded]:
        """One :class:`Loaded` for each plan, in order; what an earlier run left is given up.

        Plans are taken ahead of what was asked for, but only as many as the setup's ``prefetch_factor``. If making a
        plan fails, those before it are handed out first.
        """

    @abstractmethod
    def stop(self) -> None:
        """Give up the present run."""

    @abstractmethod
    def close(self) -> None:
        """Stop every thread and process, and free all memory. Closing twice is fine."""

    def facts(self) -> dict[str, Any]:
        """What a person wants to know, beside the engine's own facts."""
        return {}


@dataclass(frozen=True)
class Pending(Generic[R]):
    """A plan that threads are at work for."""

    plan: Plan
    futures: Sequence[Future[R]] = ()
    bad: tuple[BadSample, ...] = ()
    """Samples that were known to be bad; then no work was begun."""
    owner: Any = None


class AheadReader(Reader, Generic[R]):
    """Reads plans ahead in threads: :meth:`_begin` hands out work, :meth:`_end` takes the results."""

    def __init__(self, setup: Setup, name: str, threads: int | None = None):
        self.threads = setup.threads if threads is None else threads
        self._setup = setup
        self._name = name
        self._pool: ThreadPoolExecutor | None = None
        self._futures: list[Future[R]] = []

    @abstractmethod
    def _begin(self, plan: Plan, pool: ThreadPoolExecutor) -> Pending[R]: ...

    @abstractmethod
    def _end(self, pending: Pending[R]) -> Loaded: ...

    def run(self, plans: Iterator[Plan]) -> Iterator[Loaded]:
        self.stop()
        wait(self._futures)  # what is being read still writes into its buffer
        self._futures = []
        if self._setup.cuda:
            torch.cuda.synchronize(self._setup.device)  # copies out of buffers of a run that was given up
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self.threads, thread_name_prefix=self._name)
        return self._loaded(plans, self._pool)

    def _loaded(self, plans: Iterator[Plan], pool: ThreadPoolExecutor) -> Iterator[Loaded]:
        waiting: deque[Pending[R]] = deque()
        failure: Exception | None = None
        more = True
        while True:
            while more and len(waiting) <= self._setup.prefetch_factor:
                try:
                    plan = next(plans, None)
                except Exception as e:
                    plan, failure = None, e  # those before it are good
                if plan is None:
                    more = False
                else:
                    pending = self._begin(plan, pool)
                    self._futures = [f for f in self._futures if not f.done()] + list(pending.futures)
                    waiting.append(pending)
            if not waiting:
                if failure is not None:
                    raise failure
                return
            # Not kept in a variable: a buffer is free as soon as the engine is done with it.
            yield self._end(waiting.popleft())

    def stop(self) -> None:
        for future in self._futures:
            future.cancel()

    def close(self) -> None:
        self.stop()
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(cancel_futures=True)
        self._futures = []
