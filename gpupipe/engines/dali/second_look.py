"""After a failed iteration, or where DALI must not decode a file: Pillow decodes the batch. It names the bad samples;
if there are none it is DALI that refuses something, and what Pillow decoded is the batch."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from ...codecs.files import Undecodable
from ...errors import BadSample
from ...kernels.apply import apply_sample, apply_tail, head_and_tail
from ...kernels.clip_layout import clip_tail, unflatten
from ...kernels.picture import Picture, size_of
from ...kernels.stacking import stack_images
from ...reading.base import Form, Loaded
from ...reading.sample import bad_sample, changed
from ...reading.setup import Setup
from ...transforms.ops import Op

__all__ = ["second_look"]


def second_look(
    setup: Setup, ready: Loaded, form: Form, planned: Sequence[Op], fed: Sequence[Op]
) -> tuple[list[BadSample], Any]:
    """(the samples that Pillow refuses; if there are none the images, on the CPU, as the torch engine would make them)

    Args:
        form: of ``ready.media``.
        planned: the plan's ops, with one row for each image.
        fed: the same for what came as pixels, see :attr:`gpupipe.reading.base.Loaded.ops`.
    """
    look = _Look(setup, ready, form, planned, fed)
    others = [row for row in range(len(ready.media)) if row not in ready.exchanged]
    found: dict[int, Any] = {}
    with ThreadPoolExecutor(setup.threads, "gpupipe-second-look") as pool:
        for rows in (ready.exchanged, others):  # if one of the first is bad the others need not be made
            found |= zip(rows, pool.map(look, rows), strict=True)
            bad = {one.index: one for one in found.values() if isinstance(one, BadSample)}
            if bad:
                return list(bad.values()), None
    made = [found[row] for row in range(len(ready.media))]
    plan, memory_format = ready.plan, setup.pipeline.memory_format
    tail = head_and_tail(plan.ops or ())[1]
    if plan.frames is not None:
        return [], clip_tail(
            unflatten(stack_images(made), plan.frames.shape), tail, memory_format, setup.dataset.layout
        )
    return [], apply_tail(stack_images(made), tail, memory_format)


class _Look:
    """One row: its image after the first part of the ops, or what is wrong with it."""

    def __init__(self, setup: Setup, ready: Loaded, form: Form, planned: Sequence[Op], fed: Sequence[Op]):
        self._dataset, self._ready, self._form = setup.dataset, ready, form
        self._planned, self._fed = head_and_tail(planned)[0], head_and_tail(fed)[0]

    def __call__(self, row: int) -> Any:
        ready = self._ready
        if self._form in ("pixels", "frames"):
            return apply_sample(ready.media[row], self._fed, row)
        if ready.pixels is not None and len(ready.pixels[row]):
            return apply_sample(ready.pixels[row], self._fed, row)
        try:
            return apply_sample(self._decoded(row), self._planned if self._is_turned(row) else self._fed, row)
        except Undecodable as e:
            return bad_sample(self._dataset, int(ready.plan.indices[row]), e)

    def _is_turned(self, row: int) -> bool:
        """Whether DALI turns an image that is upright here."""
        turns = self._ready.turns
        return turns is not None and turns[row] != 1

    def _decoded(self, row: int) -> Picture:
        dataset, ready, data = self._dataset, self._ready, self._ready.media[row].tobytes()
        sizes = ready.plan.sizes if ready.sizes is None else ready.sizes
        media = os.fsdecode(data.rstrip(b"\0")) if self._form == "paths" else data
        image = dataset.open(media)
        if sizes is not None and (planned := tuple(np.asarray(sizes[row]).tolist())) != size_of(image):
            raise changed(planned, size_of(image))
        return image
