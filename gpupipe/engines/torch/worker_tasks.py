"""Tasks of worker processes for one plan. Tasks are picklable and immutable.

Problems of samples are returned rather than raised, so that the engine can name the samples.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
from ...reading.sample import NOTHING, Noticed, bad_sample, fetching, naming, targets_with, with_own_numbers
from ...reading.take import Take, TakeBatch, Taken
from ...stages import DECODING, TRANSFORMS, USER_CODE
from ...transforms.compose import Compose
from ...transforms.ops import Op
from ...types import ByHand, Plan


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
    by_hand: Mapping[int, ByHand] = {}
    """Samples made by user code, by row; see :class:`gpupipe.types.Batch`. If it made all samples, there are no
    images."""


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
        by_hand: dict[int, ByHand] = {}
        noticed: list[Noticed] = []
        batch = self.take.batch(plan, self.take.read_together(plan))
        stage = USER_CODE if dataset.runs_user_code else DECODING
        with fetching(dataset, plan) as fetch:
            for row, index in enumerate(plan.indices.tolist()):
                make: Any = dataset.by_hand if index in plan.by_hand else partial(_row, batch, row)
                try:
                    with stage:
                        taken = fetch(make, row)
                except Exception as e:
                    bad.append(bad_sample(dataset, index, e))
                    continue
                targets.append(taken.target)
                noticed.append(NOTHING if isinstance(taken, ByHand) else taken.noticed)
                if isinstance(taken, ByHand):
                    by_hand[row] = taken
                    images += [None] * dataset.images_per_sample
                elif head is None:  # ops need all sizes first
                    images += taken.pictures
                else:
                    images += [self._applied(one, head[taken.done :], row, index) for one in taken.pictures]
        if bad:
            return Decoded(None, None, None, bad)
        target = targets_with(dataset, targets, by_hand)
        if head is not None:
            return Decoded(stack_plan(plan, images), target, None, [])
        count = dataset.images_per_sample
        # A plan of several images per sample has the first images of all samples, then the second ones.
        images = [image for number in range(count) for image in images[number::count]]
        size = next((size_of(image) for image in images if image is not None), None)
        if size is None:
            return Decoded(None, target, None, [], by_hand)
        # A row that user code made is black, in the size of another image, so that the batch can be stacked.
        images = [np.zeros((*size, 3), np.uint8) if image is None else image for image in images]
        sizes = np.array([size_of(image) for image in images], np.int32)
        plan = resolve_plan(with_own_numbers(plan.of_images(count), noticed), self.pipeline, sizes)
        assert plan.ops is not None
        head = head_and_tail(plan.ops)[0]
        numbered = enumerate(zip(images, plan.indices.tolist(), strict=True))
        made = stack_images([self._applied(image, head, row, index) for row, (image, index) in numbered])
        return Decoded(made, target, plan, [], by_hand)

    @TRANSFORMS
    def _applied(self, picture: Picture, ops: Sequence[Op], row: int, index: int) -> Any:
        with naming(lambda: self.take.dataset.describe(index)):
            return apply_sample(picture, ops, row)


def _row(batch: TakeBatch, row: int, index: int) -> Taken | ByHand:
    """Take one row of the batch, called like a method of the dataset."""
    return batch(row)
