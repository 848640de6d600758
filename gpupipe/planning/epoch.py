"""Plans of one epoch: order, random numbers and ops. Numpy only, and a pure function of its arguments."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import count, takewhile
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ..errors import BadSample, PipelineError
from ..transforms.compose import Compose
from ..types import Plan
from .bad_samples import BadSamples
from .batches import Batches
from .order import Order

if TYPE_CHECKING:
    from ..datasets.dataset import Dataset


def resolve_plan(plan: Plan, pipeline: Compose, sizes: npt.NDArray[np.int32]) -> Plan:
    """Return the plan with its ops resolved for images of ``sizes`` i32[B, 2].

    Raises :class:`PipelineError` if the resulting images differ in size and cannot be stacked.
    """
    ops, images, mixing = pipeline.resolve(
        plan.seed, plan.epoch, plan.keys, _some_size(sizes), plan.boxes, plan.batch_shape
    )
    views = images.views or (images,)
    for view, output in zip(views, pipeline.outputs, strict=True):
        out = view.sizes
        # An output of known size needs no comparison.
        if len(out) and output.size is None and (out != out[0]).any():
            other = int(np.argmax((out != out[0]).any(axis=1)))
            raise PipelineError(
                f"images of one batch come out in different sizes: {out[0, 0]}x{out[0, 1]} (sample {plan.indices[0]}) "
                f"and {out[other, 0]}x{out[other, 1]} (sample {plan.indices[other]}); end the pipeline with a "
                "CenterCrop, RandomCrop or Resize((height, width)), take lists of images with "
                "collate_fn=gpupipe.collate.as_lists, or use batch_size=1"
            )
    return plan.with_sizes(sizes, ops, mixing)


def _some_size(sizes: npt.NDArray[np.int32]) -> npt.NDArray[np.int32]:
    """Replace the unknown size of bad samples by that of another sample, which fits where a constant might not. Bad
    samples are never decoded."""
    good = sizes.min(axis=1, initial=1) > 0
    if good.all():
        return sizes
    # Without any good sample, a size into which most crops fit.
    stand_in = sizes[np.argmax(good)] if good.any() else np.array([4096, 4096], np.int32)
    return np.where(good[:, None], sizes, stand_in)


def with_frames(dataset: Dataset, plan: Plan) -> Plan:
    """Return the plan with the frames of its clips; for images as it is."""
    frames = dataset.choose(plan.seed, plan.epoch, plan.keys, plan.indices)
    return plan if frames is None else replace(plan, frames=frames)


def with_boxes(dataset: Dataset, pipeline: Compose, plan: Plan) -> Plan:
    """Return the plan with the boxes of its images, if a transform draws by them."""
    if not pipeline.draws_by_boxes:
        return plan
    found = (target.boxes(plan.indices) for target in dataset.columns.values())
    return replace(plan, boxes=next((boxes for boxes in found if boxes is not None), None))


def resolve_missing(plan: Plan, pipeline: Compose) -> Plan:
    """Resolve a plan that came from another process without its ops, which could not be sent."""
    return resolve_plan(plan, pipeline, plan.sizes) if plan.ops is None and plan.sizes is not None else plan


@dataclass(frozen=True)
class EpochPlan:
    """Plans of one rank for one epoch."""

    dataset: Dataset
    pipeline: Compose
    order: Order
    batches: Batches
    seed: int
    epoch: int
    bad_samples: BadSamples | None = None
    """Policy for bad samples. With ``None`` the engine raises."""

    def __getitem__(self, step: int) -> Plan:
        positions, valid, consumed = self.batches.take(step)
        indices, keys = self.order.at(positions)
        bad: tuple[BadSample, ...] = ()
        if self.bad_samples is not None:
            indices, keys, valid, bad = self.bad_samples.apply(
                indices,
                keys,
                valid,
                order=self.order,
                seed=self.seed,
                epoch=self.epoch,
                positions=positions,
                window=self.batches.window(step),
                ranks=self.batches.ranks,
            )
        shape = self.batches.shape(step)
        plan = Plan(self.seed, self.epoch, step, indices, keys, valid, consumed, bad=bad, batch_shape=shape)
        # Only now, because bad samples may have been replaced.
        plan = with_boxes(self.dataset, self.pipeline, plan)
        plan = with_frames(self.dataset, plan)
        # Without an index, sizes and therefore ops are known once samples are read.
        sizes = self.dataset.sizes
        return plan if sizes is None else resolve_plan(plan, self.pipeline, sizes[indices])

    def __iter__(self) -> Iterator[Plan]:
        """Yield the plans in order. With a single rank, a plan whose samples are all bad is empty, and engines skip
        it."""
        return map(self.__getitem__, takewhile(self.batches.has, count()))
