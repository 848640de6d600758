"""What the images of a batch must be: the yardstick of all engines."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from ...datasets.base import Dataset
from ...kernels.apply import Arrays, apply_sample, head_and_tail
from ...kernels.batches import finish_plan, stack_plan
from ...kernels.picture import size_of
from ...planning.epoch import frames_of, resolve_missing, resolve_plan
from ...reading.take import Take, Taken
from ...transforms.compose import Compose
from ...types import Plan

__all__ = ["applied", "one_sample", "reference"]


def reference(dataset: Dataset, plan: Plan, pipeline: Compose, *, scaled: bool = False) -> Any:
    """What the images of the plan's batch must be: decode and apply, in this process, on the CPU. ``scaled``: for a
    loader with that argument.

    Returns [B, C, H, W], or a tuple of such for several views, for clips in the dataset's layout; before what changes
    targets too. Raises :class:`~gpupipe.codecs.files.Undecodable` at the first bad sample.
    """
    plan = resolve_missing(plan, pipeline)
    batch = Take.of(dataset, pipeline, scaled=scaled, sliced=False).batch(plan)
    taken = [batch.known(row) for row in range(len(plan))]
    if plan.ops is None:
        plan = resolve_plan(plan, pipeline, np.array([size_of(one.pictures[0]) for one in taken], np.int32))
    images = [image for row, one in enumerate(taken) for image in applied(plan, row, one)]
    return finish_plan(plan, stack_plan(plan, images), pipeline.memory_format, dataset.medium)


def applied(plan: Plan, row: int, taken: Taken) -> list[Arrays]:
    """The pictures of a sample after those of the plan's ops that work on single images."""
    head = head_and_tail(plan.ops or ())[0]
    return [apply_sample(picture, head[taken.done :], row) for picture in taken.pictures]


def one_sample(dataset: Dataset, index: int) -> tuple[Any, Any]:
    """(image, label) of ``dataset[index]``, see :meth:`gpupipe.datasets.base.Dataset.__getitem__`."""
    seed = int(torch.randint(2**62, ()))
    at = np.array([index], np.int64)
    plan = Plan(seed, 0, 0, at, at.astype(np.uint64), 1, 1)
    plan = replace(plan, frames=frames_of(dataset, dataset.transform, plan))
    images = reference(dataset, plan, dataset.transform)
    label = dataset.fetch(index)[1]
    return (tuple(view[0] for view in images) if isinstance(images, tuple) else images[0]), label
