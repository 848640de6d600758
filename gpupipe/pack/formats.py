"""Shards as they are written: one class for each format, none of which the readers of this package share."""

from __future__ import annotations

import io
import json
import re
import tarfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import IO, Any, ClassVar, NamedTuple

import numpy as np

from ..datasets.images import EncodedImages
from ..formats.parquet import Parquet
from ..formats.webdataset import WebDataset
from ..sources.extras import need
from .columns import KEY, Column

_EXTENSIONS = {
    "JPEG": "jpg", "MPO": "jpg", "PNG": "png", "WEBP": "webp", "PPM": "ppm", "BMP": "bmp", "TIFF": "tif",
}  # fmt: skip
"""Extensions that :class:`WebDataset` reads as images, by Pillow's name of the format."""


class Record(NamedTuple):
    """One sample."""

    number: int
    """In the dataset that it comes from."""
    name: str
    """There: below the folder of the dataset."""
    data: bytes
    format: str
    """In Pillow's words."""
    label: int | None
    key: str
    values: Sequence[Any] = ()
    """Values of the columns."""


class ShardWriter(ABC):
    """Writes one shard into an open file.

    Args:
        labeled: whether samples have labels.
        classes: their names by number; empty if there are none.
        columns: the columns that samples have values of.
        keys: whether keys are stored in a column of their own.
    """

    taken: ClassVar[frozenset[str]] = frozenset()
    """Names that columns cannot have."""
    unique_keys: ClassVar[bool] = False
    """Whether keys must differ."""

    def __init__(
        self,
        file: IO[bytes],
        labeled: bool,
        classes: Sequence[str],
        columns: Sequence[Column] = (),
        keys: bool = False,
    ):
        self._file = file
        self._labeled = labeled
        self._classes = classes
        self._columns = columns
        self._keys = keys

    @classmethod
    def arrange(cls, columns: Sequence[Column], archive: bool) -> tuple[list[Column], list[tuple[str, str]]]:
        """Return the columns with their names in shards, and (name, reason) of those that are left out.

        Args:
            archive: whether names are extensions of members.
        """
        stored, left_out = list[Column](), list[tuple[str, str]]()
        names = {*cls.taken}
        for column in cls._named(columns, archive):
            # Readers of tar files compare in lower case.
            if column.stored.lower() in names:
                left_out.append((column.name, f"the shards have {column.stored!r} already"))
            else:
                names.add(column.stored.lower())
                stored.append(column)
        return stored, left_out

    @classmethod
    def _named(cls, columns: Sequence[Column], archive: bool) -> Iterator[Column]:
        for column in columns:
            ragged = column.kind == "arrays"
            kind, note = ("json", "as JSON texts") if ragged or column.kind == "json" else (column.kind, "")
            yield replace(column, kind=kind, stored=column.name, note=note)

    @staticmethod
    def overhead(columns: Sequence[Column]) -> int:
        """Return the approximate number of bytes that columns take in a sample in addition to their values."""
        return 8 * len(columns)

    def refuses(self, format: str) -> str:
        """Why images of a format cannot be written; empty if they can."""
        return ""

    @staticmethod
    def key_of(key: str) -> str:
        """Return the form of a key that shards can have."""
        return key

    @abstractmethod
    def add(self, record: Record) -> None: ...

    @abstractmethod
    def close(self) -> None:
        """Write what is left; the file stays open."""


