"""Describes why a sample failed."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ..codecs.files import Undecodable
from ..codecs.retry import is_transient, temporary
from ..datasets.dataset import Dataset
from ..errors import BadSample, GpupipeError, PipelineError

log = logging.getLogger("gpupipe")


def bad_sample(dataset: Dataset, index: int, error: Exception) -> BadSample:
    """Convert an error to a bad sample. Errors that are not a sample's fault are raised again."""
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
