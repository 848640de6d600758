"""What a worker process does with one plan. Jobs are picklable, and hold nothing that changes.

What is wrong with samples is returned and not raised, so that the engine can name the samples.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import default_collate, get_worker_info

from ...codecs.decode import Media, Undecodable, as_rgb, open_rgb, peek
from ...codecs.retry import is_transient, reason_of, with_retries
from ...datasets.base import Dataset
from ...datasets.user_code import Opaque
from ...errors import BadSample, DatasetError, GpupipeError
from ...planning.epoch import resolve_missing, resolve_plan
from ...reading.global_rng import lent, seed_all
from ...rng import stream
from ...transforms.compose import Compose
from ...types import Plan
from ..forms.apply import Arrays, apply_sample, head_and_tail
from ..forms.picture import Picture, size_of

__all__ = ["Collate", "Decode", "Decoded", "Pack", "Packed", "bad_sample", "stack_images"]

T = TypeVar("T")

log = logging.getLogger("gpupipe")


class Decoded(NamedTuple):
    """The result of :class:`Decode` and :class:`Collate`."""

    images: Any
    """[B, H, W, C] before the tail, or a tuple of such for several views; of :class:`Collate` the whole collated
    structure; ``None`` where ``bad``."""
    target: Any
    """The collated targets of a ``runs_user_code`` dataset, else ``None``."""
    plan: Plan | None
    """The plan with sizes and ops, where only the job could resolve it."""
    bad: list[BadSample]


class Packed(NamedTuple):
    """The result of :class:`Pack`: the media of a batch in one piece of memory."""

    blob: Tensor | None
    """u8[N]: all media end to end; ``None`` where ``bad``."""
    offsets: list[int]
    """Where each sample starts in the blob."""
    shapes: list[tuple[int, ...]]
    """(number of bytes,) of paths and encoded images; (height, width, 3) of arrays."""
    sizes: npt.NDArray[np.int32]
    """i32[B, 2]: height and width as decoded."""
    target: Any
    """The collated targets, or ``None`` where there are none."""
    plan: Plan | None
    """The plan with sizes and ops, where it had none."""
    bad: list[BadSample]


@dataclass(frozen=True)
class Decode:
    """Decode a batch and apply the first part of the ops (:func:`~gpupipe.engines.forms.apply.head_and_tail`)."""

    dataset: Dataset
    pipeline: Compose

    def __call__(self, plan: Plan) -> Decoded:
        bad = self.dataset.bad(plan.indices)
        if bad:
            return Decoded(None, None, None, bad)
        plan = resolve_missing(plan, self.pipeline)
        head = None if plan.ops is None else head_and_tail(plan.ops)[0]
        images: list[Any] = []
        targets: list[Any] = []
        with _fetching(self.dataset, plan) as seed:
            for row, index in enumerate(plan.indices.tolist()):
                try:
                    media, target = _fetch(self.dataset, self.dataset.fetch, index, seed, row)
                    image = open_rgb(media, exif=self.dataset.exif, max_pixels=self.dataset.max_pixels)
                    _check_size(image, plan, row)
                except Exception as e:
                    bad.append(bad_sample(self.dataset, index, e))
                    continue
                # With the numbers at hand only the small result is kept; else whole images until all sizes are known.
                images.append(image if head is None else apply_sample(image, head, row))
                targets.append(target)
        if bad:
            return Decoded(None, None, None, bad)
        target = _collate_targets(self.dataset, targets)
        if head is not None:
            return Decoded(stack_images(images), target, None, [])
        plan = resolve_plan(plan, self.pipeline, np.array([size_of(image) for image in images], np.int32))
        assert plan.ops is not None
        head = head_and_tail(plan.ops)[0]
        return Decoded(stack_images([apply_sample(im, head, i) for i, im in enumerate(images)]), target, plan, [])


@dataclass(frozen=True)
class Pack:
    """Fetch a batch without decoding it: media, targets, and sizes from the headers."""

    dataset: Dataset
    pipeline: Compose
    swap: Callable[[Media, str], Media] | None = None
    """``swap(media, coding)``: what is handed on in the place of ``media``."""

    def __call__(self, plan: Plan) -> Packed:
        bad = self.dataset.bad(plan.indices)
        parts: list[npt.NDArray[np.uint8]] = []
        targets: list[Any] = []
        sizes: list[tuple[int, int]] = []
        if not bad:
            with _fetching(self.dataset, plan) as seed:
                for row, index in enumerate(plan.indices.tolist()):
                    try:
                        media, target = _fetch(self.dataset, self.dataset.fetch, index, seed, row)
                        seen = peek(media, exif=self.dataset.exif, max_pixels=self.dataset.max_pixels)
                        media = media if self.swap is None else self.swap(media, seen.coding)
                    except Exception as e:
                        bad.append(bad_sample(self.dataset, index, e))
                        continue
                    encoded = os.fsencode(media) if isinstance(media, str) else media
                    parts.append(np.frombuffer(encoded, np.uint8) if isinstance(encoded, bytes) else as_rgb(encoded))
                    targets.append(target)
                    sizes.append((seen.height, seen.width))
        if bad:
            return Packed(None, [], [], np.zeros((0, 2), np.int32), None, None, bad)
        ends = np.cumsum([part.size for part in parts])
        blob = _allocate((int(ends[-1]),), torch.uint8)
        view = blob.numpy()
        for part, end in zip(parts, ends, strict=True):
            view[end - part.size : end] = part.reshape(-1)
        heights = np.array(sizes, np.int32)
        resolved = resolve_plan(plan, self.pipeline, heights) if plan.ops is None else None
        offsets = [int(end) - part.size for part, end in zip(parts, ends, strict=True)]
        target = _collate_targets(self.dataset, targets)
        return Packed(blob, offsets, [part.shape for part in parts], heights, target, resolved, [])


@dataclass(frozen=True)
class Collate:
    """Run an :class:`~gpupipe.datasets.user_code.Opaque` dataset as torch's own DataLoader would."""

    dataset: Opaque

    def __call__(self, plan: Plan) -> Decoded:
        bad: list[BadSample] = []
        items: list[Any] = []
        with _fetching(self.dataset, plan) as seed:
            for row, index in enumerate(plan.indices.tolist()):
                try:
                    items.append(_fetch(self.dataset, self.dataset.ds.__getitem__, index, seed, row))
                except Exception as e:
                    bad.append(bad_sample(self.dataset, index, e))
            if bad:
                return Decoded(None, None, None, bad)
            collate = self.dataset.collate_fn or default_collate
            return Decoded(collate(items), None, None, [])


