"""Partial reading and decoding of sliceable files, limited to a first crop. Where partial reads are impossible, the
file is read whole and decoded in part."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import numpy.typing as npt

from ..codecs.decode import open_rgb, open_smaller
from ..codecs.files import Undecodable, attempts_by_descriptor
from ..codecs.jpeg.tiles import Cut, cut as cut_out
from ..datasets.dataset import Dataset
from ..transforms.ops import Crop
from ..types import Plan
from .decoder import Decoder, Part, Wanted
from .sample import changed
from .windows import window_of

I32 = npt.NDArray[np.int32]
I64 = npt.NDArray[np.int64]
U8 = npt.NDArray[np.uint8]

AROUND = 32
"""Pixels to cut around a window of a sliceable file, for libjpeg's chroma upsampling at the window's edge: at a decode
of 1/8, one sample of the coarsest chroma."""


@dataclass(frozen=True)
class Cuts:
    """Cuts samples of a dataset. Picklable and thread-safe."""

    dataset: Dataset
    codes: npt.NDArray[np.bool_]
    """bool[256]: codings of the dataset that are sliceable."""

    @classmethod
    def of(cls, dataset: Dataset) -> Cuts | None:
        """Return ``None`` if nothing can be cut: the transforms do not begin with a window inside the image, or no file
        is sliceable."""
        if dataset.kind != "files" or dataset.codings is None or window_of(dataset.transform.skeleton) is None:
            return None
        codes = np.zeros(256, np.bool_)
        codings = dataset.codings[1][:255]
        codes[: len(codings)] = [coding.sliceable for coding in codings]
        return cls(dataset, codes) if codes.any() else None

    @property
    def in_parts(self) -> bool:
        """Whether files are read in part. Behind a network, a part would take two requests in sequence, which costs
        more than the whole file."""
        return not self.dataset.source.storage.remote

    @property
    def fact(self) -> str:
        return f"{'' if self.in_parts else 'whole files; decodes '}of sliceable files what lies under the crop"

    def cuts(
        self, plan: Plan, rows: Sequence[int], whole: Mapping[int, bytes | U8] | None = None, *, around: int = 0
    ) -> dict[int, Cut | Undecodable]:
        """Return the part of each sample that the window needs, by row.

        Missing rows must be decoded whole: their images need rotation, are no longer sliceable, or cannot be read, or
        not in parts. Rows whose image size differs from the plan are :class:`~gpupipe.codecs.files.Undecodable` of kind
        ``changed``.

        Args:
            whole: all bytes of samples to cut from, by row; ``None`` reads parts.
            around: number of pixels needed around the window.
        """
        window, found = window_of(plan.ops or ()), dict[int, Cut | Undecodable]()
        if window is None or plan.sizes is None or not len(rows):
            return found
        some = np.asarray(rows)
        indices, sizes = plan.indices[some], plan.sizes[some]
        assert self.dataset.codings is not None
        fits = self.codes[self.dataset.codings[0][indices]]
        if self.dataset.limits.exif and self.dataset.orientations is not None:
            fits &= self.dataset.orientations[indices] == 1
        boxes = _boxes(window, some, sizes, around).tolist()
        for k in np.flatnonzero(fits).tolist():
            row = rows[k]
            try:
                cut = self._cut(int(indices[k]), boxes[k], None if whole is None else whole[row])
            except Undecodable:
                continue  # reading the whole file reports the problem
            if cut is not None:
                planned = tuple(sizes[k].tolist())
                found[row] = cut if cut.size == planned else changed(planned, cut.size)
        return found

    def _cut(self, index: int, box: Sequence[int], whole: bytes | U8 | None) -> Cut | None:
        if whole is not None:
            return cut_out(lambda n, at: bytes(whole[at : at + n]), len(whole), box)
        place = self.dataset.place(index)
        if place.packed is not None or not self.in_parts:
            return None
        source = self.dataset.source
        if self.dataset.whole_files:
            return attempts_by_descriptor(place.path, lambda file: _cut_out_of(file, box))

        def read(n: int, at: int) -> bytes:
            part = place._replace(offset=place.offset + at, length=n)
            (data,) = source.read([part])
            if isinstance(data, Undecodable):
                raise data
            return data

        return cut_out(read, place.length, box)


def _boxes(window: Crop, rows: I64, sizes: I32, around: int) -> I32:
    """Return i32[len(rows), 4]: top, left, bottom and right."""
    top, left = window.top[rows], window.left[rows]
    bottom, right = top + window.height[rows], left + window.width[rows]
    first = np.maximum(np.stack([top, left], axis=1) - around, 0)
    return np.concatenate([first, np.minimum(np.stack([bottom, right], axis=1) + around, sizes)], axis=1)


def _cut_out_of(file: int, box: Sequence[int]) -> Cut | None:
    return cut_out(partial(os.pread, file), os.fstat(file).st_size, box)


def fed(plan: Plan, cuts: Mapping[int, Cut]) -> tuple[I32, I32]:
    """Return (i32[2, B], first pixel row and column of each image; i32[B, 2], its height and width), if only ``cuts``,
    by row, are present of some images."""
    assert plan.sizes is not None
    corner, sizes = np.zeros((2, len(plan)), np.int32), plan.sizes.copy()
    for row, cut in cuts.items():
        corner[:, row], sizes[row] = (cut.top, cut.left), (cut.height, cut.width)
    return corner, sizes


@dataclass(frozen=True)
class Sliced:
    """Reads and decodes only the tiles that a window needs, where a file has tiles."""

    inner: Decoder
    cuts: Cuts

    def __call__(self, wanted: Wanted) -> Part:
        if wanted.box is None:
            return self.inner(wanted)
        cut = self._cut(wanted)
        # It could not be cut while reading. Read it whole, which `inner` then need not do again.
        if cut is None and wanted.encoded is None:
            wanted = replace(wanted, encoded=self.cuts.dataset.fetch(wanted.index)[0])
            if isinstance(wanted.encoded, bytes):
                cut = self._cut(wanted)
        if cut is None:
            return self.inner(wanted)
        if isinstance(cut, Undecodable):
            raise cut
        factor = wanted.factor
        if factor == 1:
            picture, top, left = open_rgb(cut.data), 0.0, 0.0
        else:
            picture, _, top, left = open_smaller(cut.data, factor)
        return Part(picture, top - cut.top / factor, left - cut.left / factor)

    def _cut(self, wanted: Wanted) -> Cut | Undecodable | None:
        whole = {wanted.row: wanted.encoded} if isinstance(wanted.encoded, bytes) else None
        around = AROUND if wanted.factor > 1 else 0
        return self.cuts.cuts(wanted.plan, [wanted.row], whole, around=around).get(wanted.row)
