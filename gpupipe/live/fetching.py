"""What runs a script's code for one batch, in torch's worker processes or in this one."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

from torch.utils.data import Dataset, default_collate, get_worker_info

from ..codecs.retry import is_transient, temporary, with_retries
from ..errors import BadSample
from ..global_rng import seed_all
from ..planning.bad_samples import OnError
from ..stages import USER_CODE
from . import functions, looks, trays
from .asked import Asked, Fetched, States
from .changes import Canvases
from .shipping import Shipment, shipped, waiting_within
from .switch import switched, turn_on_for_good
from .tensors import make
from .trays import Trays


class Samples(Dataset[Any]):
    """What torch's loader reads: the samples of a script's dataset."""

    def __init__(self, given: Any, on_error: OnError, *, keeps_states: bool):
        self.given, self._on_error, self._keeps_states = given, on_error, keeps_states

    def __len__(self) -> int:
        return len(self.given)

    def __getitem__(self, asked: Asked) -> Fetched:
        """Return one sample, or a batch of a dataset that makes batches."""
        return self._fetched(asked, lambda bad: self._seeded(lambda: self.given[asked.what], asked.seeds, 0))

    def __getitems__(self, asked: Asked) -> Fetched:
        """Return the samples of a batch."""
        return self._fetched(asked, lambda bad: self._batch(asked, bad))

    def _fetched(self, asked: Asked, get: Callable[[list[BadSample]], Any]) -> Fetched:
        if asked.states is not None:
            asked.states.restore()
        before, bad = States.now() if self._keeps_states else None, list[BadSample]()
        with USER_CODE, switched(False) if asked.again else nullcontext():
            return Fetched(get(bad), asked, before, bad)

    def _batch(self, asked: Asked, bad: list[BadSample]) -> list[Any]:
        together = getattr(self.given, "__getitems__", None)
        if together:
            try:
                return self._seeded(lambda: together(asked.what), asked.seeds, 0)  # type: ignore[no-any-return]
            except Exception:
                if self._on_error == "raise":
                    raise
        if self._on_error == "raise":
            return [self._seeded(lambda: self.given[i], asked.seeds, k) for k, i in enumerate(asked.what)]  # noqa: B023
        samples = [self._tried(index, asked.seeds, k, bad) for k, index in enumerate(asked.what)]
        good = [sample for sample in samples if sample is not _MISSING]
        if self._on_error == "replace" and good:
            # The next good sample of the batch.
            samples = [next(s for s in (*samples[k:], *good) if s is not _MISSING) for k in range(len(samples))]
            return samples
        return good

    def _tried(self, index: Any, seeds: list[int] | None, k: int, bad: list[BadSample]) -> Any:
        """Return a sample, or a mark if it is bad. Errors of the machine or the network may pass."""
        name = f"sample {index} of {type(self.given).__name__}"
        try:
            return with_retries(lambda: name, lambda: self._seeded(lambda: self.given[index], seeds, k))
        except MemoryError:
            raise
        except Exception as e:
            kind, reason = "error", f"{type(e).__name__}: {e}"
            if isinstance(e, OSError) and is_transient(e):
                kind, reason = "temporary", temporary(e)
            bad.append(BadSample(index if isinstance(index, int) else k, name, kind, reason))
            return _MISSING

    @staticmethod
    def _seeded(get: Callable[[], Any], seeds: list[int] | None, k: int) -> Any:
        if seeds is not None:
            seed_all(seeds[k])
        return get()


_MISSING = object()


@dataclass(frozen=True)
class Collate:
    """The script's collate function, or torch's own, and what is done with its result.

    Attributes:
        waits: whether images wait. Otherwise the batch stays as it is.
        sends: whether it goes to another process.
    """

    given: Callable[[Any], Any]
    waits: bool
    sends: bool

    def __call__(self, fetched: Any) -> Shipment:
        """Return a batch that is ready to be sent. ``fetched`` is :class:`Fetched`, or samples of a stream."""
        of = fetched if isinstance(fetched, Fetched) else Fetched(fetched)
        empty = isinstance(of.samples, list) and not of.samples and bool(of.bad)
        again = of.asked is not None and of.asked.again
        with USER_CODE, switched(False) if again else nullcontext():
            if looks.function_compares_types(self.given):
                for tensor in waiting_within(of.samples):
                    make(tensor)
            with Canvases() if self._writes(of.samples) else nullcontext():
                batch = None if empty else self.given(of.samples)
            after = States.now() if again and of.before is not None else None
            made: Shipment = shipped(batch, of, after, waits=self.waits, sends=self.sends)
            return made

    def _writes(self, samples: Any) -> bool:
        """Return whether the collate function may write images that wait to memory of its own."""
        own = self.waits and self.given is not default_collate
        return own and next(waiting_within(samples), None) is not None


@dataclass(frozen=True)
class InWorker:
    """First step of a worker process."""

    init: Callable[[int], None] | None
    waits: bool
    """Whether images wait."""
    trays: Sequence[Trays] = ()
    """Those of each worker, if workers are forked."""

    def __call__(self, worker: int) -> None:
        info: Any = get_worker_info()
        if isinstance(info.dataset, Samples):
            object.__setattr__(info, "dataset", info.dataset.given)  # as scripts expect; torch rejects an assignment
        if self.waits:
            # A collection writes to every object that was inherited, and Linux copies each page so written.
            gc.freeze()
            functions.install()
            trays.begin(self.trays[worker] if self.trays else None)
            turn_on_for_good()
            looks.count_all_threads()
        if self.init is not None:
            self.init(worker)


class Asking:
    """A sampler, or a batch sampler, that asks :class:`Samples` for what another one yields."""

    def __init__(self, inner: Any):
        self._inner = inner

    def __iter__(self) -> Iterator[Asked]:
        # Calls iter() of the script's sampler at once and asks for nothing, as torch.
        return _asking(iter(self._inner))

    def __len__(self) -> int:
        return len(self._inner)


def _asking(inner: Iterator[Any]) -> Iterator[Asked]:
    for what in inner:
        yield what if isinstance(what, Asked) else Asked(what)
