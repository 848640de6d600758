"""Columns of Arrow tables: their values, and where the bytes of images lie.

The caller got the table from pyarrow, so each function can import it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt


def further_of(table: Any, columns: Sequence[str]) -> list[tuple[Any, ...]]:
    """Return the rows of further columns of a table: Python numbers and texts, and arrays for lists of numbers.

    Returns an empty list if no columns are requested. Raises :class:`ValueError` if a field does not exist, or if a
    column is damaged.
    """
    return list(zip(*(_values(_nested(table, name)) for name in columns), strict=True))


def _nested(table: Any, name: str) -> Any:
    """Return a column, or a field of a struct column: ``a.b``. Raises :class:`ValueError`."""
    import pyarrow as pa
    import pyarrow.compute

    head, *fields = [name] if name in table.schema.names else name.split(".")
    column = table.column(head)
    column.validate(full=True)  # ArrowInvalid is a ValueError
    for field in fields:
        there = [it.name for it in column.type] if pa.types.is_struct(column.type) else []
        if field not in there:
            raise ValueError(f"its column {head!r} has no field {field!r}; it has {', '.join(there) or 'none'}")
        column = pa.compute.struct_field(column, field)
    return column


def _values(column: Any) -> list[Any]:
    from pyarrow import types

    kind = column.type
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        of = kind.value_type
        if types.is_integer(of) or types.is_floating(of) or types.is_boolean(of):
            return [it.values.to_numpy(zero_copy_only=False) if it.is_valid else None for it in column]
    values: list[Any] = column.to_pylist()
    return values


def checked_labels(column: Any) -> list[Any]:
    """Return class numbers or names of a column. Raises :class:`ValueError`."""
    from pyarrow import types

    if not (types.is_integer(column.type) or types.is_string(column.type) or types.is_large_string(column.type)):
        raise ValueError(f"its labels are {column.type}; they must be integers or class names")
    column.validate(full=True)  # ArrowInvalid is a ValueError
    values: list[Any] = column.to_pylist()
    return values


def bytes_of(
    column: Any, locate: Callable[[int, int], int]
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], Any]:
    """Locate the bytes of a column.

    Returns (i64[N] from ``locate(address, bytes)``, i64[N] bytes or -1 for missing values, the column of paths next to
    them). Raises :class:`ValueError` if it is not a column of bytes, or damaged.
    """
    import pyarrow as pa

    if isinstance(column.type, pa.ExtensionType):
        column = column.storage
    paths = None
    there = np.ones(len(column), np.bool_)
    if pa.types.is_struct(column.type):
        names = [field.name for field in column.type]
        if "bytes" not in names:
            raise ValueError(f"its images are {column.type}; they must be bytes, or a struct that contains them")
        there &= _valid(column)
        if "path" in names:
            path = column.field("path")
            path.validate(full=True)
            paths = path
        column = column.field("bytes")
    if pa.types.is_binary(column.type) or pa.types.is_string(column.type):
        dtype: np.dtype[Any] = np.dtype("<i4")
    elif pa.types.is_large_binary(column.type) or pa.types.is_large_string(column.type):
        dtype = np.dtype("<i8")
    else:
        raise ValueError(f"its images are {column.type}; they must be bytes, or a struct that contains them")
    there &= _valid(column)
    _, offsets, data = column.buffers()
    n = len(column)
    if not n or offsets is None:
        return np.zeros(n, np.int64), np.full(n, -1), paths
    if offsets.size < (column.offset + n + 1) * dtype.itemsize:
        raise ValueError("it is damaged: a column is shorter than it says")
    # Value i lies between offsets i and i + 1. A slice begins at column.offset.
    ends = np.frombuffer(offsets, dtype)[column.offset : column.offset + n + 1].astype(np.int64)
    size = 0 if data is None else data.size
    lengths = np.diff(ends)
    # Offsets that never decrease, from 0 on and up to the size: so every value lies within.
    if (lengths < 0).any() or ends[0] < 0 or ends[-1] > size:
        raise ValueError("it is damaged: a column's values lie outside of it")
    base = 0 if not size else locate(data.address, data.size)
    return base + ends[:-1], np.where(there, lengths, -1), paths


def _valid(column: Any) -> npt.NDArray[np.bool_]:
    valid: npt.NDArray[np.bool_] = column.is_valid().to_numpy(zero_copy_only=False)
    return valid
