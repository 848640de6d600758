"""One sample at a time: fetching it from its dataset, and what is wrong with one that cannot be had."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from torch.utils.data import default_collate

from ..codecs.files import Undecodable
from ..codecs.retry import is_transient, reason_of, with_retries
from ..datasets.base import Dataset
from ..errors import BadSample, DatasetError, GpupipeError, PipelineError
from ..rng import stream
from ..signal_handlers import pass_on
from ..types import Plan
from .global_rng import lent, seed_all

__all__ = ["Fetch", "bad_sample", "changed", "collate_targets", "fetching", "naming"]

T = TypeVar("T")
Fetch = Callable[[Callable[[int], Any], int], Any]

log = logging.getLogger("gpupipe")


@contextmanager
def fetching(dataset: Dataset, plan: Plan) -> Iterator[Callable[[Callable[[int], T], int], T]]:
    """``fetch(get, row)`` calls ``get`` with the index of a row of the plan. Errors that pass by themselves are tried
    again.

    User code may draw: the global generators are seeded for every sample by (seed, epoch, sample), the same at every
    attempt, and afterwards they are as they were.
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
    """The error as data. What is no sample's fault is raised again."""
    pass_on(error)
    if isinstance(error, Undecodable):
        return BadSample(index, dataset.describe(index), error.kind, error.reason)
    if isinstance(error, (GpupipeError, MemoryError)):
        raise error
    if isinstance(error, OSError) and is_transient(error):
        return BadSample(index, dataset.describe(index), "unreadable", reason_of(error))
    log.debug("%s failed", dataset.describe(index), exc_info=error)
    return BadSample(index, dataset.describe(index), "error", f"{type(error).__name__}: {error}")


@contextmanager
def naming(describe: Callable[[], str]) -> Iterator[None]:
    """What user code does wrong is raised with the name of the sample."""
    try:
        yield
    except PipelineError as e:
        raise PipelineError(f"{describe()}: {e}") from e


def changed(planned: tuple[int, int], now: tuple[int, int]) -> Undecodable:
    """A sample whose (height, width) are not those that its plan was made for."""
    return Undecodable(
        "changed",
        f"the index says {planned[0]}x{planned[1]} pixels (height x width), the image has {now[0]}x{now[1]}; it "
        "changed after it was indexed: run `gpupipe index --rebuild DIR`",
    )


def collate_targets(dataset: Dataset, targets: list[Any]) -> Any:
    """A batch of what user code gave beside the images; ``None`` if it gave nothing."""
    if dataset.keeps_targets:
        return targets
    if not dataset.runs_user_code or all(target is None for target in targets):
        return None
    try:
        return default_collate(targets)
    except (TypeError, RuntimeError) as e:
        raise DatasetError(
            f"{dataset!r}: the targets of a batch cannot be put together: {e}; return numbers, arrays or tensors of "
            "equal shape, or tuples and dictionaries of them"
        ) from None
