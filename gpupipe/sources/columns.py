"""Further columns of a dataset: values that a format provides for its samples besides image and label."""

from __future__ import annotations

import io
import math
from array import array
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import DatasetError
from .base import TextList, Values
from .extras import parse_json

LONGEST = (1 << 16) - 1
"""Maximum number of bytes of a text or an array."""
_NUMBERS = {"bool": ("B", np.uint8), "int": ("q", np.int64), "float": ("d", np.float64)}


class NoSuchColumn(ValueError):
    """No sample has a value of a column."""


class GrowingColumn:
    """A column whose values are added one by one. The first one determines its kind, and for arrays the shape.

    Integers among floats become floats.
    """

    def __init__(self, name: str):
        self.name = name
        self.kind: str | None = None
        self._numbers: array[Any] = array("q")
        self._texts = TextList()
        self._arrays = bytearray()
        self._empty: npt.NDArray[Any] = np.zeros(0)
        """Placeholder for a missing array."""
        self._before = 0
        """Rows before the first value."""
        self._unfit: set[str] = set()
        """Types of values that no column can hold."""

    def add(self, value: Any) -> str:
        """Add a value. Returns why it cannot be stored, in which case a placeholder is added instead, or an empty text.

        Raises :class:`ValueError` for a different kind of value than before.
        """
        value, problem = _checked(self.name, value, self._unfit)
        if value is not None:
            self._admit("array" if isinstance(value, np.ndarray) else type(value).__name__, value)
        if self.kind is None:
            self._before += 1
        elif self.kind == "array":
            self._arrays += (self._empty if value is None else value.astype(self._empty.dtype, copy=False)).tobytes()
        elif self.kind == "str":
            # JSON can hold halves of characters, which UTF-8 otherwise refuses.
            self._texts.append((value or "").encode(errors="surrogatepass"))
        else:
            self._numbers.append(0 if value is None else value)
        return problem

    def _admit(self, kind: str, value: Any) -> None:
        if self.kind is None:
            self.kind = kind
            if kind == "str":
                for _ in range(self._before):
                    self._texts.append(b"")
            elif kind == "array":
                self._empty = np.zeros_like(value)
                self._arrays = bytearray(self._before * value.nbytes)
            else:
                code, _ = _NUMBERS[kind]
                self._numbers = array(code, bytes(self._before * array(code).itemsize))
        elif (self.kind, kind) == ("int", "float"):
            self.kind, self._numbers = kind, array(_NUMBERS[kind][0], self._numbers)
        elif kind != self.kind and (self.kind, kind) != ("float", "int"):
            raise ValueError(f"the column {self.name!r} has values of type {self.kind} and of type {kind}")
        elif kind == "array":
            self._admit_array(value)

    def _admit_array(self, value: npt.NDArray[Any]) -> None:
        known = self._empty
        if value.shape != known.shape:
            raise ValueError(
                f"the column {self.name!r} has arrays of shapes {list(known.shape)} and {list(value.shape)}, and a "
                "batch has one shape: pad them, or write them as JSON texts that your collate_fn reads"
            )
        if value.dtype != known.dtype:  # lists of integers among lists of floats
            self._empty = np.zeros(known.shape, np.result_type(known, value))
            self._arrays = bytearray(np.frombuffer(self._arrays, known.dtype).astype(self._empty.dtype).tobytes())

    def values(self) -> Values:
        """Return all values. Raises :class:`ValueError` if there is none."""
        if self.kind is None and self._unfit:
            raise ValueError(
                f"the column {self.name!r} has values of type {' and '.join(sorted(self._unfit))}, but columns hold "
                "numbers, booleans, texts, and arrays of numbers of one shape; write anything else as JSON texts "
                "that your collate_fn reads"
            )
        if self.kind is None:
            raise NoSuchColumn(f"no sample has a column {self.name!r}")
        if self.kind == "str":
            return Values("str", self._texts.texts())
        if self.kind == "array":
            shape = ",".join(map(str, self._empty.shape))
            rows = np.frombuffer(self._arrays, np.uint8).reshape(-1, max(self._empty.nbytes, 1))
            return Values(f"{self._empty.dtype.str}[{shape}]", rows)
        return Values(self.kind, np.frombuffer(self._numbers, _NUMBERS[self.kind][1]))