class TarWriter(ShardWriter):
    """``000000017.jpg`` and ``000000017.cls``, as the webdataset package has them. Nothing in a tar file depends on who
    writes it, and when."""

    taken = frozenset({"cls", *_EXTENSIONS.values(), "jpeg", "pgm", "tiff", "json"})
    unique_keys = True

    @staticmethod
    def key_of(key: str) -> str:
        return member_key(key)

    def __init__(self, file: IO[bytes], *args: Any):
        super().__init__(file, *args)
        self._tar = tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT)  # noqa: SIM115

    @classmethod
    def arrange(cls, columns: Sequence[Column], archive: bool) -> tuple[list[Column], list[tuple[str, str]]]:
        # A text that is a whole member json of an archive is copied, and leaves no place for further fields.
        whole = [replace(it, stored="json") for it in columns if archive and it.name == "json" and it.kind == "str"]
        stored, left_out = super().arrange([it for it in columns if not whole or it.name != "json"], archive)
        fields = [it.name for it in stored if it.stored.startswith("json:")]
        if whole and fields:  # --columns names fields of the member as well
            left_out += [(name, "the member 'json' has it") for name in fields]
            stored = [it for it in stored if it.name not in fields]
        return whole + stored, left_out

    @classmethod
    def _named(cls, columns: Sequence[Column], archive: bool) -> Iterator[Column]:
        # A single text becomes the member txt; several become fields of json.
        caption = [it.name for it in columns if it.kind == "str" and not it.name.startswith("json:")]
        for column in columns:
            name = column.name
            if column.kind in ("array", "arrays"):
                stem = "" if name.lower() == "npy" else name.removesuffix(".npy")
                yield replace(column, stored=f"{_extension(stem)}.npy" if stem else "npy")
            elif archive and column.kind == "str" and ":" not in name:
                yield replace(column, stored=name.lower())
            elif column.kind == "str" and caption == [name]:
                yield replace(column, stored="txt")
            else:
                note = "as JSON texts" if column.kind == "json" else ""
                yield replace(column, stored=f"json:{name.removeprefix('json:')}", note=note)

    @staticmethod
    def overhead(columns: Sequence[Column]) -> int:
        return 768 * len({column.stored.partition(":")[0] for column in columns})  # a header, and half a block

    def refuses(self, format: str) -> str:
        if format in _EXTENSIONS:
            return ""
        return f"readers of tar files know no extension for {format}; --format parquet takes it"

    def add(self, record: Record) -> None:
        self._member(f"{record.key}.{_EXTENSIONS[record.format]}", record.data)
        if record.label is not None:
            self._member(f"{record.key}.cls", b"%d" % record.label)
        fields = {}
        for column, value in zip(self._columns, record.values, strict=True):
            if value is None:
                continue
            if column.stored.startswith("json:"):
                fields[column.stored.removeprefix("json:")] = value
            elif isinstance(value, np.ndarray):
                array = io.BytesIO()
                np.save(array, value, allow_pickle=False)
                self._member(f"{record.key}.{column.stored}", array.getvalue())
            else:
                self._member(f"{record.key}.{column.stored}", value.encode())
        if fields:
            self._member(f"{record.key}.json", json.dumps(fields, ensure_ascii=False).encode())

    def _member(self, name: str, data: bytes) -> None:
        # TarInfo's own values are owner 0 and time 0.
        member = tarfile.TarInfo(name)
        member.size = len(data)
        self._tar.addfile(member, io.BytesIO(data))

    def close(self) -> None:
        self._tar.close()


class ParquetWriter(ShardWriter):
    """Columns ``image``, a struct ``{bytes, path}``, and ``label``, with the types of Hugging Face's ``Image`` and
    ``ClassLabel`` beside them. Not compressed, because images do not shrink, and so each is a range of bytes."""

    ROWS, BYTES = 100, 32 << 20
    """Maximum number of rows and bytes in a row group. The number of rows is that of Hugging Face for images."""

    taken = frozenset({"image", "label"})

    def __init__(self, file: IO[bytes], *args: Any):
        super().__init__(file, *args)
        pa = need("pyarrow", "parquet", "Parquet files are written with pyarrow")
        columns = [("image", pa.struct([("bytes", pa.binary()), ("path", pa.string())]))]
        columns += [("label", pa.int64())] if self._labeled else []
        columns += [(KEY, pa.string())] if self._keys else []
        columns += [(column.stored, _arrow_type(pa, column)) for column in self._columns]
        self._schema = pa.schema(columns, metadata=self._metadata())
        self._table = pa.Table.from_pylist
        # No statistics of images: their minimum and maximum would be two of them.
        self._writer = need("pyarrow.parquet", "parquet", "Parquet files are written with pyarrow").ParquetWriter(
            file, self._schema, compression="none", use_dictionary=False, write_statistics=["label"]
        )
        self._rows: list[dict[str, Any]] = []
        self._bytes = 0

    @classmethod
    def _named(cls, columns: Sequence[Column], archive: bool) -> Iterator[Column]:
        for column in super()._named(columns, archive):
            half = column.kind == "array" and column.dtype == "<f2"
            yield replace(column, dtype="<f4", note="as float32") if half else column

    def _metadata(self) -> dict[str, str]:
        features: dict[str, Any] = {"image": {"_type": "Image"}}
        if self._labeled and self._classes:
            features["label"] = {"names": list(self._classes), "_type": "ClassLabel"}
        elif self._labeled:
            features["label"] = {"dtype": "int64", "_type": "Value"}
        if self._keys:
            features[KEY] = {"dtype": "string", "_type": "Value"}
        features |= {column.stored: _feature(column) for column in self._columns}
        return {"huggingface": json.dumps({"info": {"features": features}})}

    def add(self, record: Record) -> None:
        image = {"bytes": record.data, "path": _encoded(record.name).decode()}
        row = {"image": image, "label": record.label, KEY: record.key}
        for column, value in zip(self._columns, record.values, strict=True):
            row[column.stored] = value.tolist() if isinstance(value, np.ndarray) else value
        self._rows.append(row)
        self._bytes += len(record.data)
        if len(self._rows) == self.ROWS or self._bytes >= self.BYTES:
            self._flush()

    def _flush(self) -> None:
        self._writer.write_table(self._table(self._rows, schema=self._schema), row_group_size=self.ROWS)
        self._rows, self._bytes = [], 0

    def close(self) -> None:
        if self._rows:
            self._flush()
        self._writer.close()


