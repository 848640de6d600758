"""Tasks of worker processes for one plan. Tasks are picklable and immutable.

Problems of samples are returned rather than raised, so that the engine can name the samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from ...errors import BadSample
from ...kernels.apply import apply_sample, head_and_tail
from ...kernels.batches import stack_plan
from ...kernels.picture import Picture, size_of
from ...kernels.stacking import stack_images
from ...planning.epoch import resolve_missing, resolve_plan
from ...reading.sample import bad_sample, collate_targets, fetching, naming
from ...reading.take import Take, TakeBatch, Taken
from ...stages import DECODING, TRANSFORMS, USER_CODE
from ...transforms.compose import Compose
from ...transforms.ops import Op
from ...types import Plan


class Decoded(NamedTuple):
    """Result of a task."""

    images: Any
    """[B, H, W, C] before the tail, or clips [B, T, H, W, C], or a tuple of these for several views; ``None`` if
    ``bad``."""
    target: Any
    """Collated targets of user code, otherwise ``None``."""
    plan: Plan | None
    """The plan with sizes and ops, if only the task could resolve it."""
    bad: list[BadSample]


@dataclass(frozen=True)
class Decode:
    """Decode a batch and apply the ops on single images (:func:`~gpupipe.kernels.apply.head_and_tail`)."""

    take: Take
    pipeline: Compose

    def __call__(self, plan: Plan) -> Decoded:
        dataset = self.take.dataset
        bad = dataset.bad(plan.indices)
        if bad:
            return Decoded(None, None, None, bad)
        plan = resolve_missing(plan, self.pipeline)
        head = None if plan.ops is None else head_and_tail(plan.ops)[0]
        images: list[Any] = []
        targets: list[Any] = []
        batch = self.take.batch(plan, self.take.read_together(plan))
        stage = USER_CODE if dataset.runs_user_code else DECODING
        with fetching(dataset, plan) as fetch:
            for row, index in enumerate(plan.indices.tolist()):
                try:
                    with stage:
                        taken = fetch(partial(_row, batch, row), row)
                except Exception as e:
                    bad.append(bad_sample(dataset, index, e))
                    continue
                targets.append(taken.target)
                if head is None:  # ops need all sizes first
                    images += taken.pictures
                else:
                    images += [self._applied(one, head[taken.done :], row, index) for one in taken.pictures]
        if bad:
            return Decoded(None, None, None, bad)
        target = collate_targets(dataset, targets)
        if head is not None:
            return Decoded(stack_plan(plan, images), target, None, [])
        sizes = np.array([size_of(image) for image in images], np.int32)
        plan = resolve_plan(plan, self.pipeline, sizes)
        assert plan.ops is not None
        head = head_and_tail(plan.ops)[0]
        numbered = enumerate(zip(images, plan.indices.tolist(), strict=True))
        made = stack_images([self._applied(image, head, row, index) for row, (image, index) in numbered])
        return Decoded(made, target, plan, [])

    @TRANSFORMS
    def _applied(self, picture: Picture, ops: Sequence[Op], row: int, index: int) -> Any:
        with naming(lambda: self.take.dataset.describe(index)):
            return apply_sample(picture, ops, row)


def _row(batch: TakeBatch, row: int, index: int) -> Taken:
    """Take one row of the batch, called like a method of the dataset."""
    return batch(row)
