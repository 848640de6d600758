"""Datasets of user code, which runs in worker processes: what it returns is taken over without being decoded."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import get_worker_info

from ..codecs.decode import Media, as_rgb, peek
from ..datasets.base import Dataset
from ..errors import BadSample
from ..planning.epoch import resolve_missing, resolve_plan
from ..transforms.compose import Compose
from ..types import Plan
from .base import Form, Loaded, Reader
from .buffers import views_of
from .paths import padded
from .plan_workers import WorkerRun, Workers
from .sample import bad_sample, collate_targets, fetching
from .setup import Setup

__all__ = ["Pack", "Packed", "UserCodeReader", "worker_tensor"]


class Packed(NamedTuple):
    """The result of :class:`Pack`: the media of a batch in one piece of memory."""

    blob: Tensor | None
    """u8[N]: all media end to end; ``None`` if ``bad``."""
    shapes: list[tuple[int, ...]]
    """(number of bytes,) of paths and encoded images; (height, width, 3) of pixels."""
    target: object
    """The collated targets, or ``None`` if there are none."""
    plan: Plan | None
    """The plan with sizes and ops, if it had none."""
    bad: list[BadSample]


@dataclass(frozen=True)
class Pack:
    """The task of a worker process: fetch a batch, with sizes from the headers."""

    dataset: Dataset
    pipeline: Compose
    swap: Callable[[Media, str], Media]
    """``swap(media, coding)``: what is handed on in the place of ``media``."""

    def __call__(self, plan: Plan) -> Packed:
        dataset = self.dataset
        bad = dataset.bad(plan.indices)
        parts: list[npt.NDArray[np.uint8]] = []
        targets, sizes = [], []
        if not bad:
            with fetching(dataset, plan) as fetch:
                for row, index in enumerate(plan.indices.tolist()):
                    try:
                        media, target = fetch(dataset.fetch, row)
                        seen = peek(
                            media, exif=dataset.exif, max_pixels=dataset.max_pixels, max_bytes=dataset.max_bytes
                        )
                        parts.append(_bytes_of(self.swap(media, seen.coding)))
                    except Exception as e:
                        bad.append(bad_sample(dataset, index, e))
                        continue
                    targets.append(target)
                    sizes.append((seen.height, seen.width))
        if bad:
            return Packed(None, [], None, None, bad)
        blob = worker_tensor((sum(part.size for part in parts),), torch.uint8)
        for view, part in zip(views_of(blob, [part.shape for part in parts]), parts, strict=True):
            view[...] = part
        resolved = resolve_plan(plan, self.pipeline, np.array(sizes, np.int32)) if plan.ops is None else None
        return Packed(blob, [part.shape for part in parts], collate_targets(dataset, targets), resolved, [])


def _bytes_of(media: Media) -> npt.NDArray[np.uint8]:
    encoded = os.fsencode(media) if isinstance(media, str) else media
    return np.frombuffer(encoded, np.uint8) if isinstance(encoded, bytes) else as_rgb(encoded)


def worker_tensor(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """An uninitialised tensor; in a worker in shared memory, as torch's own collate does, which saves a copy."""
    if get_worker_info() is None:
        return torch.empty(shape, dtype=dtype, device="cpu")
    n = int(np.prod(shape)) * dtype.itemsize
    storage = torch.UntypedStorage._new_shared(n, device="cpu")  # type: ignore[no-untyped-call]
    empty = torch.empty(0, dtype=dtype, device="cpu")
    return empty.set_(storage, 0, shape)  # type: ignore[call-overload, no-any-return]


class UserCodeReader(Reader):
    """Runs :class:`Pack` in ``num_workers`` processes."""

    def __init__(self, setup: Setup, form: Form, swap: Callable[[Media, str], Media]):
        self._form = form
        self._pipeline = setup.pipeline
        pin_memory = setup.cuda and form == "pixels"
        self._workers: Workers[Packed] = Workers(
            Pack(setup.dataset, setup.pipeline, swap), setup, pin_memory=pin_memory
        )
        self._run: WorkerRun[Packed] | None = None

    def run(self, plans: Iterator[Plan]) -> Iterator[Loaded]:
        self._run = self._workers.run(plans)
        return map(self._load, self._run)

    def _load(self, result: tuple[Plan, Packed]) -> Loaded:
        plan, packed = result
        if packed.bad:
            return Loaded(plan, bad=tuple(packed.bad))
        assert packed.blob is not None
        media = views_of(packed.blob, packed.shapes)
        return Loaded(
            resolve_missing(packed.plan or plan, self._pipeline),
            padded(media) if self._form == "paths" else media,
            packed.target,
            owner=packed.blob if packed.blob.is_pinned() else None,
        )

    def stop(self) -> None:
        if self._run is not None:
            self._run.close()

    def close(self) -> None:
        self._workers.close()
