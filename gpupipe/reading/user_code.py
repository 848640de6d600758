"""User-code datasets, which run in worker processes: their results are passed on without decoding."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..codecs.decode import Media, Peeked, as_rgb, peek
from ..datasets.dataset import Dataset
from ..errors import BadSample
from ..kernels.stacking import worker_tensor
from ..planning.epoch import resolve_missing, resolve_plan
from ..stages import DECODING, USER_CODE
from ..transforms.compose import Compose
from ..types import Plan
from .buffers import views_of
from .paths import padded
from .plan_workers import WorkerRun, Workers
from .reader import NO_BYTES, NO_PIXELS, Decodes, Feed, Loaded, Reader
from .sample import bad_sample, collate_targets, fetching
from .setup import Setup
from .windows import cut, ops_left, window_of

NO_TURNS = np.ones(0, np.uint8)


class Packed(NamedTuple):
    """Result of :class:`Pack`: the media of a batch in one piece of memory."""

    blob: Tensor | None
    """u8[N]: all media end to end; ``None`` if ``bad``."""
    shapes: list[tuple[int, ...]]
    """(number of bytes,) for paths and encoded images; (height, width, 3) for pixels."""
    turns: npt.NDArray[np.uint8]
    """u8[B]: EXIF orientation of media that are not pixels, 1 to 8."""
    target: object
    """Collated targets, or ``None``."""
    plan: Plan | None
    """The plan with sizes and ops, if it lacked them."""
    bad: list[BadSample]
    by_pillow: tuple[int, float] = (0, 0.0)
    """Number of encoded images that Pillow decoded, and the seconds it took."""


Taken = tuple[npt.NDArray[np.uint8], Peeked]
"""Data of an image that is passed on, and its known properties."""


@dataclass(frozen=True)
class Pack:
    """Task of a worker process: fetch a batch, with sizes from the headers."""

    dataset: Dataset
    pipeline: Compose
    decodes: Decodes
    """Codings that are passed on unchanged; others become Pillow's pixels."""

    def __call__(self, plan: Plan) -> Packed:
        dataset = self.dataset
        bad = dataset.bad(plan.indices)
        taken: list[Taken] = []
        targets: list[Any] = []
        seconds: list[float] = []
        if not bad:
            with fetching(dataset, plan) as fetch:
                for row, index in enumerate(plan.indices.tolist()):
                    try:
                        with USER_CODE:
                            media, target = fetch(dataset.fetch, row)
                        taken.append(self._taken(media, seconds))
                        targets.append(target)
                    except Exception as e:
                        bad.append(bad_sample(dataset, index, e))
        if bad:
            return Packed(None, [], NO_TURNS, None, None, bad)
        parts = [part for part, _ in taken]
        blob = worker_tensor((sum(part.size for part in parts),), torch.uint8)
        for view, part in zip(views_of(blob, [part.shape for part in parts]), parts, strict=True):
            view[...] = part
        sizes = np.array([(seen.height, seen.width) for _, seen in taken], np.int32)
        turns = np.array([1 if part.ndim == 3 else seen.orientation for part, seen in taken], np.uint8)
        resolved = resolve_plan(plan, self.pipeline, sizes) if plan.ops is None else None
        target = collate_targets(dataset, targets)
        return Packed(blob, [part.shape for part in parts], turns, target, resolved, [], (len(seconds), sum(seconds)))

    def _taken(self, media: Media, seconds: list[float]) -> Taken:
        """Return (data to pass on, known properties). Adds the time spent decoding to ``seconds``."""
        dataset = self.dataset
        seen = peek(media, dataset.limits)
        if isinstance(media, np.ndarray):
            return as_rgb(media), seen
        if not self.decodes(seen.coding):
            began = time.perf_counter()
            with DECODING:
                pixels = np.asarray(dataset.open(media))
            seconds.append(time.perf_counter() - began)
            return pixels, seen
        return np.frombuffer(os.fsencode(media) if isinstance(media, str) else media, np.uint8), seen


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

    def is_ready(self) -> bool:
        return self._run is None or self._run.is_ready()

    def _load(self, result: tuple[Plan, Packed]) -> Loaded:
        plan, packed = result
        if packed.bad:
            return Loaded(plan, bad=tuple(packed.bad))
        assert packed.blob is not None
        views, plan = views_of(packed.blob, packed.shapes), resolve_missing(packed.plan or plan, self._pipeline)
        if self._feed.form == "pixels":
            owner = packed.blob if packed.blob.is_pinned() else None
            return Loaded(plan, views, packed.target, owner=owner)
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
            ops=ops_left(plan, (by_pillow & (window is not None)).astype(np.uint8), turns=turns),
        )

    def stop(self) -> None:
        if self._run is not None:
            self._run.close()

    def close(self) -> None:
        self._workers.close()
