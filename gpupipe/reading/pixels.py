"""Pixels already in memory, or mapped from a file."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from ..codecs.decode import as_rgb
from ..datasets.dataset import Dataset
from ..types import Plan
from .buffers import host_buffer, views_of
from .reader import Loaded, Reader
from .sample import bad_sample
from .targets import targets_of


class PixelReader(Reader):
    """Looks up pixels, and with ``pinned`` copies them to memory that a GPU reads directly."""

    def __init__(self, dataset: Dataset, *, pinned: bool):
        self._dataset = dataset
        self._pinned = pinned

    def run(self, plans: Iterator[Plan]) -> Iterator[Loaded]:
        return map(self._load, plans)

    def _load(self, plan: Plan) -> Loaded:
        bad = self._dataset.bad(plan.indices)
        if bad:
            return Loaded(plan, bad=tuple(bad))
        media: list[npt.NDArray[np.uint8]] = []
        for index in plan.indices.tolist():
            try:
                media.append(self._pixels(index))
            except Exception as e:
                bad.append(bad_sample(self._dataset, index, e))
        if bad:
            return Loaded(plan, bad=tuple(bad))
        owner: Any = None
        if self._pinned:
            owner = host_buffer(sum(pixels.size for pixels in media), pinned=True)
            views = views_of(owner, [pixels.shape for pixels in media])
            for view, pixels in zip(views, media, strict=True):
                view[...] = pixels
            media = views
        return Loaded(plan, media, targets_of(self._dataset, plan), owner=owner)

    def _pixels(self, index: int) -> npt.NDArray[np.uint8]:
        media = self._dataset.fetch(index)[0]
        assert isinstance(media, np.ndarray)
        return np.ascontiguousarray(as_rgb(media))

    def stop(self) -> None:
        pass

    def close(self) -> None:
        pass
