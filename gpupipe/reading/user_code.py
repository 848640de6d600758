"""User-code datasets, which run in worker processes: their results are passed on without decoding."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
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
from ..types import ByHand, Plan
from .buffers import views_of
from .paths import padded
from .plan_workers import WorkerRun, Workers
from .reader import NO_BYTES, NO_PIXELS, Decodes, Feed, Loaded, Reader
from .sample import NOTHING, Noticed, bad_sample, fetcher, fetching, parts_of, targets_with, with_own_numbers
from .setup import Setup
from .windows import cut, ops_left, window_of

NO_TURNS = np.ones(0, np.uint8)


class Packed(NamedTuple):
    """Result of :class:`Pack`: the media of a batch in one piece of memory."""

    blob: Tensor | None
    """u8[N]: all media end to end; ``None`` if ``bad``, or if user code made all samples."""
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
    by_hand: Mapping[int, ByHand] = {}
    """Samples made by the script, by row; see :class:`gpupipe.types.Batch`."""


Taken = tuple[npt.NDArray[np.uint8], Peeked]
"""Data of an image that is passed on, and its known properties."""


@dataclass
class _Rows:
    """Fetched samples of a batch."""

    taken: list[Sequence[Taken] | None] = field(default_factory=list)
    """Images of each sample; ``None`` for samples made by user code."""
    targets: list[Any] = field(default_factory=list)
    by_hand: dict[int, ByHand] = field(default_factory=dict)
    noticed: list[Noticed] = field(default_factory=list)

    def add(self, taken: Sequence[Taken] | None, target: Any) -> None:
        self.taken.append(taken)
        self.targets.append(target)

    def media(self, images: int) -> tuple[list[npt.NDArray[np.uint8]], npt.NDArray[np.int32], npt.NDArray[np.uint8]]:
        """Return (media, sizes i32[B, 2], turns u8[B]); nothing if user code made all samples.

        Rows that it made have black pixels in the size of another row. Several images per sample are ordered as in
        :class:`gpupipe.types.Plan`.
        """
        size = next(((of[0][1].height, of[0][1].width) for of in self.taken if of is not None), None)
        if size is None:
            return [], np.zeros((0, 2), np.int32), NO_TURNS
        black = [(np.zeros((*size, 3), np.uint8), Peeked(*size))] * images
        rows = [(of or black)[number] for number in range(images) for of in self.taken]
        sizes = [(seen.height, seen.width) for _, seen in rows]
        turns = [1 if part.ndim == 3 else seen.orientation for part, seen in rows]
        return [part for part, _ in rows], np.array(sizes, np.int32), np.array(turns, np.uint8)


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
        rows, images = _Rows(), dataset.images_per_sample
        seconds: list[float] = []
        if not bad:
            with fetching(dataset, plan) as fetch:
                for row, index in enumerate(plan.indices.tolist()):
                    try:
                        with USER_CODE:
                            fetched = fetch(fetcher(dataset, plan, index), row)
                        self._add(fetched, rows, seconds)
                    except Exception as e:
                        bad.append(bad_sample(dataset, index, e))
        if bad:
            return Packed(None, [], NO_TURNS, None, None, bad)
        target = targets_with(dataset, rows.targets, rows.by_hand)
        media, sizes, turns = rows.media(images)
        if not media:
            return Packed(None, [], NO_TURNS, target, None, [], by_hand=rows.by_hand)
        blob = worker_tensor((sum(part.size for part in media),), torch.uint8)
        for view, part in zip(views_of(blob, [part.shape for part in media]), media, strict=True):
            view[...] = part
        resolved = None
        if plan.ops is None:
            of_images = with_own_numbers(plan.of_images(images), rows.noticed)
            resolved = resolve_plan(of_images, self.pipeline, sizes)
        by_pillow = len(seconds), sum(seconds)
        return Packed(blob, [p.shape for p in media], turns, target, resolved, [], by_pillow, rows.by_hand)

    def _add(self, fetched: Any, rows: _Rows, seconds: list[float]) -> None:
        if isinstance(fetched, ByHand):
            rows.by_hand[len(rows.targets)] = fetched
            rows.noticed.append(NOTHING)
            rows.add(None, fetched.target)
            return
        media, target, noticed = parts_of(fetched)
        rows.noticed.append(noticed)
        several = media if self.dataset.images_per_sample > 1 else [media]
        peeked = noticed.peeked or [None] * len(several)
        rows.add([self._taken(*one, seconds) for one in zip(several, peeked, strict=True)], target)

    def _taken(self, media: Media, peeked: Peeked | None, seconds: list[float]) -> tuple[npt.NDArray[np.uint8], Peeked]:
        """Return (data to pass on, known properties). Adds the time spent decoding to ``seconds``."""
        dataset = self.dataset
        seen = peeked or peek(media, dataset.limits)
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
        if packed.blob is None:
            return Loaded(plan, target=packed.target, by_hand=packed.by_hand)
        views, plan = views_of(packed.blob, packed.shapes), resolve_missing(packed.plan or plan, self._pipeline)
        if self._feed.form == "pixels":
            owner = packed.blob if packed.blob.is_pinned() else None
            return Loaded(plan, views, packed.target, owner=owner, by_hand=packed.by_hand)
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
            by_hand=packed.by_hand,
        )

    def stop(self) -> None:
        if self._run is not None:
            self._run.close()

    def close(self) -> None:
        self._workers.close()
