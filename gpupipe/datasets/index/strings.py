"""Many short texts in an index file: paths, names, reasons."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from ...sources.base import Texts
from .column_file import Column, ColumnsError

I64 = npt.NDArray[np.int64]

_LONGEST = 1 << 16
"""Upper limit of a text's bytes."""


class Strings:
    """Texts in two columns of an index file, with the layout of :class:`~gpupipe.sources.base.Texts`.

    Args:
        offsets: i64[N + 1]
        blob: u8[L]
        spoiled: creates the error for invalid offsets.
    """

    def __init__(self, offsets: Column, blob: Column, spoiled: Callable[[str], ColumnsError]):
        self._offsets = offsets
        self._blob = blob
        self._spoiled = spoiled
        if offsets.part(0, 1)[0] != 0 or offsets.part(len(self), len(self) + 1)[0] != len(blob):
            raise spoiled("the offsets of its texts do not fit")

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __getitem__(self, i: int) -> bytes:
        offsets, blob = self._offsets, self._blob
        start, end = (offsets.numbers[i : i + 2] if offsets.is_here else offsets.part(i, i + 2)).tolist()
        if not 0 <= start <= end < start + _LONGEST:
            raise self._spoiled("the offsets of its texts do not fit")
        return blob.numbers[start:end].tobytes() if blob.is_here else blob.part(start, end).tobytes()

    def __eq__(self, other: object) -> bool:
        """Return whether these are the texts of a listing."""
        if not isinstance(other, Texts):
            return NotImplemented
        same = np.array_equal(self._offsets.all, other.offsets)
        return same and self._blob.read().data == memoryview(other.blob)

    def many(self, indices: I64) -> list[bytes]:
        """Return the texts at ``indices``, none of them negative."""
        starts, ends = self._offsets.all[indices], self._offsets.all[indices + 1]
        lengths = ends - starts
        if len(starts) and (starts.min() < 0 or lengths.min() < 0 or lengths.max() >= _LONGEST):
            raise self._spoiled("the offsets of its texts do not fit")
        return self._blob.pieces(starts, ends)
