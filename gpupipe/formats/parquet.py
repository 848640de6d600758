"""Parquet files with a column of encoded images, plain or in the struct ``{bytes, path}`` that Hugging Face writes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import IO, Any, ClassVar

from ..codecs.limits import MAX_BYTES, Limits
from ..sources.columns import checked_columns
from ..sources.extras import need, parse_json
from ..sources.parquet_pages import Column, places
from ..sources.remote.options import Remote
from ..sources.shards import Row, Shards
from .base import PathsLike, Sharded, Usual, files_of

__all__ = ["Parquet", "ParquetFiles", "class_names"]

_CODECS = {"UNCOMPRESSED": "", "SNAPPY": "snappy", "GZIP": "gzip", "BROTLI": "brotli", "ZSTD": "zstd", "LZ4": "lz4_raw"}


@dataclass(frozen=True, eq=False)
class ParquetFiles(Shards):
    """Args:
    image: the column of images.
    label: the column of class numbers or names.
    """

    image: str
    label: str | None

    owner: ClassVar[str] = "Parquet"

    @property
    def key(self) -> tuple[Any, ...]:
        return "parquet", *self.paths.key, self.image, self.label

    def classes(self, file: IO[bytes]) -> tuple[str, ...]:
        return class_names(self._open(file).schema_arrow.metadata, self.label)

    def names(self, file: IO[bytes]) -> Iterable[str]:
        names: list[str] = self._open(file).schema_arrow.names
        return names

    def _open(self, file: IO[bytes]) -> Any:
        parquet = need("pyarrow.parquet", "parquet", "the columns of Parquet files are found with pyarrow")
        try:
            return parquet.ParquetFile(file)
        except (OSError, ValueError) as e:
            raise ValueError(f"it is no whole Parquet file: {e}") from None

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
        missing = [n for n in self.columns if n not in table.schema_arrow.names]
        if missing:
            raise ValueError(
                f"it has no column {missing[0]!r}; it has {', '.join(table.schema_arrow.names)}; correct columns="
            )
        number = 0
        for group in range(table.metadata.num_row_groups):
            chunk = table.metadata.row_group(group).column(image)
            if chunk.compression not in _CODECS:
                raise ValueError(f"its images are compressed with {chunk.compression}; write it again without")
            start = min(n for n in (chunk.data_page_offset, chunk.dictionary_page_offset or None) if n is not None)
            column = Column(
                start,
                chunk.total_compressed_size,
                chunk.num_values,
                _CODECS[chunk.compression],
                about.max_definition_level,
            )
            labels, names, values = self._others(table, group, extra, name)
            for i, where in enumerate(places(file, column)):
                called = names[i].encode() if names is not None and names[i] else b"%d" % number
                label = None if labels is None else labels[i]
                if where is None:
                    yield Row(called, 0, 0, problem="it has no bytes; a path alone is not followed")
                elif label is not None and not isinstance(label, (int, str)):
                    yield Row(called, 0, 0, problem=f"its label is {label!r}, neither a number nor a name")
                else:
                    further = values[i] if values else ()
                    yield Row(called, where.offset, where.length, label, packed=where.packed, values=further)
                number += 1

    def _others(
        self, table: Any, group: int, columns: list[str], name: str
    ) -> tuple[list[Any] | None, list[Any] | None, list[tuple[Any, ...]]]:
        """(labels, names, further columns) of a group of rows."""
        try:
            read = table.read_row_group(group, columns=columns) if columns else None
        except (OSError, ValueError) as e:
            raise ValueError(f"it is damaged: {e}") from None
        labels = None if read is None or self.label not in columns else read.column(self.label).to_pylist()
        values = [] if read is None else list(zip(*(read.column(n).to_pylist() for n in self.columns), strict=True))
        if read is None or name not in columns:
            return labels, None, values
        return labels, [value and value.get("path") for value in read.column(self.image).to_pylist()], values


def class_names(metadata: dict[bytes, bytes] | None, label: str | None) -> tuple[str, ...]:
    """What Hugging Face wrote beside the columns: the names of the classes of a ``ClassLabel``, by number."""
    try:
        features = parse_json((metadata or {})[b"huggingface"])["info"]["features"]
        names = features[label]["names"] if features[label]["_type"] == "ClassLabel" else []
    except (KeyError, ValueError, TypeError):
        return ()
    return tuple(map(str, names)) if isinstance(names, list) else ()


class Parquet(Sharded):
    """Images in a column of Parquet files: of bytes, or the struct ``{bytes, path}`` that Hugging Face writes.
    ``pyarrow``, which finds the columns while the index is made, comes with ``gpupipe-loader[parquet]``.

    Columns that are not compressed are read image by image, as new versions of ``datasets`` write them. Of a compressed
    one a whole page is unpacked for each image; if pages are larger than 4 MiB that is refused, with what to do.

    Args:
        paths: the files; a pattern, a folder, a URL, several of these with ``::`` between them, or a list.
        transform: a gpupipe ``Compose``, or transforms for one.
        image: the column of images.
        label: the column of class numbers or class names. A ``ClassLabel`` of Hugging Face's gives ``classes``. Where
            there is no such column there are no labels.
        columns: further columns: numbers, truth values and texts that come with each sample beside image and label. A
            sample that lacks one is a bad sample.
        return_dict: samples, and so batches, are dictionaries with ``"image"``, ``"label"`` and the columns by name,
            and not tuples of these.
        exif: turn images upright by their EXIF orientation.
        max_pixels: larger images are bad samples of kind ``bomb``, and never decoded. ``None``: what Pillow allows,
            which is twice ``PIL.Image.MAX_IMAGE_PIXELS``.
        max_bytes: images that have more are bad samples of kind ``bomb``, and never read. The default of 2 GiB is more
            than so many pixels take without any compression.
        strict: JPEG files whose data libjpeg repairs with a warning, which Pillow delivers as if they were good, are
            bad samples of kind ``damaged``. All of each file is read and decoded once, when the index is built. See
            :mod:`gpupipe.codecs.damage` for what is found and what cannot be. Needs simplejpeg.
        remote: how URLs are read; see :class:`~gpupipe.datasets.Remote`.

    Raises:
        DatasetError: a file that is missing, of another format, or cut, or a column that cannot be used.
        MissingDependency: ``pyarrow`` is not installed.

    >>> Parquet("data/train-*.parquet")  # doctest: +SKIP
    Parquet(1,281,167 samples in 294 files below '/data/')
    """

    def __init__(
        self,
        paths: PathsLike,
        transform: Any = None,
        *,
        image: str = Usual("image"),
        label: str | None = Usual("label"),
        columns: Sequence[str] = (),
        return_dict: bool = False,
        exif: bool = False,
        max_pixels: int | None = None,
        max_bytes: int = MAX_BYTES,
        strict: bool = False,
        remote: Remote | None = None,
    ):
        files, storage = files_of(paths, (".parquet",), "Parquet", remote)
        further = checked_columns(columns, "Parquet", (image, label))
        source = ParquetFiles(files, image, label, storage=storage, columns=further)
        super().__init__(
            source,
            transform,
            Limits(exif, max_pixels, max_bytes, strict),
            return_dict=return_dict,
            image=image,
            label=label,
        )
