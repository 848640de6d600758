"""What a worker process does with one plan. Tasks are picklable, and hold nothing that changes.

What is wrong with samples is returned and not raised, so that the engine can name the samples.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from ...codecs.decode import open_rgb
from ...codecs.files import Undecodable
from ...codecs.video.decode import decode_clip
from ...datasets.base import Dataset
from ...errors import BadSample
from ...kernels.apply import apply_sample, head_and_tail
from ...kernels.clip_layout import unflatten
from ...kernels.picture import Picture, size_of
from ...kernels.stacking import stack_images
from ...planning.epoch import resolve_missing, resolve_plan
from ...reading.cuts import Cuts, moved
from ...reading.decoded_cache import DecodedCache
from ...reading.files import read_encoded
from ...reading.sample import bad_sample, changed, fetching, naming, targets_with
from ...reading.scaled import AROUND, Scaled
from ...reading.windows import window_of
from ...transforms.compose import Compose
from ...transforms.ops import Op
from ...types import ByHand, Plan

__all__ = ["Decode", "Decoded"]


class Decoded(NamedTuple):
    """The result of a task."""

    images: Any
    """[B, H, W, C] before the tail, of clips [B, T, H, W, C], or a tuple of such for several views;
    ``None`` if ``bad``."""
    target: Any
    """The collated targets of user code, else ``None``."""
    plan: Plan | None
    """The plan with sizes and ops, if only the task could resolve it."""
    bad: list[BadSample]
    by_hand: Mapping[int, ByHand] = {}
    """By row; see :class:`gpupipe.types.Batch`. If user code made all samples, there are no images."""


@dataclass(frozen=True)
class Decode:
    """Decode a batch and apply the first part of the ops (:func:`~gpupipe.kernels.apply.head_and_tail`)."""

    dataset: Dataset
    pipeline: Compose
    cuts: Cuts | None
    cache: DecodedCache | None = None
    scaled: Scaled | None = None

    def __call__(self, plan: Plan) -> Decoded:
        bad = self.dataset.bad(plan.indices)
        if bad:
            return Decoded(None, None, None, bad)
        plan = resolve_missing(plan, self.pipeline)
        head = None if plan.ops is None else head_and_tail(plan.ops)[0]
        images: list[Any] = []
        targets: list[Any] = []
        by_hand: dict[int, ByHand] = {}
        # Those of a whole batch at once, because neighbours can be read together, and a network answers many at a time.
        together = self.cache is None and (self.cuts is None or not self.cuts.in_parts)
        by_place = together and self.dataset.kind == "files" and not self.dataset.whole_files
        encoded = read_encoded(self.dataset, plan.indices) if by_place else None
        factors = np.ones(len(plan), np.uint8) if self.scaled is None else self.scaled.factors(plan)
        with fetching(self.dataset, plan) as fetch:
            for row, index in enumerate(plan.indices.tolist()):
                try:
                    make: Any = partial(self._pictures, plan=plan, row=row, factor=int(factors[row]), encoded=encoded)
                    if index in plan.by_hand:
                        make = self.dataset.by_hand
                    made = fetch(make, row)
                    if isinstance(made, ByHand):
                        by_hand[row] = made
                        images += [None] * self.dataset.images_per_sample
                        targets.append(made.target)
                        continue
                    pictures, target, corner = made
                except Exception as e:
                    bad.append(bad_sample(self.dataset, index, e))
                    continue
                # With the numbers at hand only the small result is kept; else whole images until all sizes are known.
                ops = moved(head, *corner) if head and corner is not None else head
                if self.scaled is not None and ops is not None and factors[row] > 1:
                    ops = ops[self.scaled.done :]
                images += pictures if ops is None else [self._applied(p, ops, row, index) for p in pictures]
                targets.append(target)
        if bad:
            return Decoded(None, None, None, bad)
        target = targets_with(self.dataset, targets, by_hand)
        if head is not None:
            made = stack_images(images)
            return Decoded(made if plan.frames is None else unflatten(made, plan.frames.shape), target, None, [])
        count = self.dataset.images_per_sample
        images = [image for number in range(count) for image in images[number::count]]
        size = next((size_of(image) for image in images if image is not None), None)
        if size is None:
            return Decoded(None, target, None, [], by_hand)
        images = [np.zeros((*size, 3), np.uint8) if image is None else image for image in images]
        sizes = np.array([size_of(image) for image in images], np.int32)
        plan = resolve_plan(plan.of_images(count), self.pipeline, sizes)
        assert plan.ops is not None
        head = head_and_tail(plan.ops)[0]
        numbered = enumerate(zip(images, plan.indices.tolist(), strict=True))
        made = stack_images([self._applied(image, head, row, index) for row, (image, index) in numbered])
        return Decoded(made, target, plan, [], by_hand)

    def _applied(self, picture: Picture, ops: Sequence[Op], row: int, index: int) -> Any:
        with naming(lambda: self.dataset.describe(index)):
            return apply_sample(picture, ops, row)

    def _pictures(
        self, index: int, plan: Plan, row: int, factor: int, encoded: list[bytes | Undecodable] | None
    ) -> tuple[list[Picture], Any, tuple[int, int] | None] | ByHand:
        """(the images of a sample: one, or the frames of a clip; its target; if no more is there than a first crop
        takes, the first pixel row and column of it)

        What is decoded smaller by a ``factor`` above 1 comes after the ops that ``scaled`` does.
        """
        dataset = self.dataset
        if self.cache is not None:
            window = window_of(plan.ops or ())
            pixels, _ = self.cache.pixels(dataset, plan, row, window)
            corner = None if window is None else (int(window.top[row]), int(window.left[row]))
            return [Image.fromarray(np.ascontiguousarray(pixels))], None, corner
        if plan.frames is not None:
            return list(decode_clip(dataset.entry(index), plan.frames[row], upright=dataset.upright)), None, None
        media: Any = None if encoded is None else encoded[row]
        target: Any = None
        if isinstance(media, Undecodable):
            raise media
        cut = None
        if self.cuts is not None:
            around = AROUND if factor > 1 else 0
            cut = self.cuts.cuts(plan, [row], None if media is None else {row: media}, around=around).get(row)
        if isinstance(cut, Undecodable):
            raise cut
        if media is None and cut is None:
            fetched: Any = dataset.fetch(index)
            if isinstance(fetched, ByHand):
                return fetched
            media, target = fetched
            if dataset.images_per_sample > 1:
                return [self._opened(one) for one in media], target, None
        if self.scaled is not None and factor > 1:
            return [self.scaled.picture(plan, row, factor, media if cut is None else cut)], target, None
        if cut is not None:
            return [open_rgb(cut.data)], None, (cut.top, cut.left)
        image = self._opened(media)
        if plan.sizes is not None and size_of(image) != (planned := tuple(plan.sizes[row].tolist())):
            raise changed(planned, size_of(image))
        return [image], target, None

    def _opened(self, media: Any) -> Picture:
        dataset = self.dataset
        return dataset.open(media, strict=dataset.limits.strict and dataset.runs_user_code)  # of others the index knows
