"""What the images of a batch must be: the yardstick of all engines."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from ...codecs.video.decode import decode_clip
from ...datasets.base import Dataset
from ...kernels.apply import apply_sample, apply_tail, head_and_tail
from ...kernels.clip_layout import clip_tail, unflatten
from ...kernels.picture import size_of
from ...kernels.stacking import stack_images
from ...planning.epoch import frames_of, resolve_missing, resolve_plan
from ...reading.scaled import Scaled
from ...transforms.compose import Compose
from ...types import Plan

__all__ = ["one_sample", "reference"]


def reference(dataset: Dataset, plan: Plan, pipeline: Compose, *, scaled: bool = False) -> Any:
    """What the images of the plan's batch must be: decode and apply, in this process, on the CPU. ``scaled``: of a
    loader with that argument.

    Returns [B, C, H, W], or a tuple of such for several views, of clips in the dataset's layout; before what changes
    targets too. Raises :class:`~gpupipe.codecs.decode.Undecodable` at the first bad sample.
    """
    if plan.frames is not None:
        return _of_clips(dataset, plan, pipeline)
    smaller = Scaled.of(dataset, pipeline) if scaled else None
    factors = [1] * len(plan) if smaller is None else smaller.factors(plan).tolist()
    media = [dataset.fetch(int(i))[0] for i in plan.indices]
    images = [
        dataset.open(one) if smaller is None or factors[row] == 1 else smaller.picture(plan, row, factors[row], one)
        for row, one in enumerate(media)
    ]
    if plan.ops is None:
        plan = resolve_plan(plan, pipeline, np.array([size_of(image) for image in images], np.int32))
    assert plan.ops is not None
    head, tail = head_and_tail(plan.ops)
    done = [0 if smaller is None or factor == 1 else smaller.done for factor in factors]
    made = [apply_sample(image, head[done[row] :], row) for row, image in enumerate(images)]
    return apply_tail(stack_images(made), tail, pipeline.memory_format)


def _of_clips(dataset: Dataset, plan: Plan, pipeline: Compose) -> Any:
    """:func:`reference` of clips."""
    plan = resolve_missing(plan, pipeline)
    assert plan.ops is not None and plan.frames is not None
    head, tail = head_and_tail(plan.ops)
    images = [
        apply_sample(frame, head, row)
        for row, index in enumerate(plan.indices.tolist())
        for frame in decode_clip(dataset.entry(index), plan.frames[row], upright=dataset.upright)
    ]
    return clip_tail(unflatten(stack_images(images), plan.frames.shape), tail, pipeline.memory_format, dataset.layout)


def one_sample(dataset: Dataset, index: int) -> tuple[Any, Any]:
    """(image, label) of ``dataset[index]``, see :meth:`gpupipe.datasets.base.Dataset.__getitem__`."""
    seed = int(torch.randint(2**62, ()))
    at = np.array([index], np.int64)
    plan = Plan(seed, 0, 0, at, at.astype(np.uint64), 1, 1)
    plan = replace(plan, frames=frames_of(dataset, dataset.transform, plan))
    images = reference(dataset, plan, dataset.transform)
    label = dataset.fetch(index)[1]
    return (tuple(view[0] for view in images) if isinstance(images, tuple) else images[0]), label
