"""The correct images of a batch, against which all engines are measured."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any
from weakref import WeakSet

import numpy as np
import PIL.Image
import torch
from torch.utils.data import get_worker_info

from ...codecs.files import Undecodable
from ...datasets.dataset import Dataset
from ...kernels.apply import Arrays, apply_sample, head_and_tail
from ...kernels.batches import finish_plan, stack_plan
from ...kernels.picture import size_of
from ...media import IMAGE
from ...planning.epoch import resolve_missing, resolve_plan, with_boxes, with_frames
from ...reading.take import Take, Taken
from ...reading.targets import collated, follow, following, targets_by_sample, targets_of
from ...reasons import Reason
from ...script_warnings import warn
from ...transforms.compose import Compose
from ...types import Plan

_WARNED: WeakSet[Dataset] = WeakSet()
"""Datasets that torch's loader was found to read."""
_FRAMES = 8
"""Calls between torch's loader and a sample, with datasets of torch such as Subset in between."""


def reference(dataset: Dataset, plan: Plan, pipeline: Compose, *, scaled: bool = False) -> Any:
    """Compute the correct images of a plan's batch: decode and apply, in this process, on the CPU.

    ``scaled`` has the meaning of the loader's argument. Returns [B, C, H, W], a tuple of batches for several views, or
    clips in the dataset's layout, before ops that also change targets. Raises
    :class:`~gpupipe.codecs.files.Undecodable` at the first bad sample.
    """
    return _referenced(dataset, plan, pipeline, scaled)[1]


def _referenced(dataset: Dataset, plan: Plan, pipeline: Compose, scaled: bool = False) -> tuple[Plan, Any]:
    """Return (plan with its ops, images)."""
    plan = resolve_missing(plan, pipeline)
    batch = Take.of(dataset, pipeline, scaled=scaled).batch(plan)
    taken = [batch(row) for row in range(len(plan))]
    if plan.ops is None:
        plan = resolve_plan(plan, pipeline, np.array([size_of(one.pictures[0]) for one in taken], np.int32))
    images = [image for row, one in enumerate(taken) for image in applied(plan, row, one)]
    return plan, finish_plan(plan, stack_plan(plan, images), pipeline.memory_format, dataset.medium)


def applied(plan: Plan, row: int, taken: Taken) -> list[Arrays]:
    """Return the pictures of a sample after the plan's ops on single images."""
    head = head_and_tail(plan.ops or ())[0]
    return [apply_sample(picture, head[taken.done :], row) for picture in taken.pictures]


def one_sample(dataset: Dataset, index: int) -> Any:
    """Return ``dataset[index]``, see :meth:`gpupipe.datasets.dataset.Dataset.__getitem__`."""
    if dataset not in _WARNED and _is_read_by_torchs_loader():
        _WARNED.add(dataset)
        text = f"it reads {type(dataset).__name__} sample by sample, without an engine, and with torch's random numbers"
        warn("torch's DataLoader iterates over a dataset of gpupipe", [Reason(text, "read-by-torch")])
    # The seed comes from torch's generator, so torch.manual_seed() repeats the sample.
    pipeline, seed = dataset.transform, int(torch.randint(2**62, ()))
    at = np.array([index], np.int64)
    plan = with_boxes(dataset, pipeline, Plan(seed, 0, 0, at, at.astype(np.uint64), 1, 1))
    plan = with_frames(dataset, plan)
    if len(pipeline):
        plan, images = _referenced(dataset, plan, pipeline)
        views = tuple(view[0] for view in images) if isinstance(images, tuple) else (images[0],)
    else:
        picture = dataset.raw(index)[0]
        plan, views = resolve_plan(plan, pipeline, np.array([size_of(picture)], np.int32)), (picture,)
    image = views if len(views) > 1 else views[0]
    if not dataset.columns or dataset.form is None:
        return image, dataset.fetch(index)[1]
    return dataset.form.sample(image, targets_by_sample(_columns(dataset, plan), 1)[0])


def one_image(pipeline: Compose, image: Any) -> Any:
    """Return ``pipeline(image)``, see :meth:`gpupipe.transforms.Compose.__call__`."""
    if not isinstance(image, PIL.Image.Image):
        raise TypeError(f"gpupipe's transforms take a PIL image, not {type(image).__name__}")
    return made_of_one(pipeline, plan_of_one(pipeline, size_of(image)), image)


def plan_of_one(pipeline: Compose, size: tuple[int, int]) -> Plan:
    """Return the plan for one image of (height, width), with a seed from torch's generator."""
    first = np.zeros(1, np.int64)
    plan = Plan(int(torch.randint(2**62, ())), 0, 0, first, first.astype(np.uint64), 1, 1)
    return resolve_plan(plan, pipeline, np.array([size], np.int32))


def made_of_one(pipeline: Compose, plan: Plan, image: PIL.Image.Image) -> Any:
    """Return [C, H, W], or a tuple of views, of an image, given its plan."""
    made = [apply_sample(image.convert("RGB"), head_and_tail(plan.ops or ())[0], 0)]
    images = finish_plan(plan, stack_plan(plan, made), pipeline.memory_format, IMAGE)
    return tuple(view[0] for view in images) if isinstance(images, tuple) else images[0]


def _columns(dataset: Dataset, plan: Plan) -> dict[str, Any]:
    """Return all columns of a batch. Raises :class:`~gpupipe.codecs.files.Undecodable`."""
    columns = following(dataset)
    found = follow(columns, dataset.transform, plan, slice(None))
    for value in (value for values in found.values() for value in values if isinstance(value, Undecodable)):
        raise value
    return {**targets_of(dataset, plan), **{name: collated(columns[name], found[name]) for name in columns}}


def _is_read_by_torchs_loader() -> bool:
    """Return whether a loader of torch's calls the caller's caller, in this process or in its first worker."""
    frame: FrameType | None = sys._getframe(2)
    for _ in range(_FRAMES):
        if frame is None:
            return False
        if frame.f_globals.get("__name__") == "torch.utils.data._utils.fetch":
            worker = get_worker_info()
            # One warning is enough for all workers.
            return worker is None or worker.id == 0
        frame = frame.f_back
    return False
