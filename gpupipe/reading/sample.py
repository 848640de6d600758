"""Single samples: fetching one from its dataset, and describing why it failed."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
from torch.utils.data import default_collate

from ..codecs.decode import Peeked
from ..codecs.files import Undecodable
from ..codecs.retry import is_transient, temporary, with_retries
from ..datasets.dataset import Dataset
from ..errors import BadSample, DatasetError, GpupipeError, PipelineError
from ..global_rng import lent, seed_all
from ..rng import stream
from ..signal_handlers import pass_on
from ..transforms.boxes import BatchBoxes
from ..types import ByHand, Plan

T = TypeVar("T")

log = logging.getLogger("gpupipe")


class Drawing(NamedTuple):
    """Key of the random numbers for the sample that this thread reads; see :func:`gpupipe.rng.uniforms`."""

    seed: int
    epoch: int
    key: int

    def restart(self) -> None:
        """Seed the global generators for the start of the sample."""
        seed_all(stream(self.seed, self.epoch, "opaque", self.key))


_here = threading.local()


def drawing() -> Drawing | None:
    """Return the key of the sample that this thread reads for a plan, or ``None``."""
    return getattr(_here, "drawing", None)


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
            _here.drawing = Drawing(plan.seed, plan.epoch, keys[row])
            _here.drawing.restart()
            return get(index)

        return fetch(once, row)

    if not dataset.runs_user_code:
        yield fetch
        return
    with lent():
        try:
            yield seeded
        finally:
            _here.drawing = None


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


def fetcher(dataset: Dataset, plan: Plan, index: int) -> Callable[[int], Any]:
    """Return the function that reads a sample: the dataset's own, or the script's."""
    return dataset.by_hand if index in plan.by_hand else dataset.fetch


class Noticed(NamedTuple):
    """What running a script's own code for one sample has shown."""

    chosen: npt.NDArray[np.float64] | None = None
    """f64[images, K], the numbers that the code chose for ops: the rows of the sample in
    :attr:`gpupipe.types.Plan.chosen`."""
    boxes: BatchBoxes | None = None
    """Boxes of its image, by which a transform draws."""
    peeked: Sequence[Peeked | None] = ()
    """Properties of its images, as far as they are known."""


NOTHING = Noticed()
"""What other user code shows, and samples that were made by hand."""


def parts_of(fetched: Any) -> tuple[Any, Any, Noticed]:
    """Return (media, target, what was noticed) of a sample that user code returned."""
    media, target, *noticed = fetched
    return media, target, noticed[0] if noticed else NOTHING


def with_own_numbers(plan: Plan, noticed: Sequence[Noticed]) -> Plan:
    """Return the plan with the numbers of its samples. A sample without numbers, which the script's own code made, gets
    those of another sample, and no boxes."""
    chosen = [of.chosen for of in noticed if of.chosen is not None]
    if chosen:
        by_sample = np.stack([chosen[0] if of.chosen is None else of.chosen for of in noticed])
        # As in Plan: the first images of all samples, then the second ones.
        plan = replace(plan, chosen=by_sample.swapaxes(0, 1).reshape(-1, chosen[0].shape[1]))
    boxes = {row: of.boxes for row, of in enumerate(noticed) if of.boxes is not None}
    if boxes:
        some = next(iter(boxes.values()))
        rows = np.repeat([*boxes], [len(of.values) for of in boxes.values()])
        values = np.concatenate([of.values for of in boxes.values()])
        plan = replace(plan, boxes=replace(some, values=values, rows=rows.astype(np.int64)))
    return plan


def targets_with(dataset: Dataset, targets: list[Any], by_hand: Mapping[int, ByHand]) -> Any:
    """Return the targets of a batch with samples made by user code, by row; a list if the structure of one differs."""
    if any(made.views is None for made in by_hand.values()):
        return targets
    return collate_targets(dataset, targets)


def collate_targets(dataset: Dataset, targets: list[Any]) -> Any:
    """Collate what user code returned besides the images; ``None`` if nothing."""
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
