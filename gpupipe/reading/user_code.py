"""Datasets of user code, which runs in worker processes: what it returns is taken over without being decoded."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import get_worker_info

from ..codecs.decode import Media, Peeked, as_rgb, peek
from ..datasets.base import Dataset
from ..errors import BadSample
from ..planning.epoch import resolve_missing, resolve_plan
from ..transforms.compose import Compose
from ..types import Plan
from .base import NO_BYTES, NO_PIXELS, Decodes, Feed, Loaded, Reader
from .buffers import views_of
from .paths import padded
from .plan_workers import WorkerRun, Workers
from .sample import bad_sample, collate_targets, fetching
from .setup import Setup
from .windows import cut, ops_for, window_of

__all__ = ["Pack", "Packed", "UserCodeReader", "worker_tensor"]


NO_TURNS = np.ones(0, np.uint8)


class Packed(NamedTuple):
    """The result of :class:`Pack`: the media of a batch in one piece of memory."""

    blob: Tensor | None
    """u8[N]: all media end to end; ``None`` if ``bad``."""
    shapes: list[tuple[int, ...]]
    """(number of bytes,) of paths and encoded images; (height, width, 3) of pixels."""
    turns: npt.NDArray[np.uint8]
    """u8[B]: how what is not pixels becomes upright, 1 to 8 as EXIF counts."""
    target: object
    """The collated targets, or ``None`` if there are none."""
    plan: Plan | None
    """The plan with sizes and ops, if it had none."""
    bad: list[BadSample]
    by_pillow: tuple[int, float] = (0, 0.0)
    """Encoded images that Pillow decoded, and the seconds that it took."""


@dataclass(frozen=True)
class Pack:
    """The task of a worker process: fetch a batch, with sizes from the headers."""

    dataset: Dataset
    pipeline: Compose
    decodes: Decodes
    """Which codings are handed on as they are; of others Pillow's pixels."""

    def __call__(self, plan: Plan) -> Packed:
        dataset = self.dataset
        bad = dataset.bad(plan.indices)
        parts: list[npt.NDArray[np.uint8]] = []
        targets, sizes, turns = [], [], []
        seconds: list[float] = []
        if not bad:
            with fetching(dataset, plan) as fetch:
                for row, index in enumerate(plan.indices.tolist()):
                    try:
                        media, target = fetch(dataset.fetch, row)
                        part, seen = self._taken(media, seconds)
                    except Exception as e:
                        bad.append(bad_sample(dataset, index, e))
                        continue
                    parts.append(part)
                    targets.append(target)
                    sizes.append((seen.height, seen.width))
                    turns.append(1 if part.ndim == 3 else seen.orientation)
        if bad:
            return Packed(None, [], NO_TURNS, None, None, bad)
        blob = worker_tensor((sum(part.size for part in parts),), torch.uint8)
        for view, part in zip(views_of(blob, [part.shape for part in parts]), parts, strict=True):
            view[...] = part
        resolved = resolve_plan(plan, self.pipeline, np.array(sizes, np.int32)) if plan.ops is None else None
        shapes, target = [part.shape for part in parts], collate_targets(dataset, targets)
        return Packed(blob, shapes, np.array(turns, np.uint8), target, resolved, [], (len(seconds), sum(seconds)))

    def _taken(self, media: Media, seconds: list[float]) -> tuple[npt.NDArray[np.uint8], Peeked]:
        """(what is handed on, what is known of it); to ``seconds`` is added what decoding took."""
        dataset = self.dataset
        exif, max_pixels, max_bytes = dataset.exif, dataset.max_pixels, dataset.max_bytes
        seen = peek(media, exif=exif, max_pixels=max_pixels, max_bytes=max_bytes, strict=dataset.strict)
        if isinstance(media, np.ndarray):
            return as_rgb(media), seen
        if not self.decodes(seen.coding):
            began = time.perf_counter()
            image = dataset.open(media)
            pixels = np.asarray(image)
            seconds.append(time.perf_counter() - began)
            return pixels, seen
        return np.frombuffer(os.fsencode(media) if isinstance(media, str) else media, np.uint8), seen


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

    def __init__(self, setup: Setup, feed: Feed, decodes: Decodes):
        self._feed = feed
        self._pipeline = setup.pipeline
        pin_memory = setup.cuda and feed.form == "pixels"
        self._workers: Workers[Packed] = Workers(
            Pack(setup.dataset, setup.pipeline, decodes), setup, pin_memory=pin_memory
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
        views, plan = views_of(packed.blob, packed.shapes), resolve_missing(packed.plan or plan, self._pipeline)
        if self._feed.form == "pixels":
            return Loaded(plan, views, packed.target, owner=packed.blob if packed.blob.is_pinned() else None)
        by_pillow = np.array([view.ndim == 3 for view in views])
        assert plan.ops is not None
        window = window_of(plan.ops)
        media = [NO_BYTES if view.ndim == 3 else view for view in views]
        turns = packed.turns if self._feed.turned else None
        return Loaded(
            plan,
            padded(media) if self._feed.form == "paths" else media,
            packed.target,
            owner=packed.blob if by_pillow.any() else None,
            by_pillow=packed.by_pillow,
            pixels=[cut(view, window, row) if view.ndim == 3 else NO_PIXELS for row, view in enumerate(views)],
            turns=turns,
            ops=ops_for(plan, is_cut=by_pillow, turns=turns),
        )

    def stop(self) -> None:
        if self._run is not None:
            self._run.close()

    def close(self) -> None:
        self._workers.close()
