"""Further columns: numbers, truth values and texts, which stay as they are whatever is done to the image."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from .base import Target

__all__ = ["ChosenRows", "NumberColumn", "TextColumn"]

I64 = npt.NDArray[np.int64]


class Rows(Protocol):
    """A column that is read in parts."""

    dtype: np.dtype[Any]

    def rows(self, indices: I64) -> npt.NDArray[Any]: ...


class Texts(Protocol):
    """The same of texts in UTF-8."""

    def many(self, indices: I64) -> list[bytes]: ...


_DTYPES: dict[str, Any] = {"bool": np.bool_, "int": np.int64, "float": np.float64, "float32": np.float32}


class NumberColumn(Target):
    """Numbers or truth values for each image. A batch is what ``default_collate`` makes of Python's: i64[B], f64[B] or
    bool[B]; or f32[B], which torch prefers; or of the column's own type.

    >>> weights = NumberColumn(np.array([0.5, 2.0, 1.0]))
    >>> weights.collate(weights.of(np.array([2, 0])))
    array([1. , 0.5])

    Args:
        column: one value or array for each image, in an array or a column of a file; bytes that are 0 or 1 of
            ``"bool"``.
        kind: ``None``: as an array has them.
    """

    def __init__(self, column: npt.NDArray[Any] | Rows, kind: Literal["bool", "int", "float", "float32"] | None = None):
        self.column = column
        self.kind = kind
        self._dtype: np.dtype[Any] = column.dtype if kind is None else np.dtype(_DTYPES[kind])

    def of(self, indices: I64) -> npt.NDArray[Any]:  # type: ignore[override]
        found = self.column[indices] if isinstance(self.column, np.ndarray) else self.column.rows(indices)
        return found.astype(self._dtype, copy=False)

    def collate(self, values: Sequence[Any]) -> npt.NDArray[Any]:
        """A copy that can be written to."""
        return np.array(values, self._dtype)


class TextColumn(Target):
    """One text for each image. A batch is a list of them."""

    def __init__(self, texts: Texts):
        self.texts = texts

    def of(self, indices: I64) -> list[str]:
        return [text.decode(errors="surrogatepass") for text in self.texts.many(np.asarray(indices, np.int64))]

    def collate(self, values: Sequence[str]) -> list[str]:
        return list(values)


class ChosenRows(Target):
    """The values of some samples of a dataset.

    Args:
        target: of the whole dataset.
        indices: i64[M]: which of its samples, in this order.
    """

    def __init__(self, target: Target, indices: I64):
        self.target = target
        self.indices = indices

    def of(self, indices: I64) -> Sequence[Any]:
        return self.target.of(self.indices[indices])

    def collate(self, values: Sequence[Any]) -> npt.NDArray[Any] | list[str]:
        return self.target.collate(values)
