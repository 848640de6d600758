"""Single samples: fetching one from its dataset, and describing why it failed."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from torch.utils.data import default_collate

from ..codecs.files import Undecodable
from ..codecs.retry import is_transient, temporary, with_retries
from ..datasets.dataset import Dataset
from ..errors import BadSample, GpupipeError, PipelineError
from ..global_rng import lent, seed_all
from ..rng import stream
from ..signal_handlers import pass_on
from ..types import Plan

T = TypeVar("T")

log = logging.getLogger("gpupipe")


@contextmanager
def fetching(dataset: Dataset, plan: Plan) -> Iterator[Callable[[Callable[[int], T], int], T]]:
    """Yield ``fetch(get, row)``, which calls ``get`` with the index of a row of the plan, and retries transient errors.

    User code may draw random numbers: the global generators are seeded for every sample by (seed, epoch, sample),
    equally for every attempt, and restored afterwards.
    """
    indices, keys = plan.indices.tolist(), plan.keys.tolist()

    def fetch(get: Callable[[int], T], row: int) -> T:
        return with_retries(lambda: dataset.describe(indices[row]), lambda: get(indices[row]))

    def seeded(get: Callable[[int], T], row: int) -> T:
        def once(index: int) -> T:
            seed_all(stream(plan.seed, plan.epoch, "opaque", keys[row]))
            return get(index)

        return fetch(once, row)

    if not dataset.runs_user_code:
        yield fetch
        return
    with lent():
        yield seeded


def bad_sample(dataset: Dataset, index: int, error: Exception) -> BadSample:
    """Convert an error to a bad sample. Errors that are not a sample's fault are raised again."""
    pass_on(error)
    if isinstance(error, Undecodable):
        return BadSample(index, dataset.describe(index), error.kind, error.reason)
    if isinstance(error, (GpupipeError, MemoryError)):
        raise error
    if isinstance(error, OSError) and is_transient(error):
        return BadSample(index, dataset.describe(index), "temporary", temporary(error))
    log.debug("%s failed", dataset.describe(index), exc_info=error)
    return BadSample(index, dataset.describe(index), "error", f"{type(error).__name__}: {error}")


@contextmanager
def naming(describe: Callable[[], str]) -> Iterator[None]:
    """Add the sample's name to errors of user code."""
    try:
        yield
    except PipelineError as e:
        raise PipelineError(f"{describe()}: {e}") from e


def changed(planned: tuple[int, int], now: tuple[int, int]) -> Undecodable:
    """Return the error for a sample whose (height, width) differ from those in its plan."""
    return Undecodable(
        "changed",
        f"the index says {planned[0]}x{planned[1]} pixels (height x width), the image has {now[0]}x{now[1]}; it "
        "changed after it was indexed: run `gpupipe index --rebuild DIR`",
    )


def collate_targets(dataset: Dataset, targets: list[Any]) -> Any:
    """Collate what user code returned besides the images; ``None`` if nothing."""
    if dataset.keeps_targets:
        return targets
    if not dataset.runs_user_code or all(target is None for target in targets):
        return None
    try:
        # In a tuple, as torch has them beside the image: texts become a tuple.
        return default_collate([(target,) for target in targets])[0]
    except Exception as e:
        e.add_note(f"{dataset!r}: return numbers, arrays or tensors of equal shape, or tuples and dictionaries of them")
        raise
