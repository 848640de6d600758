"""Shards as they are written: one class for each format, none of which the readers of this package share."""

from __future__ import annotations

import io
import json
import tarfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import IO, Any, NamedTuple

from ..codecs.tfrecord import example, framed
from ..datasets.images import EncodedImages
from ..formats.parquet import Parquet
from ..formats.tfrecord import TFRecord
from ..formats.webdataset import WebDataset
from ..sources.extras import need
from .images import Raw

__all__ = ["FORMATS", "Format", "Record", "ShardWriter"]

_EXTENSIONS = {
    "JPEG": "jpg", "MPO": "jpg", "PNG": "png", "WEBP": "webp", "PPM": "ppm", "BMP": "bmp", "TIFF": "tif",
}  # fmt: skip
"""By Pillow's word: those that :class:`WebDataset` takes for images."""


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


class ShardWriter(ABC):
    """Writes one shard into an open file.

    Args:
        labelled: whether samples have labels.
        classes: their names by number; empty if there are none.
    """

    def __init__(self, file: IO[bytes], labelled: bool, classes: Sequence[str]):
        self._file = file
        self._labelled = labelled
        self._classes = classes

    def refuses(self, format: str) -> str:
        """Why images of a format cannot be written; empty if they can."""
        return ""

    @abstractmethod
    def add(self, record: Record) -> None: ...

    @abstractmethod
    def close(self) -> None:
        """Write what is left; the file stays open."""


class TarWriter(ShardWriter):
    """``000000017.jpg`` and ``000000017.cls``, as the webdataset package has them. Nothing in a tar file depends on who
    writes it, and when."""

    def __init__(self, file: IO[bytes], labelled: bool, classes: Sequence[str]):
        super().__init__(file, labelled, classes)
        self._tar = tarfile.open(fileobj=file, mode="w", format=tarfile.USTAR_FORMAT)  # noqa: SIM115

    def refuses(self, format: str) -> str:
        if format in _EXTENSIONS:
            return ""
        return f"readers of tar files know no extension for {format}; --format parquet takes it"

    def add(self, record: Record) -> None:
        self._member(f"{record.number:09d}.{_EXTENSIONS[record.format]}", record.data)
        if record.label is not None:
            self._member(f"{record.number:09d}.cls", b"%d" % record.label)

    def _member(self, name: str, data: bytes) -> None:
        member = tarfile.TarInfo(name)
        member.size = len(data)
        self._tar.addfile(member, io.BytesIO(data))

    def close(self) -> None:
        self._tar.close()


class TFRecordWriter(ShardWriter):
    """``tf.train.Example`` messages with the features of ImageNet's usual files."""

    def __init__(self, file: IO[bytes], labelled: bool, classes: Sequence[str]):
        super().__init__(file, labelled, classes)
        self._checksum = need("google_crc32c", "tfrecord", "records have checksums").value

    def add(self, record: Record) -> None:
        features: dict[str, bytes | int | float] = {
            "image/encoded": record.data,
            "image/format": record.format.lower().encode(),
            "image/filename": _encoded(record.name),
        }
        if record.label is not None:
            features["image/class/label"] = record.label
            if self._classes:
                features["image/class/text"] = _encoded(self._classes[record.label])
        self._file.write(framed(example(features), self._checksum))

    def close(self) -> None:
        pass


class ParquetWriter(ShardWriter):
    """Columns ``image``, a struct ``{bytes, path}``, and ``label``, with the types of Hugging Face's ``Image`` and
    ``ClassLabel`` beside them. Not compressed, because images do not shrink, and so each is a range of bytes."""

    ROWS, BYTES = 100, 32 << 20
    """Maximum number of rows and bytes in a row group. The number of rows is that of Hugging Face for images."""

    def __init__(self, file: IO[bytes], labelled: bool, classes: Sequence[str]):
        super().__init__(file, labelled, classes)
        pa = need("pyarrow", "parquet", "Parquet files are written with pyarrow")
        columns = [("image", pa.struct([("bytes", pa.binary()), ("path", pa.string())]))]
        columns += [("label", pa.int64())] if labelled else []
        self._schema = pa.schema(columns, metadata=self._metadata())
        self._table = pa.Table.from_pylist
        self._writer = need("pyarrow.parquet", "parquet", "Parquet files are written with pyarrow").ParquetWriter(
            file, self._schema, compression="none", use_dictionary=False, write_statistics=["label"]
        )
        self._rows: list[dict[str, Any]] = []
        self._bytes = 0

    def _metadata(self) -> dict[str, str]:
        features: dict[str, Any] = {"image": {"_type": "Image"}}
        if self._labelled and self._classes:
            features["label"] = {"names": list(self._classes), "_type": "ClassLabel"}
        elif self._labelled:
            features["label"] = {"dtype": "int64", "_type": "Value"}
        return {"huggingface": json.dumps({"info": {"features": features}})}

    def add(self, record: Record) -> None:
        image = {"bytes": record.data, "path": _encoded(record.name).decode()}
        self._rows.append({"image": image, "label": record.label})
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


def _encoded(text: str) -> bytes:
    """UTF-8, also of a file name that is none."""
    return text.encode(errors="surrogateescape").decode(errors="replace").encode()


@dataclass(frozen=True)
class Format:
    """A format of shards."""

    name: str
    """Name used in the format's own documentation."""
    writer: type[ShardWriter]
    pattern: str
    """Pattern of file names, with ``split``, ``number`` and ``count``."""
    raw: Raw
    """Format for plain pixels, which the usual readers decode."""
    overhead: int
    """Bytes that a sample takes beside its image, about."""
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
        Format("webdataset", TarWriter, "{split}-{number:06d}.tar", "PPM", 1800, True, WebDataset),
        Format("tfrecord", TFRecordWriter, "{split}-{number:05d}-of-{count:05d}.tfrecord", "BMP", 200, True, TFRecord),
        Format("parquet", ParquetWriter, "{split}-{number:05d}-of-{count:05d}.parquet", "PPM", 50, False, Parquet),
    )
}
