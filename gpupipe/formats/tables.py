"""Tables of images: what Parquet, Arrow and Hugging Face's datasets share."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from ..sources.extras import need, parse_json
from ..sources.parquet_pages import Where
from ..sources.shards import Row, Shards


@dataclass(frozen=True, eq=False)
class TableFiles(Shards):
    """Rows of files that hold a table.

    Args:
        image: the column of images, plain or in the struct ``{bytes, path}``.
        label: the column of class numbers or names.
    """

    image: str
    label: str | None

    @abstractmethod
    def schema(self, file: IO[bytes]) -> Any:
        """Return the ``pyarrow.Schema`` of a file."""

    def names(self, file: IO[bytes]) -> Iterable[str]:
        names: list[str] = self.schema(file).names
        return names

    def classes(self, file: IO[bytes]) -> tuple[str, ...]:
        return class_names(self.schema(file).metadata, self.label)

    def part(
        self, read: Any, names: Sequence[str | None] | None, where: Iterable[Where | None], first: int
    ) -> Iterator[Row]:
        """Yield the rows of a part of a table.

        Args:
            read: the part, with the columns of labels and of further values; ``None`` if there are none.
            names: names of the images; those without one are named by their number.
            where: the place of each image, or ``None``.
            first: number of the first row.
        """
        has_label = read is not None and self.label is not None and self.label in read.schema.names
        labels = checked_labels(read.column(self.label)) if has_label else None
        values = [] if read is None else further_of(read, self.columns)
        for i, place in enumerate(where):
            name = ((names[i] if names is not None else None) or str(first + i)).encode()
            if place is None:
                yield Row(name, 0, 0, problem="it has no bytes, and gpupipe does not follow its path")
            else:
                label, further = None if labels is None else labels[i], values[i] if values else ()
                yield Row(name, place.offset, place.length, label, packed=place.packed, values=further)


def class_names(metadata: dict[bytes, bytes] | None, label: str | None) -> tuple[str, ...]:
    """Return the class names of a Hugging Face ``ClassLabel``, by number, from the metadata of a table."""
    try:
        features = parse_json((metadata or {})[b"huggingface"])["info"]["features"]
        names = features[label]["names"] if features[label]["_type"] == "ClassLabel" else []
    except (KeyError, ValueError, TypeError):
        return ()
    return tuple(map(str, names)) if isinstance(names, list) else ()


def further_of(table: Any, columns: Sequence[str]) -> list[tuple[Any, ...]]:
    """Return the rows of further columns of a table: Python numbers and texts, and arrays for lists of numbers.

    Returns an empty list if no columns are requested. Raises :class:`ValueError` if a column does not exist.
    """
    return list(zip(*(_values(_nested(table, name)) for name in columns), strict=True))


def _nested(table: Any, name: str) -> Any:
    """Return a column, or a field of a struct column: ``a.b``. Raises :class:`ValueError`."""
    names = table.schema.names
    head, *fields = [name] if name in names else name.split(".")
    if head not in names:
        raise ValueError(f"it has no column {name!r}; it has {', '.join(names)}; correct columns=")
    column = table.column(head)
    column.validate(full=True)  # ArrowInvalid is a ValueError
    for field in fields:
        pa = need("pyarrow", "parquet", "Arrow's columns are read with pyarrow")
        there = [it.name for it in column.type] if pa.types.is_struct(column.type) else []
        if field not in there:
            raise ValueError(f"its column {head!r} has no field {field!r}; it has {', '.join(there) or 'none'}")
        column = need("pyarrow.compute", "parquet", "fields of structs are read with pyarrow").struct_field(
            column, field
        )
    return column


def _values(column: Any) -> list[Any]:
    types = need("pyarrow", "parquet", "Arrow's columns are read with pyarrow").types
    kind = column.type
    if types.is_fixed_size_list(kind) and types.is_fixed_size_list(kind.value_type):
        return [_nested_array(it) for it in column]
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        of = kind.value_type
        if types.is_integer(of) or types.is_floating(of) or types.is_boolean(of):
            return [it.values.to_numpy(zero_copy_only=False) if it.is_valid else None for it in column]
    values: list[Any] = column.to_pylist()
    return values


def _nested_array(value: Any) -> Any:
    """Return the array of fixed-size lists within one another, or lists if they hold anything but numbers."""
    if not value.is_valid:
        return None
    values, shape = value.values, [len(value.values)]
    while hasattr(values.type, "list_size"):
        # flatten() would leave out the lists that are missing, and the shape would be wrong.
        if values.null_count:
            return value.as_py()
        shape.append(values.type.list_size)
        values = values.flatten()
    if values.null_count or str(values.type) not in _NUMBERS:
        return value.as_py()
    return values.to_numpy(zero_copy_only=False).reshape(shape)


_NUMBERS = {"bool", "halffloat", "float", "double", *(f"{u}int{bits}" for u in ("u", "") for bits in (8, 16, 32, 64))}


def checked_labels(column: Any) -> list[Any]:
    """Return class numbers or names of a column. Raises :class:`ValueError`."""
    pa = need("pyarrow", "parquet", "Arrow's columns are read with pyarrow")
    types = pa.types
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
    pa = need("pyarrow", "parquet", "Arrow's columns are read with pyarrow")
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
