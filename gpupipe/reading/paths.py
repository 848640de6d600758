"""Paths of local files, for an engine that reads and decodes them in its own threads."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from ..datasets.dataset import Dataset
from ..types import Plan
from .check_files import FileChecker
from .reader import Loaded, Reader
from .sample import bad_sample
from .targets import targets_of
from .windows import ops_left, turns_of

U8 = npt.NDArray[np.uint8]


class PathReader(Reader):
    """Takes paths from the index without reading files. Checks the files first, and with ``turned`` adds
    orientations."""

    def __init__(self, dataset: Dataset, *, turned: bool = False):
        self._dataset = dataset
        self._turned = turned
        self._look = FileChecker(dataset.limits.max_bytes)

    def run(self, plans: Iterator[Plan]) -> Iterator[Loaded]:
        return map(self._load, plans)

    def _load(self, plan: Plan) -> Loaded:
        bad = self._dataset.bad(plan.indices)
        if bad:
            return Loaded(plan, bad=tuple(bad))
        paths = self._dataset.encoded_paths(plan.indices)
        problems, exchanged = self._look(paths, self._dataset.encoded_sizes(plan.indices))
        if problems:
            indices = plan.indices.tolist()
            return Loaded(plan, bad=tuple(bad_sample(self._dataset, indices[row], why) for row, why in problems))
        media, target = padded(paths), targets_of(self._dataset, plan)
        if not self._turned:
            return Loaded(plan, media, target, exchanged=tuple(exchanged))
        turns = turns_of(self._dataset, plan)
        return Loaded(plan, media, target, exchanged=tuple(exchanged), turns=turns, ops=ops_left(plan, turns=turns))

    def stop(self) -> None:
        pass

    def close(self) -> None:
        self._look.close()


def padded(rows: list[U8]) -> U8:
    """Return u8[B, L] made of rows of different lengths, with at least one zero after each.

    One array is fed much faster than many, and DALI's ``io.file.read`` reads a path up to its first zero, as C does.
    """
    out = np.zeros((len(rows), max(map(len, rows)) + 1), np.uint8)
    for i, row in enumerate(rows):
        out[i, : len(row)] = row
    return out
