"""Readers, which turn plans into paths, encoded bytes, pixels or frames for engines: in order, ahead of time, and
bounded.

Only this package distinguishes kinds of datasets. An engine declares the forms that it accepts, and gets a reader
(:func:`gpupipe.reading.choose.reader_for`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeVar

import numpy as np
import numpy.typing as npt

from ..codecs.coding import Coding
from ..errors import BadSample
from ..transforms.ops import Op
from ..types import Plan
from .torch_threads import torch_threads

R = TypeVar("R")

MediaForm = Literal["paths", "encoded", "pixels", "frames"]
"""Form of the samples that an engine gets: paths of local files, encoded bytes, pixels u8[H, W, 3], or clips of T
frames u8[H, W, 3]."""

Decodes = Callable[[Coding], bool]
"""Whether an engine decodes a coding itself: to Pillow's pixels, and without crashing on damaged files. Picklable.
Pillow decodes all others."""

NO_BYTES = np.zeros(0, np.uint8)
NO_PIXELS = np.zeros((0, 0, 3), np.uint8)
"""Placeholder in rows of a batch that come in the other form."""


@dataclass(frozen=True)
class Feed:
    """Form in which an engine gets a dataset."""

    form: MediaForm
    """Form of the samples that the engine decodes; ``"pixels"`` or ``"frames"`` if there are none."""
    handed: bool = False
    """Whether some samples come as pixels, because Pillow decodes them."""
    turned: bool = False
    """Whether the engine must rotate some of the samples that it decodes."""


@dataclass(frozen=True)
class Loaded:
    """A plan with everything that an engine needs to execute it."""

    plan: Plan
    media: Any = None
    """u8[B, L] for ``"paths"``, with at least one zero after each path; otherwise a list of arrays: u8[L] encoded
    bytes, or u8[H, W, 3] pixels, B * T of them for clips. Empty in rows of ``pixels``."""
    target: Any = None
    bad: tuple[BadSample, ...] = ()
    """Samples that cannot be read. Everything else is then missing."""
    exchanged: tuple[int, ...] = ()
    """Rows whose files have changed since they were indexed, so that DALI's decoder may not be safe with them."""
    owner: Any = None
    """Owner of the memory of ``media``, to keep alive until it was read."""
    pixels: Sequence[npt.NDArray[np.uint8]] | None = None
    """u8[H, W, 3] of the samples that Pillow decoded, limited to a first crop, and empty in all other rows. Only with
    ``handed``."""
    turns: npt.NDArray[np.uint8] | None = None
    """u8[B], with ``turned``: EXIF orientation of the images that the engine decodes, 1 to 8."""
    ops: tuple[Op, ...] | None = None
    """The plan's ops for these images. The coordinates of a first crop refer to the encoded image, which is rotated
    afterwards, or to ``pixels``. ``None`` means the plan's own ops."""


class Reader(ABC):
    """Reads for one engine. Starts nothing before the first :meth:`run`."""

    @abstractmethod
    def run(self, plans: Iterator[Plan]) -> Iterator[Loaded]:
        """Yield one :class:`Loaded` per plan, in order, after discarding the rest of an earlier run.

        Plans are taken ahead of time, but only as many as the setup's ``prefetch_factor``. If creating a plan fails,
        the plans before it are delivered first.
        """

    def is_ready(self) -> bool:
        """Return whether the current run can yield its next plan without waiting for a read; ``True`` if that is
        unknown."""
        return True

    @abstractmethod
    def stop(self) -> None:
        """Abandon the current run."""

    @abstractmethod
    def close(self) -> None:
        """Stop every thread and process, and free all memory. Closing twice is fine."""

    def facts(self) -> dict[str, Any]:
        """Return facts for users, in addition to the engine's own."""
        return {}


@dataclass(frozen=True)
class Pending(Generic[R]):
    """A plan that threads are working on."""

    plan: Plan
    futures: Sequence[Future[R]] = ()
    bad: tuple[BadSample, ...] = ()
    """Samples known to be bad. No work was started if there are any."""
    owner: Any = None


class AheadReader(Reader, Generic[R]):
    """Reads plans ahead in threads: :meth:`_begin` distributes work, :meth:`_end` collects results."""

    def __init__(self, threads: int, ahead: int, name: str):
        self.threads = threads
        self._ahead = ahead
        self._name = name
        self._pool: ThreadPoolExecutor | None = None
        self._futures: list[Future[R]] = []
        self._begun: deque[Pending[R]] = deque()
        """Plans of the current run that threads work on, in order."""

    @abstractmethod
    def _begin(self, plan: Plan, pool: ThreadPoolExecutor) -> Pending[R]: ...

    @abstractmethod
    def _end(self, pending: Pending[R]) -> Loaded: ...

    def _left(self) -> None:
        """Hook called before a run begins, when no thread works on an earlier run any more."""

    def run(self, plans: Iterator[Plan]) -> Iterator[Loaded]:
        self.stop()
        wait(self._futures)  # threads still write to their buffers
        self._futures = []
        self._left()
        if self._pool is None:
            self._pool = torch_threads(self.threads, self._name)
        self._begun = deque()
        return self._loaded(plans, self._pool, self._begun)

    def is_ready(self) -> bool:
        return bool(self._begun) and all(future.done() for future in self._begun[0].futures)

    def _loaded(self, plans: Iterator[Plan], pool: ThreadPoolExecutor, begun: deque[Pending[R]]) -> Iterator[Loaded]:
        failure: Exception | None = None
        more = True
        while True:
            while more and len(begun) <= self._ahead:
                try:
                    plan = next(plans, None)
                except Exception as e:
                    plan, failure = None, e  # earlier plans are good
                if plan is None:
                    more = False
                else:
                    pending = self._begin(plan, pool)
                    self._futures = [f for f in self._futures if not f.done()] + list(pending.futures)
                    begun.append(pending)
            if not begun:
                if failure is not None:
                    raise failure
                return
            # Keep no variable, so that a buffer is free as soon as the engine is done with it.
            yield self._end(begun.popleft())

    def stop(self) -> None:
        for future in self._futures:
            future.cancel()

    def close(self) -> None:
        self.stop()
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(cancel_futures=True)
        self._futures = []
