"""Columns of numbers, booleans and texts, which transforms leave unchanged."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt

from ..transforms.boxes import BatchBoxes
from .target import Collated, Moves, Target

I64 = npt.NDArray[np.int64]


class Numbers(Protocol):
    """A column of numbers that is read in parts."""

    @property
    def dtype(self) -> np.dtype[Any]: ...

    def rows(self, indices: I64) -> npt.NDArray[Any]: ...


class Texts(Protocol):
    """A column of UTF-8 texts that is read in parts."""

    def many(self, indices: I64) -> list[bytes]: ...


_DTYPES: dict[str, Any] = {"bool": np.bool_, "int": np.int64, "float": np.float64}


class NumberColumn(Target):
    """One number, boolean or array per image.

    A batch has the type that ``default_collate`` produces from Python values: i64[B], f64[B] or bool[B]; or the type of
    the column.

    >>> weights = NumberColumn(np.array([0.5, 2.0, 1.0]))
    >>> weights.collate(weights.of(np.array([2, 0])))
    array([1. , 0.5])

    Args:
        column: one value or array per image, as an array or a column of a file. ``"bool"`` expects bytes 0 and 1.
        kind: type of the values; ``None`` keeps that of the column.
    """

    def __init__(self, column: npt.NDArray[Any] | Numbers, kind: Literal["bool", "int", "float"] | None = None):
        self.column = column
        self.kind = kind
        self._dtype: np.dtype[Any] = column.dtype if kind is None else np.dtype(_DTYPES[kind])

    def of(self, indices: I64) -> npt.NDArray[Any]:  # type: ignore[override]
        found = self.column[indices] if isinstance(self.column, np.ndarray) else self.column.rows(indices)
        return found.astype(self._dtype, copy=False)

    def collate(self, values: Sequence[Any]) -> npt.NDArray[Any]:
        """Return a writable copy."""
        return np.array(values, self._dtype)


class TextColumn(Target):
    """One text per image. A batch is a list of texts."""

    def __init__(self, texts: Texts):
        self.texts = texts

    def of(self, indices: I64) -> list[str]:
        return [text.decode(errors="surrogatepass") for text in self.texts.many(np.asarray(indices, np.int64))]

    def collate(self, values: Sequence[str]) -> list[str]:
        return list(values)


class ChosenRows(Target):
    """Values of selected samples of a dataset.

    Args:
        target: target of the whole dataset.
        indices: i64[M], the selected samples in order.
    """

    def __init__(self, target: Target, indices: I64):
        self.target = target
        self.indices = indices
        self.moves = target.moves
        self.per_object = target.per_object
        self.format = target.format

    def of(self, indices: I64) -> Sequence[Any]:
        return self.target.of(self.indices[indices])

    def boxes(self, indices: I64) -> BatchBoxes | None:
        return self.target.boxes(self.indices[indices])

    def follow(self, values: Sequence[Any], moves: Sequence[Moves]) -> Sequence[Any]:
        return self.target.follow(values, moves)

    def collate(self, values: Sequence[Any]) -> Collated:
        return self.target.collate(values)
