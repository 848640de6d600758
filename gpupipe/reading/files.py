"""Samples of files, read ahead in threads: bytes that the engine decodes, and Pillow's pixels of all others."""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ..codecs.files import Place, Undecodable, read_place
from ..stages import DECODING, STORAGE
from ..types import Plan
from .buffers import BufferPool, views_of
from .check_files import FileChecker
from .paths import padded
from .reader import NO_BYTES, NO_PIXELS, AheadReader, Decodes, Feed, Loaded, Pending
from .sample import bad_sample
from .setup import Setup
from .take import Take, TakeBatch, Taken
from .targets import targets_of
from .windows import ops_left, turns_of

U8 = npt.NDArray[np.uint8]
I64 = npt.NDArray[np.int64]
RowResults = list[tuple[int, U8 | Undecodable | float | None]]
"""(row, result). The result is bytes of the file, the reason why there are none, or the seconds it
took to write the pixels to their place, ``None`` if they were decoded before."""


class FileReader(AheadReader[RowResults]):
    """Reads encoded bytes in few parts per batch, just enough to occupy all threads. Each image that Pillow decodes is
    a task.

    Pillow releases Python's lock while it decodes. Only the window of a first crop is kept of such an image, in
    reusable memory. Bytes are read to that memory too, where the engine reads both.

    For remote stores one thread reads a batch, since the store has its own connections for it. All batches of the
    read-ahead are read concurrently, since one slow answer delays its whole batch.
    """

    def __init__(self, setup: Setup, feed: Feed, decodes: Decodes):
        ahead = setup.prefetch_factor
        remote = setup.dataset.source.storage.remote
        super().__init__(max(setup.threads, ahead + 1) if remote else setup.threads, ahead, "gpupipe-read")
        self._setup, self._dataset, self._feed = setup, setup.dataset, feed
        self._handed = np.ones(256, np.bool_)  # codes without a name are unknown codings
        if setup.dataset.codings is not None:
            names = setup.dataset.codings[1]
            self._handed[: len(names)] = [setup.cache is not None or not decodes(name) for name in names]
        self._take = Take.of_setup(setup)
        self._look = FileChecker(setup.dataset.limits.max_bytes)
        self.buffers = BufferPool(pinned=setup.cuda)

    def _by_pillow(self, plan: Plan, factors: U8) -> npt.NDArray[np.bool_]:
        """bool[B]"""
        if self._feed.form == "pixels" or self._dataset.codings is None:
            return np.ones(len(plan), np.bool_)
        return self._handed[self._dataset.codings[0][plan.indices]] | (factors > 1)

    def _begin(self, plan: Plan, pool: ThreadPoolExecutor) -> Pending[RowResults]:
        bad = self._dataset.bad(plan.indices)
        if bad:
            return Pending(plan, bad=tuple(bad))
        batch = self._take.batch(plan)
        by_pillow = self._by_pillow(plan, batch.factors)
        if self._feed.form == "paths":
            own = np.flatnonzero(~by_pillow)
            indices = plan.indices[own]
            problems, exchanged = self._look(self._dataset.encoded_paths(indices), self._dataset.encoded_sizes(indices))
            if problems:
                return Pending(plan, bad=tuple(bad_sample(self._dataset, int(indices[i]), why) for i, why in problems))
            # The engine's decoder may not be safe with new content.
            by_pillow[own[exchanged]] = True
        rows, own = np.flatnonzero(by_pillow), np.flatnonzero(~by_pillow)
        places = [self._dataset.place(i) for i in plan.indices[own].tolist()] if self._feed.form == "encoded" else []
        shapes: list[tuple[int, ...]] = [*_shapes(batch, rows)]
        shapes += [(max(place.size, 0),) for place in places]
        if not shapes:
            return Pending(plan)
        # Take a little more than needed, so that soon no batch needs a larger buffer.
        needed = sum(map(math.prod, shapes))
        borrowed = self.buffers.take(needed * 9 // 8 if places else needed)
        views = views_of(borrowed.buffer, shapes)
        # The views behind these are for encoded bytes.
        futures = [pool.submit(_decode, batch, row, out) for row, out in zip(rows.tolist(), views, strict=False)]
        if places:
            # The batches of the read-ahead, and one more, are read concurrently. Threads with parts of the same batch
            # wait for Python's lock and for each other; a remote store gets one request for a batch.
            count = 1 if self._dataset.source.storage.remote else math.ceil(self.threads / (self._ahead + 1))
            parts = [slice(part[0], part[-1] + 1) for part in np.array_split(np.arange(len(own)), min(count, len(own)))]
            views = views[len(rows) :]
            futures += [pool.submit(self._read, own[part], places[part], views[part]) for part in parts]
        return Pending(plan, futures, owner=borrowed)

    def _left(self) -> None:
        if self._setup.cuda:
            torch.cuda.synchronize(self._setup.device)  # copies out of buffers of a run that was given up

    @STORAGE
    def _read(self, rows: I64, places: Sequence[Place], views: Sequence[U8]) -> RowResults:
        parts = [k for k, place in enumerate(places) if place.length >= 0]
        some = [views[k] for k in parts]
        problems = self._dataset.source.storage.read_into([places[k] for k in parts], some)
        read = [view if why is None else why for view, why in zip(some, problems, strict=True)]
        # The length of a whole file is known after reading.
        files = [k for k, place in enumerate(places) if place.length < 0]
        data = (_whole(places[k]) for k in files)
        return [*zip(rows[files].tolist(), data, strict=True), *zip(rows[parts].tolist(), read, strict=True)]

    def _end(self, pending: Pending[RowResults]) -> Loaded:
        plan, bad = pending.plan, list(pending.bad)
        found: dict[int, Any] = dict(one for future in pending.futures for one in future.result())
        for row, data in sorted(found.items()):
            if isinstance(data, Undecodable):
                bad.append(bad_sample(self._dataset, int(plan.indices[row]), data))
        if bad:
            return Loaded(plan, bad=tuple(bad))
        return self._loaded_of(plan, found, pending.owner)

    def _loaded_of(self, plan: Plan, found: dict[int, Any], borrowed: Any) -> Loaded:
        dataset, batch = self._dataset, self._take.batch(plan)
        by_pillow = np.zeros(len(plan), np.bool_)
        by_pillow[[row for row, data in found.items() if data is None]] = True
        turns = turns_of(dataset, plan, ~by_pillow) if self._feed.turned else None
        pixels: Sequence[U8] = [NO_PIXELS] * len(plan)
        if borrowed is not None:
            rows = np.flatnonzero(by_pillow)
            for row, view in zip(rows.tolist(), views_of(borrowed.buffer, _shapes(batch, rows)), strict=True):
                pixels[row] = view  # type: ignore[index]
        return Loaded(
            plan,
            pixels if self._feed.form == "pixels" else self._media(plan, found, by_pillow),
            targets_of(dataset, plan),
            owner=borrowed,
            pixels=pixels if self._feed.handed else None,
            turns=turns,
            ops=ops_left(plan, np.where(by_pillow, batch.done, 0), turns=turns),
        )

    def _media(self, plan: Plan, found: dict[int, Any], by_pillow: npt.NDArray[np.bool_]) -> Any:
        if self._feed.form == "paths":
            paths = self._dataset.encoded_paths(plan.indices)
            return padded([NO_BYTES if other else path for path, other in zip(paths, by_pillow, strict=True)])
        return [NO_BYTES if other else found[row] for row, other in enumerate(by_pillow)]

    def close(self) -> None:
        super().close()
        self._look.close()
        self.buffers.close()

    def facts(self) -> dict[str, Any]:
        return {
            **({} if self._take.smaller is None else {"decodes": "by Pillow at 1/2, 1/4 or 1/8 what is large enough"}),
            **self.buffers.facts(),
        }


def _shapes(batch: TakeBatch, rows: I64) -> list[tuple[int, int, int]]:
    """Return the shape of each row's pixels."""
    return [(height, width, 3) for height, width in batch.sizes()[rows].tolist()] if len(rows) else []


@DECODING
def _decode(batch: TakeBatch, row: int, out: U8) -> RowResults:
    """Write the image of a row to its place."""
    try:
        taken = batch(row)
    except Undecodable as e:
        return [(row, e)]
    assert isinstance(taken, Taken)
    out[...] = np.asarray(taken.pictures[0])
    return [(row, None)]


def _whole(place: Place) -> U8 | Undecodable:
    try:
        data = read_place(place)
    except Undecodable as e:
        return e
    return np.frombuffer(data, np.uint8) if data else Undecodable("empty", "0 bytes")
