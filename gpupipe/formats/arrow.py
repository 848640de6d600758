"""Arrow files and streams with a column of encoded images.

Their buffers are stored in the file as in memory, so an image is a range of bytes.
https://arrow.apache.org/docs/format/Columnar.html
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import IO, Any

import numpy as np
import numpy.typing as npt

from ..sources.extras import need, parse_json
from ..sources.shards import Row, Shards
from .base import PathsLike, Sharded, TableOptions, Unpack, Usual

_MAGIC = b"ARROW1\0\0"
_DICTIONARY, _BATCH = 2, 3
_FILE, _STREAM = "pyarrow.feather.read_table(OLD)", "pyarrow.ipc.open_stream(OLD).read_all()"


@dataclass(frozen=True, eq=False)
class ArrowFiles(Shards):
    """Rows of Arrow files.

    Args:
        image: the column of images, plain or in the struct ``{bytes, path}``.
        label: the column of class numbers or names.
    """

    image: str
    label: str | None

    owner = "Arrow"

    def names(self, file: IO[bytes]) -> Iterable[str]:
        names: list[str] = _reader(_mapped(file)).schema.names
        return names

    def classes(self, file: IO[bytes]) -> tuple[str, ...]:
        return class_names(_reader(_mapped(file)).schema.metadata, self.label)

    def rows(self, file: IO[bytes], path: bytes) -> Iterator[Row]:
        return rows_of(_mapped(file), 0, self.image, self.label, self.columns)


def class_names(metadata: dict[bytes, bytes] | None, label: str | None) -> tuple[str, ...]:
    """Return the class names of a Hugging Face ``ClassLabel``, by number, from the metadata of a table."""
    try:
        features = parse_json((metadata or {})[b"huggingface"])["info"]["features"]
        names = features[label]["names"] if features[label]["_type"] == "ClassLabel" else []
    except (KeyError, ValueError, TypeError):
        return ()
    return tuple(map(str, names)) if isinstance(names, list) else ()


def rows_of(content: Any, start: int, image: str, label: str | None, columns: Sequence[str] = ()) -> Iterator[Row]:
    """Yield the rows of an Arrow file or stream. ``content``, any buffer, begins at byte ``start`` of a file.

    Raises :class:`ValueError` that says what is wrong.
    """
    pa = need("pyarrow", "parquet", "Arrow files are opened with pyarrow")
    buffer, number = pa.py_buffer(content), 0

    def position(address: int, size: int) -> int:
        at = address - buffer.address
        # Memory outside of the file is where pyarrow unpacked a buffer.
        if not 0 <= at <= at + size <= buffer.size:
            raise _compressed(buffer)
        return start + int(at)

    _refuse_compressed(buffer)
    for batch in _batches(_reader(buffer)):
        names = batch.schema.names
        if image not in names:
            raise ValueError(f"it has no column {image!r}; it has {', '.join(names)}; name one by image=")
        labels = None
        if label is not None and label in names:
            labels = checked_labels(batch.column(label))
        values = further_of(batch, columns)
        starts, lengths, called = bytes_of(batch.column(image), position)
        for i, (at, length) in enumerate(zip(starts.tolist(), lengths.tolist(), strict=True)):
            name = ((called[i].as_py() if called is not None else None) or str(number)).encode()
            if length < 0:
                yield Row(name, 0, 0, problem="it has no bytes, and gpupipe does not follow its path")
            else:
                yield Row(name, at, length, None if labels is None else labels[i], values=values[i] if values else ())
            number += 1


def _mapped(file: IO[bytes]) -> Any:
    """Map an open file as a buffer."""
    pa = need("pyarrow", "parquet", "Arrow files are opened with pyarrow")
    try:
        return pa.memory_map(file.name).read_buffer()
    except (OSError, ValueError) as e:
        raise ValueError(f"it cannot be mapped: {e}") from None


def _reader(content: Any) -> Any:
    """Open a reader of batches."""
    pa = need("pyarrow", "parquet", "Arrow files are opened with pyarrow")
    try:
        if content.size >= 6 and bytes(content[:6]) == b"ARROW1":
            return pa.ipc.open_file(content)
        return pa.ipc.open_stream(content)
    except (OSError, ValueError) as e:
        raise ValueError(f"it is not a complete Arrow file or stream: {e}") from None


def _refuse_compressed(content: Any) -> None:
    """Raise :class:`ValueError` if a batch is compressed, before anything is unpacked: it may claim any size."""
    pa = need("pyarrow", "parquet", "Arrow files are opened with pyarrow")
    start = len(_MAGIC) if bytes(content[:6]) == _MAGIC[:6] else 0  # a file is a stream between two magic numbers
    try:
        for message in pa.ipc.MessageReader.open_stream(content.slice(start)):
            if _is_compressed(bytes(message.metadata)):
                raise _compressed(content)
    except (OSError, EOFError):  # the reader of batches reports what is wrong
        pass


def _compressed(content: Any) -> ValueError:
    reads = _FILE if bytes(content[:6]) == _MAGIC[:6] else _STREAM
    return ValueError(
        "its columns are compressed, so its samples cannot be read one by one; write it again: "
        f"pyarrow.feather.write_feather({reads}, NEW, compression='uncompressed')"
    )


def _is_compressed(message: bytes) -> bool:
    """Return whether a message is a batch or a dictionary with ``RecordBatch.compression``.

    The message is a flatbuffer; see https://github.com/apache/arrow/blob/main/format/Message.fbs
    """

    def field(table: int, number: int) -> int:
        """Return the position of a field in a table; 0 if it is missing."""
        # A table begins with the distance back to its list of fields: two sizes of two bytes, then an offset for each.
        names = table - int.from_bytes(message[table : table + 4], "little", signed=True)
        size, at = int.from_bytes(message[names : names + 2], "little"), 4 + 2 * number
        offset = int.from_bytes(message[names + at : names + at + 2], "little") if at + 2 <= size else 0
        return table + offset if offset else 0

    def below(at: int) -> int:
        return at + int.from_bytes(message[at : at + 4], "little")

    # Message: 1 kind, 2 header. DictionaryBatch: 1 the batch. RecordBatch: 3 compression.
    root = below(0)
    kind, header = message[field(root, 1)] if field(root, 1) else 0, field(root, 2)
    batch = below(header)
    if kind == _DICTIONARY:
        batch = below(field(batch, 1))
    return kind in (_DICTIONARY, _BATCH) and bool(field(batch, 3))


def _batches(reader: Any) -> Iterator[Any]:
    try:
        if hasattr(reader, "num_record_batches"):
            yield from (reader.get_batch(i) for i in range(reader.num_record_batches))
        else:
            yield from reader
    except (OSError, ValueError) as e:
        raise ValueError(f"it is truncated or damaged: {e}") from None


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


class Arrow(Sharded):
    """Images in a column of Arrow files and streams: of bytes, or of the struct ``{bytes, path}`` that Hugging Face
    writes. ``pyarrow``, which locates the columns while the index is built, comes with ``gpupipe-loader[parquet]``.

    Not supported: compressed columns, which neither ``datasets`` nor pyarrow write by default. Remote files.

    Args:
        image: The column of images.
        label: The column of class numbers or class names. Hugging Face's ``ClassLabel`` provides ``classes``. ``None``:
            no labels. The default may be missing; a name that you pass must exist.
        columns: Further columns of numbers, texts, or lists of equally many numbers; ``"meta.weight"`` for a field of a
            struct. A sample without a value is a bad sample.

    Raises:
        DatasetError: A file is missing, of another format, or cut, or a column cannot be used.
        MissingDependency: ``pyarrow`` is not installed.

    >>> Arrow("data/train-*.arrow")  # doctest: +SKIP
    Arrow(1,281,167 samples in 294 files below '/data/')
    """

    suffixes = (".arrow", ".feather", ".ipc")

    def __init__(
        self,
        paths: PathsLike,
        transform: Any = None,
        *,
        image: str = Usual("image"),
        label: str | None = Usual("label"),
        **options: Unpack[TableOptions],
    ):
        rows = partial(ArrowFiles, image=image, label=label)
        super().__init__(rows, self.files(paths, options), transform, options, image, label, taken=(image, label))