def _checked(name: str, value: Any, unfit: set[str]) -> tuple[Any, str]:
    """Return (the value or ``None``, the reason). Adds types that no column can hold to ``unfit``."""
    if value is None:
        return None, f"it has no {name!r}, but other samples have one"
    kind = type(value).__name__
    if isinstance(value, list):
        value = array_of(value)
    if isinstance(value, np.ndarray) and value.dtype.kind in "biuf" and value.size:
        if value.nbytes > LONGEST:
            return None, f"its {name!r} has {value.nbytes:,} bytes; arrays have at most {LONGEST:,}"
        # Files and machines may differ in byte order; the index has one.
        return np.ascontiguousarray(value, value.dtype.newbyteorder("<")), ""
    # By exact types, because their names become the kinds of columns.
    if type(value) not in (bool, int, float, str):
        unfit.add(kind)
        return None, f"its {name!r} is of type {kind}; columns hold numbers, booleans, texts and arrays of numbers"
    if type(value) is int and not -(1 << 63) <= value < 1 << 63:
        return None, f"its {name!r} is {value}, which does not fit into 64 bits"
    if type(value) is str and len(value.encode(errors="surrogatepass")) > LONGEST:
        return None, f"its {name!r} has more than {LONGEST:,} bytes"
    return value, ""


def array_of(values: list[Any]) -> Any:
    """Convert lists of numbers, all of one length, to an array i64, f64 or bool. Returns anything else unchanged."""
    try:
        found = np.array(values)
    except (ValueError, OverflowError):
        return values
    return found if found.dtype in (np.bool_, np.int64, np.float64) else values


def member_value(read: Mapping[str, bytes], name: str) -> Any:
    """Return the value of a column for a sample in an archive.

    Args:
        read: members of the sample, by lower-case extension.
        name: an extension: ``"txt"`` for a text, ``"npy"`` for an array; or a field of a JSON member, ``"json:a.b"``.

    Returns:
        The value, or ``None`` if it is missing. Bytes that are not text are returned unchanged.
    """
    extension, _, field = name.partition(":")
    extension = extension.lower()
    try:
        if extension not in read:
            return None
        if field:
            return json_field(read[extension], field)
        if extension.rpartition(".")[2] == "npy":
            return _npy_array(read[extension])
        return read[extension].decode()
    except UnicodeDecodeError:
        return read[extension]
    except (ValueError, KeyError, TypeError, RecursionError, EOFError):
        return None


def _npy_array(data: bytes) -> npt.NDArray[Any]:
    """Read the array of a ``.npy`` file. Raises :class:`ValueError` before it allocates memory for a wrong header."""
    file = io.BytesIO(data)
    version = np.lib.format.read_magic(file)
    header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, fortran_order, dtype = header(file)
    if dtype.hasobject or math.prod(shape) * dtype.itemsize != len(data) - file.tell():
        raise ValueError("it is not an array of numbers, or it is truncated")
    return np.frombuffer(data, dtype, offset=file.tell()).reshape(shape, order="F" if fortran_order else "C")


def json_field(text: bytes, path: str) -> Any:
    """Return a field of a JSON object by name, or ``a.b`` for a field of a field.

    Raises the errors of parsing and lookup.
    """
    value = parse_json(text)
    # A field whose own name has a dot comes first.
    if isinstance(value, dict) and path in value:
        return value[path]
    for name in path.split("."):
        value = value[name]
    return value


def parsed(texts: Sequence[Any]) -> list[Any]:
    """Convert a column of a CSV file, which has only texts, to integers if possible, else floats, else texts.

    An empty text is a missing value.

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
    """Return whether all labels of a CSV file are numbers and some are not integers: neither class numbers nor names.

    >>> are_fractions(["1.0", "2.0"]), are_fractions(["1", "2"]), are_fractions(["1.0", "cat"])
    (True, False, False)
    """
    return any(isinstance(value, float) for value in parsed(labels))


def checked_columns(columns: Any, owner: str, taken: Sequence[str | None] = ()) -> tuple[str, ...]:
    """Check the argument ``columns``. Raises :class:`DatasetError`.

    Args:
        taken: names that the dataset uses for something else.
    """
    names = None if isinstance(columns, (str, bytes)) else tuple(columns)
    if names is None or not all(isinstance(name, str) and name for name in names):
        raise DatasetError(f"{owner}: columns must be a list of names, not {columns!r}; write columns=['weight']")
    for name in names:
        if name in ("image", "label") or name in taken or names.count(name) > 1:
            raise DatasetError(
                f"{owner}: the column {name!r} is named twice: every sample has its image and label anyway, and each "
                "other column once"
            )
    return names
