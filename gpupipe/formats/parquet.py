"""Parquet files with a column of encoded images, plain or in the struct ``{bytes, path}`` that Hugging Face writes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import IO, Any, Unpack

from ..sources.extras import need
from ..sources.parquet_pages import WRITE_AGAIN, ColumnChunk, places
from ..sources.shards import Row, Shards
from ..transforms.compose import Transforms
from .base import PathsLike, Sharded, ShardOptions, Usual
from .tables import checked_labels, class_names, further_of


@dataclass(frozen=True, eq=False)
class ParquetFiles(Shards):
    """Rows of Parquet files.

    Args:
        image: the column of images, plain or in the struct ``{bytes, path}``.
        label: the column of class numbers or names.
    """

    image: str
    label: str | None

    owner = "Parquet"

    def names(self, file: IO[bytes]) -> Iterable[str]:
        names: list[str] = self._open(file).schema_arrow.names
        return names

    def classes(self, file: IO[bytes]) -> tuple[str, ...]:
        return class_names(self._open(file).schema_arrow.metadata, self.label)

    def _open(self, file: IO[bytes]) -> Any:
        parquet = need("pyarrow.parquet", "parquet", "the columns of Parquet files are found with pyarrow")
        try:
            return parquet.ParquetFile(file)
        except (OSError, ValueError) as e:
            raise ValueError(f"it is not a complete Parquet file: {e}") from None

    def rows(self, file: IO[bytes], path: bytes) -> Iterator[Row]:
        table = self._open(file)
        schema = table.metadata.schema
        columns = {schema.column(i).path: i for i in range(len(schema))}
        image = next((columns[n] for n in (f"{self.image}.bytes", self.image) if n in columns), None)
        if image is None:
            raise ValueError(f"it has no column {self.image!r}; it has {', '.join(columns)}; name one by image=")
        about = schema.column(image)
        if about.physical_type != "BYTE_ARRAY" or about.max_repetition_level:
            raise ValueError(f"the column {about.path!r} has no bytes; name another one by image=")
        name = f"{self.image}.path"
        extra = [n for n in (self.label, name) if n is not None and n in columns] + [*self.columns]
        for n in self.columns:
            # The column itself, or a struct with this field. The dots keep "a" from matching "ab".
            if not any(f"{path}.".startswith(f"{n}.") for path in columns):
                raise ValueError(f"it has no column {n!r}; it has {', '.join(columns)}; correct columns=")
        number = 0
        for group in range(table.metadata.num_row_groups):
            chunk = table.metadata.row_group(group).column(image)
            if chunk.num_values != table.metadata.row_group(group).num_rows:
                raise ValueError(f"its group {group} has {chunk.num_values} images, but not as many rows")
            if chunk.compression != "UNCOMPRESSED":
                raise ValueError(self._compressed(chunk.compression))
            # A dictionary comes before the data; an offset of 0 means that there is none.
            start = min(n for n in (chunk.data_page_offset, chunk.dictionary_page_offset or None) if n is not None)
            column = ColumnChunk(start, chunk.total_compressed_size, chunk.num_values, about.max_definition_level)
            try:
                read = table.read_row_group(group, columns=extra) if extra else None
            except (OSError, ValueError) as e:
                raise ValueError(f"it is damaged: {e}") from None
            names = None
            if read is not None and name in extra:
                names = [value and value.get("path") for value in read.column(self.image).to_pylist()]
            labels, values = None, list[tuple[Any, ...]]()
            if read is not None:
                labels = checked_labels(read.column(self.label)) if self.label in read.schema.names else None
                values = further_of(read, self.columns)
            for i, place in enumerate(places(file, column)):
                row = ((names[i] if names is not None else None) or str(number + i)).encode()
                if place is None:
                    yield Row(row, 0, 0, problem="it has no bytes, and gpupipe does not follow its path")
                else:
                    label, further = None if labels is None else labels[i], values[i] if values else ()
                    yield Row(row, place.offset, place.length, label, values=further)
            number += chunk.num_values

    def _compressed(self, codec: str) -> str:
        names = f"image={self.image!r}"
        if self.label is not None and not isinstance(self.label, Usual):
            names += f", label={self.label!r}"
        return (
            f"its pages are compressed with {codec}, so no image can be read alone; use gpupipe.datasets.HuggingFace("
            f"datasets.load_dataset('parquet', data_files=OLD, split='train'), {names}), or {WRITE_AGAIN}"
        )


class Parquet(Sharded):
    """Images in a column of Parquet files: of bytes, or of the struct ``{bytes, path}`` that Hugging Face writes.
    ``pyarrow``, which locates the columns while the index is built, comes with ``gpupipe-loader[parquet]``.

    The images are stored without compression, as new versions of ``datasets`` write them.

    Not supported: compressed columns of images, which pyarrow and pandas write by default, and delta encodings.

    Args:
        image: The column of images.
        label: The column of class numbers or class names. Hugging Face's ``ClassLabel`` provides ``classes``. ``None``:
            no labels. The default may be missing; a name that you pass must exist.
        columns: Further columns of numbers, texts, or lists of equally many numbers; ``"meta.weight"`` for a field of a
            struct. A sample without a value is a bad sample.

    Raises:
        DatasetError: A file is missing, of another format, or cut, or a column cannot be used.
        MissingDependency: ``pyarrow`` is not installed.

    >>> Parquet("data/train-*.parquet")  # doctest: +SKIP
    Parquet(1,281,167 samples in 294 files below '/data/')
    """

    suffixes = (".parquet",)

    def __init__(
        self,
        paths: PathsLike,
        transform: Transforms = None,
        *,
        image: str = Usual("image"),
        label: str | None = Usual("label"),
        **options: Unpack[ShardOptions],
    ):
        rows = partial(ParquetFiles, image=image, label=label)
        super().__init__(rows, self.files(paths, options), transform, options, image, label, taken=(image, label))
