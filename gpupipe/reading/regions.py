"""Decoding of windows in processes that decode for others, as DALI decodes them where there are none."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ..codecs.files import Place, read_place
from ..codecs.nvimgcodec import decode_window, is_safe
from ..datasets.dataset import Dataset
from .decoder import Decoder, Part, Wanted


@dataclass(frozen=True)
class Regions:
    """Decodes only the window of plain JPEG files. ``inner`` decodes everything else, and identifies bad samples."""

    inner: Decoder
    dataset: Dataset
    codes: npt.NDArray[np.bool_]
    """bool[256]: codings of the dataset that are plain JPEG."""

    @classmethod
    def of(cls, inner: Decoder, dataset: Dataset) -> Decoder:
        """Return ``inner`` if there is nothing to add to it."""
        if dataset.kind != "files" or dataset.codings is None:
            return inner
        codes = np.zeros(256, np.bool_)
        codings = dataset.codings[1][:255]
        codes[: len(codings)] = list(map(is_safe, codings))
        return cls(inner, dataset, codes) if codes.any() else inner

    def __call__(self, wanted: Wanted) -> Part:
        if wanted.factor > 1 or not self._lies_plain(wanted.index):
            return self.inner(wanted)
        media: Any = self.dataset.fetch(wanted.index)[0] if wanted.encoded is None else wanted.encoded
        if isinstance(media, str):
            media = read_place(Place(os.fsencode(media), max_bytes=self.dataset.limits.max_bytes))
            indexed = self.dataset.encoded_sizes(np.array([wanted.index]))
            if indexed is None or len(media) != indexed[0]:  # the file was replaced, perhaps by another format
                return self.inner(replace(wanted, encoded=media))
        pixels = decode_window(media, wanted.size, wanted.box)
        if pixels is None:
            return self.inner(replace(wanted, encoded=media))
        top, left, *_ = wanted.box or (0, 0)
        # The picture begins at the window, so the image's first pixel lies before it.
        return Part(pixels, -top, -left)

    def _lies_plain(self, index: int) -> bool:
        """Return whether a sample is a plain JPEG that needs no turning."""
        dataset = self.dataset
        assert dataset.codings is not None
        turned = dataset.limits.exif and dataset.orientations is not None and dataset.orientations[index] != 1
        return bool(self.codes[dataset.codings[0][index]]) and not turned
