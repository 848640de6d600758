"""From plans to what engines execute them on: paths, encoded bytes, pixels or frames, in order, ahead, and bounded.

This folder alone looks at kinds of datasets. An engine says which forms it accepts, and gets a reader
(:func:`gpupipe.reading.choose.reader_for`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, TypeVar

import numpy as np
import numpy.typing as npt

from ..codecs.coding import Coding
from ..errors import BadSample
from ..signal_handlers import pass_on
from ..transforms.ops import Op
from ..types import ByHand, Plan
from .torch_threads import torch_threads

__all__ = ["NO_BYTES", "NO_PIXELS", "AheadReader", "Decodes", "Feed", "Form", "Loaded", "Pending", "Reader"]

R = TypeVar("R")

Form = Literal["paths", "encoded", "pixels", "frames"]
"""What an engine is given of each sample: the path of a local file, the bytes of one, u8[H, W, 3], or of a clip T times
u8[H, W, 3]."""

Decodes = Callable[[Coding], bool]
"""Whether an engine decodes a coding by itself: to Pillow's pixels, and
without dying of a damaged file. Picklable. All others Pillow decodes for it."""

NO_BYTES = np.zeros(0, np.uint8)
NO_PIXELS = np.zeros((0, 0, 3), np.uint8)
"""What stands in the rows of a batch that come in the other form."""


@dataclass(frozen=True)
class Feed:
    """What an engine is given of a dataset."""

    form: Form
    """Of the samples that it decodes; ``"pixels"`` or ``"frames"`` if there are none."""
    handed: bool = False
    """Whether some samples come as pixels, because Pillow decodes them."""
    turned: bool = False
    """Whether the engine has to turn some of the samples that it decodes."""


@dataclass(frozen=True)
class Loaded:
    """A plan with everything that an engine needs for it."""

    plan: Plan
    media: Any = None
    """Of ``"paths"`` u8[B, L] with at least one zero after each; otherwise a list of arrays: u8[L] encoded bytes, or
    u8[H, W, 3] pixels, of clips B * T of them. Empty in rows of ``pixels``."""
    target: Any = None
    bad: tuple[BadSample, ...] = ()
    """Samples that cannot be read; then nothing else is there."""
    exchanged: tuple[int, ...] = ()
    """Rows whose files are not those that were indexed: nobody has seen that DALI's decoder is safe with them."""
    owner: Any = None
    """What ``media`` points into: it must live until it was read."""
    pixels: Sequence[npt.NDArray[np.uint8]] | None = None
    """With ``handed``: u8[H, W, 3] of the samples that Pillow decoded, no more than a first crop takes, and empty in
    the rows of all others."""
    by_pillow: tuple[int, float] = (0, 0.0)
    """Encoded images that Pillow decoded, and the seconds that it took in all threads or processes together."""
    turns: npt.NDArray[np.uint8] | None = None
    """u8[B], with ``turned``: how what the engine decodes becomes upright, 1 to 8 as EXIF counts."""
    ops: tuple[Op, ...] | None = None
    """The plan's ops for what is here: a first crop is in the coordinates of the encoded image, which is turned after
    it, or of ``pixels``, or of what was cut out of the encoded image. ``None``: as the plan has them."""
    sizes: npt.NDArray[np.int32] | None = None
    """i32[B, 2]: height and width of images if something was cut out of some; ``None``: as the plan has them."""
    by_hand: Mapping[int, ByHand] = field(default_factory=dict)
    """By row, samples that the script's own code made. If it made all, there are no media."""

    @property
    def is_by_hand(self) -> bool:
        """Whether there is nothing for an engine to do."""
        return len(self.by_hand) == len(self.plan) > 0


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

    def __init__(self, threads: int, ahead: int, name: str):
        self.threads = threads
        self._ahead = ahead
        self._name = name
        self._pool: ThreadPoolExecutor | None = None
        self._futures: list[Future[R]] = []

    @abstractmethod
    def _begin(self, plan: Plan, pool: ThreadPoolExecutor) -> Pending[R]: ...

    @abstractmethod
    def _end(self, pending: Pending[R]) -> Loaded: ...

    def _left(self) -> None:
        """Called before a run begins, when no thread is at work any more for an earlier one."""

    def run(self, plans: Iterator[Plan]) -> Iterator[Loaded]:
        self.stop()
        wait(self._futures)  # what is being read still writes into its buffer
        self._futures = []
        self._left()
        if self._pool is None:
            self._pool = torch_threads(self.threads, self._name)
        return self._loaded(plans, self._pool)

    def _loaded(self, plans: Iterator[Plan], pool: ThreadPoolExecutor) -> Iterator[Loaded]:
        waiting: deque[Pending[R]] = deque()
        failure: Exception | None = None
        more = True
        while True:
            while more and len(waiting) <= self._ahead:
                try:
                    plan = next(plans, None)
                except Exception as e:
                    pass_on(e)
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