class _Seeds:
    """Seeds Python's, numpy's and torch's global generators for one row of a plan."""

    def __init__(self, plan: Plan):
        self.plan = plan
        self.keys = plan.keys.tolist()

    def __call__(self, row: int) -> None:
        seed_all(stream(self.plan.seed, self.plan.epoch, "opaque", self.keys[row]))


@contextmanager
def _fetching(dataset: Dataset, plan: Plan) -> Iterator[Any]:
    """A function to call before each sample is fetched; afterwards the global generators are as they were."""
    if not dataset.runs_user_code:
        yield lambda row: None
        return
    with lent():
        yield _Seeds(plan)


def _fetch(dataset: Dataset, get: Callable[[int], T], index: int, seed: Callable[[int], None], row: int) -> T:
    """``get(index)``, with the same random numbers at every attempt."""

    def once() -> T:
        seed(row)
        return get(index)

    return with_retries(lambda: dataset.describe(index), once)


def bad_sample(dataset: Dataset, index: int, error: Exception) -> BadSample:
    """The error as data. What is no sample's fault is raised again."""
    if isinstance(error, Undecodable):
        return BadSample(index, dataset.describe(index), error.kind, error.reason)
    if isinstance(error, (GpupipeError, MemoryError)):
        raise error
    if isinstance(error, OSError) and is_transient(error):
        return BadSample(index, dataset.describe(index), "unreadable", reason_of(error))
    log.debug("%s failed", dataset.describe(index), exc_info=error)
    return BadSample(index, dataset.describe(index), "error", f"{type(error).__name__}: {error}")


def _check_size(image: Picture, plan: Plan, row: int) -> None:
    if plan.sizes is None:
        return
    (height, width), (expected_height, expected_width) = size_of(image), plan.sizes[row].tolist()
    if (height, width) != (expected_height, expected_width):
        raise Undecodable(
            "changed",
            f"the index says {expected_height}x{expected_width} pixels (height x width), the image has "
            f"{height}x{width}; it changed after it was indexed: run `gpupipe index --rebuild DIR`",
        )


def _collate_targets(dataset: Dataset, targets: list[Any]) -> Any:
    if not dataset.runs_user_code or all(target is None for target in targets):
        return None
    try:
        return default_collate(targets)
    except (TypeError, RuntimeError) as e:
        raise DatasetError(
            f"{dataset!r}: the targets of a batch cannot be put together: {e}; return numbers, arrays or tensors of "
            "equal shape, or tuples and dictionaries of them"
        ) from None


def stack_images(images: list[Arrays]) -> Any:
    """[B, H, W, C], or a tuple of such of several views."""
    first: Any = images[0]
    if isinstance(first, tuple):
        return tuple(stack_images(list(view)) for view in zip(*images, strict=True))
    batch = _allocate((len(images), *first.shape), torch.from_numpy(np.empty(0, first.dtype)).dtype)
    view = batch.numpy()
    for i, image in enumerate(images):
        view[i] = image
    return batch


def _allocate(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """An uninitialised tensor; in a worker in shared memory, as torch's own collate does, which saves a copy."""
    if get_worker_info() is None:
        return torch.empty(shape, dtype=dtype, device="cpu")
    n = int(np.prod(shape)) * dtype.itemsize
    storage = torch.UntypedStorage._new_shared(n, device="cpu")  # type: ignore[no-untyped-call]
    empty = torch.empty(0, dtype=dtype, device="cpu")
    return empty.set_(storage, 0, shape)  # type: ignore[call-overload, no-any-return]
