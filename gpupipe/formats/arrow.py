"""Arrow files and streams with a column of encoded images.

Their buffers are stored in the file as in memory, so an image is a range of bytes.
https://arrow.apache.org/docs/format/Columnar.html
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import IO, Any, Unpack

from ..sources.extras import need
from ..sources.parquet_pages import Where
from ..sources.shards import Row
from ..transforms.compose import Transforms
from .base import PathsLike, Sharded, TableOptions, Usual
from .tables import TableFiles, bytes_of

_MAGIC = b"ARROW1\0\0"
_DICTIONARY, _BATCH = 2, 3
_FILE, _STREAM = "pyarrow.feather.read_table(OLD)", "pyarrow.ipc.open_stream(OLD).read_all()"


@dataclass(frozen=True, eq=False)
class ArrowFiles(TableFiles):
    """Rows of Arrow files."""

    owner = "Arrow"

    def schema(self, file: IO[bytes]) -> Any:
        return _reader(_mapped(file)).schema

    def rows(self, file: IO[bytes], path: bytes) -> Iterator[Row]:
        buffer, number = _mapped(file), 0

        def position(address: int, size: int) -> int:
            at = address - buffer.address
            # Memory outside of the file is where pyarrow unpacked a buffer.
            if not 0 <= at <= at + size <= buffer.size:
                raise _compressed(buffer)
            return int(at)

        _refuse_compressed(buffer)
        for batch in _batches(_reader(buffer)):
            if self.image not in batch.schema.names:
                has = ", ".join(batch.schema.names)
                raise ValueError(f"it has no column {self.image!r}; it has {has}; name one by image=")
            starts, lengths, paths = bytes_of(batch.column(self.image), position)
            pairs = zip(starts.tolist(), lengths.tolist(), strict=True)
            where = [Where(at, length) if length >= 0 else None for at, length in pairs]
            yield from self.part(batch, None if paths is None else paths.to_pylist(), where, number)
            number += len(where)


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
        transform: Transforms = None,
        *,
        image: str = Usual("image"),
        label: str | None = Usual("label"),
        **options: Unpack[TableOptions],
    ):
        rows = partial(ArrowFiles, image=image, label=label)
        super().__init__(rows, self.files(paths, options), transform, options, image, label, taken=(image, label))
