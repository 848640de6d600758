"""Further columns of a dataset: what a format knows of its samples beside image and label."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

import numpy as np

from ..errors import DatasetError
from .base import ColumnKind, TextList, Values

__all__ = ["GrowingColumn", "NoSuchColumn", "are_fractions", "checked_columns", "parsed"]

_LONGEST = (1 << 16) - 1
"""Bytes of a text."""
_DTYPES: dict[str, Any] = {"bool": np.uint8, "int": np.int64, "float": np.float64}


class NoSuchColumn(ValueError):
    """No sample has a value of a column."""


class GrowingColumn:
    """A column whose values come one by one. The first one says what kind it is; whole numbers among floats become
    floats."""

    def __init__(self, name: str):
        self.name = name
        self.kind: ColumnKind | None = None
        self._numbers: array[Any] = array("q")
        self._texts = TextList()
        self._before = 0
        """Rows before the first value."""
        self._unfit: set[str] = set()
        """Types of values that no column holds."""

    def add(self, value: Any) -> str:
        """Add a value, in whose place there is nothing if it cannot be one; then why.

        Raises :class:`ValueError` for another kind of value than those before.
        """
        value, problem = _checked(self.name, value, self._unfit)
        if value is not None:
            self._admit(type(value).__name__)  # type: ignore[arg-type]
        if self.kind is None:
            self._before += 1
        elif self.kind == "str":
            self._texts.append((value or "").encode(errors="surrogatepass"))
        else:
            self._numbers.append(0 if value is None else value)
        return problem

    def _admit(self, kind: ColumnKind) -> None:
        if self.kind is None:
            self.kind = kind
            if kind == "str":
                for _ in range(self._before):
                    self._texts.append(b"")
            else:
                code = _ARRAYS[kind]
                self._numbers = array(code, bytes(self._before * array(code).itemsize))
        elif (self.kind, kind) == ("int", "float"):
            self.kind, self._numbers = kind, array(_ARRAYS[kind], self._numbers)
        elif kind != self.kind and (self.kind, kind) != ("float", "int"):
            raise ValueError(f"the column {self.name!r} has values of type {self.kind} and of type {kind}")

    def values(self) -> Values:
        """All of them. Raises :class:`ValueError` if there was none."""
        if self.kind is None and self._unfit:
            raise ValueError(
                f"the column {self.name!r} has values of type {' and '.join(sorted(self._unfit))}, and columns hold "
                "numbers, truth values and texts: give arrays of equal length by datasets.Columns(dataset, "
                f"{{{self.name!r}: array}}), and what differs in length as JSON texts that your collate_fn reads"
            )
        if self.kind is None:
            raise NoSuchColumn(f"no sample has a column {self.name!r}")
        if self.kind == "str":
            return Values("str", self._texts.texts())
        return Values(self.kind, np.frombuffer(self._numbers, _DTYPES[self.kind]))


_ARRAYS = {"bool": "B", "int": "q", "float": "d"}


def _checked(name: str, value: Any, unfit: set[str]) -> tuple[Any, str]:
    """(the value, or nothing; why). Other types are added to ``unfit``."""
    if isinstance(value, np.generic):
        value = value.item()
    if value is None:
        return None, f"it has no {name!r}, and other samples have one"
    if type(value) not in (bool, int, float, str):
        unfit.add(type(value).__name__)
        return None, f"its {name!r} is of type {type(value).__name__}; columns hold numbers, truth values and texts"
    if type(value) is int and not -(1 << 63) <= value < 1 << 63:
        return None, f"its {name!r} is {value}, which does not fit into 64 bits"
    if type(value) is str and len(value.encode(errors="surrogatepass")) > _LONGEST:
        return None, f"its {name!r} has more than {_LONGEST:,} bytes"
    return value, ""


def parsed(texts: Sequence[Any]) -> list[Any]:
    """A column of a CSV file, which has only texts: whole numbers if all are some, else floats, else texts; an empty
    one is no value.

    >>> parsed(["1", "", "2.5"])
    [1.0, None, 2.5]
    """
    values = [None if text == "" else text for text in texts]
    for number in (int, float):
        try:
            return [None if value is None else number(value) for value in values]
        except (ValueError, TypeError):
            pass
    return values


def are_fractions(labels: Sequence[str]) -> bool:
    """Whether all labels of a CSV file are numbers, and some no whole ones: neither class numbers nor names.

    >>> are_fractions(["1.0", "2.0"]), are_fractions(["1", "2"]), are_fractions(["1.0", "cat"])
    (True, False, False)
    """
    return any(isinstance(value, float) for value in parsed(labels))


def checked_columns(columns: Any, owner: str, taken: Sequence[str | None] = ()) -> tuple[str, ...]:
    """The argument ``columns``. Raises :class:`DatasetError`.

    Args:
        taken: names that the dataset has for something else.
    """
    names = None if isinstance(columns, (str, bytes)) else tuple(columns)
    if names is None or not all(isinstance(name, str) and name for name in names):
        raise DatasetError(f"{owner}: columns must be a list of names, not {columns!r}; write columns=['weight']")
    for name in names:
        if name in ("image", "label") or name in taken or names.count(name) > 1:
            raise DatasetError(
                f"{owner}: the column {name!r} is there twice: image and label come with every sample, and each other "
                "column once"
            )
    return names