_TYPES = {"bool": "bool", "int": "int64", "float": "float64"}


def _arrow_type(pa: Any, column: Column) -> Any:
    if column.kind != "array":
        return pa.type_for_alias(_TYPES.get(column.kind, "string"))
    kind = pa.from_numpy_dtype(np.dtype(column.dtype))
    # From the inside to the outside.
    for size in reversed(column.shape):
        kind = pa.list_(kind, size)
    return kind


def _feature(column: Column) -> dict[str, Any]:
    """Describe a column as Hugging Face's ``Features`` do."""
    if column.kind != "array":
        return {"dtype": _TYPES.get(column.kind, "string"), "_type": "Value"}
    feature: dict[str, Any] = {"dtype": np.dtype(column.dtype).name, "_type": "Value"}
    for size in reversed(column.shape):
        feature = {"feature": feature, "length": size, "_type": "Sequence"}
    return feature


def _extension(name: str) -> str:
    """Return a name as an extension of a member: in lower case, without slashes and control characters."""
    return re.sub(r"[/\x00-\x1f\x7f]", "_", name.lower())


def member_key(key: str) -> str:
    """Return a key that names the members of a sample. Readers take all behind the first dot of the last part for the
    extension, and skip names such as ``__meta__/``.

    >>> member_key("a.b/c.d"), member_key("../x")
    ('a.b/c_d', '_/x')
    """
    folder, slash, name = re.sub(r"[\x00-\x1f\x7f\ud800-\udfff]", "_", key).lstrip("/").rpartition("/")
    folder = "/".join("_" if part in ("", "..") else part for part in folder.split("/")) if folder else ""
    whole = f"{folder}{slash}{name.replace('.', '_') or '_'}"
    return f"_{whole[2:]}" if re.match(r"__[^/]*__/", whole) else whole


def _encoded(text: str) -> bytes:
    """Encode in UTF-8, including file names that are not valid text."""
    return text.encode(errors="surrogateescape").decode(errors="replace").encode()


@dataclass(frozen=True)
class Format:
    """A format of shards."""

    name: str
    """Name used in the format's own documentation."""
    writer: type[ShardWriter]
    pattern: str
    """Pattern of file names, with ``split``, ``number`` and ``count``."""
    overhead: int
    """Approximate number of bytes that a sample takes in addition to its image and its columns."""
    labels_file: bool
    """Whether the class names are in a file next to the shards."""
    open: Callable[[str], EncodedImages]
    """The dataset of a folder of shards."""

    def file(self, split: str, number: int, count: int) -> str:
        """The name of a shard."""
        return self.pattern.format(split=split, number=number, count=count)


FORMATS = {
    it.name: it
    for it in (
        Format("webdataset", TarWriter, "{split}-{number:06d}.tar", 1800, True, WebDataset),
        Format("parquet", ParquetWriter, "{split}-{number:05d}-of-{count:05d}.parquet", 50, False, Parquet),
    )
}
