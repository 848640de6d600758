"""Writers of images in every format that gpupipe reads, for tests and benchmarks.

They use the packages that users write the formats with. Where that would take a package as large as TensorFlow, a few
lines here do it, and the tests check them with an independent reader. The label of an image is its position.
"""

from __future__ import annotations

import csv
import io
import json
import struct
import tarfile
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from gpupipe.codecs.tfrecord import example, framed, message
from gpupipe.formats.base import Format
from gpupipe.formats.registry import formats

__all__ = [
    "CASES",
    "MAGIC",
    "Case",
    "Images",
    "example",
    "heads",
    "image_record",
    "message",
    "record",
    "sample",
    "table",
    "tfrecord",
    "write_hdf5",
    "write_huggingface",
    "write_litdata",
    "write_manifest",
    "write_mds",
    "write_recordio",
    "write_tar",
    "write_tfrecord",
]

Images = Sequence[bytes]
SHARDS = 2


@dataclass(frozen=True)
class Case:
    """How to write images, with their positions as labels, to an empty folder, and how to open them."""

    kind: str
    """Name of the class that opens them."""
    write: Callable[[Images, Path], Any]
    """``write(encoded images, folder)`` returns the argument of the class."""
    suffix: str
    """Suffix of the files with images."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Further arguments of the class."""

    @property
    def format(self) -> type[Format]:
        """The class that opens them."""
        return formats()[self.kind.lower()]

    def open(self, given: Any, transform: Any = None, **options: Any) -> Format:
        """Open the dataset of what :attr:`write` returned."""
        return self.format.from_path(given, transform=transform, **self.options, **options)


def shares(images: Images) -> list[range]:
    n = len(images)
    return [range(n * k // SHARDS, n * (k + 1) // SHARDS) for k in range(SHARDS)]


# ---- tar, zip


def write_tar(images: Images, folder: Path) -> str:
    for k, share in enumerate(shares(images)):
        with tarfile.open(folder / f"{k:03d}.tar", "w") as tar:
            for i in share:
                for extension, data in (("jpg", images[i]), ("cls", b"%d" % i)):
                    member = tarfile.TarInfo(f"{i:06d}.{extension}")
                    member.size = len(data)
                    tar.addfile(member, io.BytesIO(data))
    return str(folder / f"{{000..{SHARDS - 1:03d}}}.tar")


def zip_writer(method: int) -> Callable[[Images, Path], Path]:
    def write(images: Images, folder: Path) -> Path:
        with zipfile.ZipFile(folder / "images.zip", "w", method) as archive:
            for i in reversed(range(len(images))):  # the archive's order differs from the dataset's
                archive.writestr(f"train/class{i:03d}/photo.jpg", images[i])
        return folder / "images.zip"

    return write


# ---- TFRecord


def tfrecord(*records: bytes) -> bytes:
    import google_crc32c

    return b"".join(framed(record, google_crc32c.value) for record in records)


def imagenet_example(image: bytes, label: int) -> bytes:
    return example(
        {
            "image/height": 100,
            "image/class/text": b"tench",
            "image/object/bbox/xmin": 0.25,
            "image/class/label": label,
            "image/encoded": image,
            "image/filename": b"x.JPEG",
        }
    )


def write_tfrecord(images: Images, folder: Path) -> str:
    for k, share in enumerate(shares(images)):
        content = tfrecord(*(imagenet_example(images[i], i) for i in share))
        (folder / f"train-{k:05d}-of-{SHARDS:05d}").write_bytes(content)
    return str(folder / f"train-{{00000..{SHARDS - 1:05d}}}-of-{SHARDS:05d}")


# ---- RecordIO

MAGIC = struct.pack("<I", 0xCED7230A)


def record(content: bytes) -> bytes:
    """Return one record as dmlc-core writes it: split wherever the magic number occurs at a multiple of four."""
    parts, start = [], 0
    for at in range(0, len(content) - 3, 4):
        if content[at : at + 4] == MAGIC and at >= start:
            parts.append(content[start:at])
            start = at + 4
    parts.append(content[start:])
    kinds = [0] if len(parts) == 1 else [1, *[2] * (len(parts) - 2), 3]
    out = b""
    for kind, part in zip(kinds, parts, strict=True):
        out += MAGIC + struct.pack("<I", kind << 29 | len(part)) + part + bytes(-len(part) % 4)
    return out


def image_record(image: bytes, label: float | Sequence[float], number: int = 0) -> bytes:
    if isinstance(label, (int, float)):
        return record(struct.pack("<IfQQ", 0, label, number, 0) + image)
    return record(struct.pack(f"<IfQQ{len(label)}f", len(label), 0, number, 0, *label) + image)


def write_recordio(images: Images, folder: Path) -> Path:
    at, lines = 0, []
    with open(folder / "train.rec", "wb") as file:
        for i, image in enumerate(images):
            lines.append(f"{i}\t{at}\n")
            at += file.write(image_record(image, i, i))
    (folder / "train.idx").write_text("".join(lines))
    return folder / "train.rec"


# ---- HDF5, LMDB


def write_hdf5(images: Images, folder: Path, **options: Any) -> Path:
    import h5py

    with h5py.File(folder / "images.h5", "w") as file:
        data = file.create_dataset("images", (len(images),), dtype=h5py.vlen_dtype(np.uint8), **options)
        for i, image in enumerate(images):
            data[i] = np.frombuffer(image, np.uint8)
        file["labels"] = np.arange(len(images))
    return folder / "images.h5"


def write_hdf5_groups(images: Images, folder: Path) -> Path:
    import h5py

    with h5py.File(folder / "images.h5", "w") as file:
        for i, image in enumerate(images):
            file[f"images/class{i:03d}/photo.jpg"] = np.frombuffer(image, np.uint8)
    return folder / "images.h5"


def write_lmdb(images: Images, folder: Path) -> Path:
    import lmdb

    with (
        lmdb.open(str(folder / "db"), map_size=max(1 << 26, 4 * sum(map(len, images)))) as database,
        database.begin(write=True) as transaction,
    ):
        transaction.put(b"num-samples", b"%d" % len(images))
        for i, image in enumerate(images):
            transaction.put(b"image-%09d" % i, image)
            transaction.put(b"label-%09d" % i, b"%d" % i)
    return folder / "db"


# ---- Parquet, Arrow, Hugging Face


def table(images: Images, *, struct_of: bool = True) -> Any:
    import pyarrow as pa

    column = [{"bytes": image, "path": f"{i}.jpg"} for i, image in enumerate(images)] if struct_of else list(images)
    return pa.table({"image": column, "label": list(range(len(images)))})


def parquet_writer(**options: Any) -> Callable[[Images, Path], Path]:
    def write(images: Images, folder: Path) -> Path:
        import pyarrow.parquet as pq

        whole = table(images)
        for k, share in enumerate(shares(images)):
            part = whole.slice(share.start, len(share))
            pq.write_table(part, folder / f"train-{k:05d}.parquet", row_group_size=5, **options)
        return folder

    return write


def arrow_writer(stream: bool) -> Callable[[Images, Path], Path]:
    def write(images: Images, folder: Path) -> Path:
        import pyarrow as pa

        whole = table(images)
        new = pa.ipc.new_stream if stream else pa.ipc.new_file
        for k, share in enumerate(shares(images)):
            with new(str(folder / f"{k}.arrow"), whole.schema) as writer:
                writer.write_table(whole.slice(share.start, len(share)), max_chunksize=4)
        return folder

    return write


def write_huggingface(images: Images, folder: Path) -> Path:
    import datasets

    features = datasets.Features({"image": datasets.Image(), "label": datasets.Value("int64")})
    rows = {"image": [{"bytes": image, "path": None} for image in images], "label": list(range(len(images)))}
    datasets.Dataset.from_dict(rows, features=features).save_to_disk(folder / "hf")
    return folder / "hf"


# ---- MDS, LitData


def heads(samples: Sequence[bytes], before: bytes = b"") -> bytes:
    """Return the number of samples, the offset of each, ``before``, and the samples."""
    at = 4 * (len(samples) + 2) + len(before)
    positions = np.cumsum([at, *map(len, samples)]).astype("<u4")
    return struct.pack("<I", len(samples)) + positions.tobytes() + before + b"".join(samples)


def sample(*fields: bytes, sizes: Sequence[int]) -> bytes:
    return np.array(sizes, "<u4").tobytes() + b"".join(fields)


def write_mds(images: Images, folder: Path) -> Path:
    about = {
        "column_encodings": ["jpeg", "int", "str"],
        "column_names": ["image", "label", "name"],
        "column_sizes": [None, 8, None],
        "compression": None,
        "format": "mds",
        "hashes": [],
        "size_limit": 1 << 26,
        "version": 2,
    }
    listed = []
    for k, share in enumerate(shares(images)):
        samples = []
        for i in share:
            name = f"photo {i}".encode()
            samples.append(sample(images[i], struct.pack("<q", i), name, sizes=(len(images[i]), len(name))))
        content = heads(samples, json.dumps(about, sort_keys=True).encode())
        (folder / f"shard.{k:05d}.mds").write_bytes(content)
        raw = {"basename": f"shard.{k:05d}.mds", "bytes": len(content), "hashes": {}}
        listed.append({**about, "raw_data": raw, "samples": len(samples), "zip_data": None})
    (folder / "index.json").write_text(json.dumps({"shards": listed, "version": 2}))
    return folder


def write_litdata(images: Images, folder: Path, *, arrow: bool = False) -> Path:
    """Write LitData chunks; with ``arrow``, as new versions store dictionaries of bytes and numbers."""
    leaf: dict[str, Any] = {"type": None, "context": None, "children_spec": []}
    spec = [1, {"type": "builtins.dict", "context": '["image", "label"]', "children_spec": [leaf, leaf]}]
    chunks = []
    for k, share in enumerate(shares(images)):
        samples = [sample(images[i], struct.pack("<q", i), sizes=(len(images[i]), 8)) for i in share]
        content = _arrow_chunk([{"image": images[i], "label": i} for i in share]) if arrow else heads(samples)
        (folder / f"chunk-0-{k}.bin").write_bytes(content)
        name = f"chunk-0-{k}.bin"
        chunks.append({"chunk_bytes": len(content), "chunk_size": len(samples), "dim": None, "filename": name})
    config = {"compression": None, "encryption": None, "data_format": ["jpeg", "int"], "data_spec": json.dumps(spec)}
    (folder / "index.json").write_text(json.dumps({"chunks": chunks, "config": config}))
    return folder


def _arrow_chunk(samples: Sequence[dict[str, Any]]) -> bytes:
    import pyarrow as pa

    sink, rows = pa.BufferOutputStream(), pa.Table.from_pylist(list(samples))
    with pa.ipc.new_file(sink, rows.schema) as writer:
        writer.write_table(rows, max_chunksize=4)
    file: bytes = sink.getvalue().to_pybytes()
    count = len(samples)
    positions = np.full(count + 1, 4 * (count + 2), "<u4")
    return struct.pack("<I", count) + positions.tobytes() + file + struct.pack("<I", len(file)) + b"LDARW01\0"


# ---- a list


def write_manifest(images: Images, folder: Path) -> Path:
    """Write one file with all images in a row, and their offsets."""
    at = 7
    with open(folder / "all.bin", "wb") as file, open(folder / "list.csv", "w", newline="") as text:
        file.write(bytes(7))
        lines = csv.writer(text)
        lines.writerow(["path", "offset", "length", "label"])
        for i, image in enumerate(images):
            lines.writerow(["all.bin", at, len(image), i])
            at += file.write(image)
    return folder / "list.csv"


def _hdf5_compressed(images: Images, folder: Path) -> Path:
    return write_hdf5(images, folder, chunks=(4,), compression="gzip", shuffle=True)


def _litdata_arrow(images: Images, folder: Path) -> Path:
    return write_litdata(images, folder, arrow=True)


CASES = {
    "tar": Case("WebDataset", write_tar, ".tar"),
    "zip": Case("Zip", zip_writer(zipfile.ZIP_STORED), ".zip"),
    "zip-deflated": Case("Zip", zip_writer(zipfile.ZIP_DEFLATED), ".zip"),
    "tfrecord": Case("TFRecord", write_tfrecord, "-of-00002"),
    "recordio": Case("RecordIO", write_recordio, ".rec"),
    "hdf5": Case("HDF5", write_hdf5, ".h5"),
    "hdf5-chunked": Case("HDF5", _hdf5_compressed, ".h5"),
    "hdf5-groups": Case("HDF5", write_hdf5_groups, ".h5"),
    "lmdb": Case("LMDB", write_lmdb, ".mdb", {"image": "image-*", "label": "label-*"}),
    "parquet": Case("Parquet", parquet_writer(compression="none"), ".parquet"),
    "parquet-snappy": Case("Parquet", parquet_writer(compression="snappy"), ".parquet"),
    "arrow": Case("Arrow", arrow_writer(stream=False), ".arrow"),
    "arrow-stream": Case("Arrow", arrow_writer(stream=True), ".arrow"),
    "huggingface": Case("HuggingFace", write_huggingface, ".arrow"),
    "mds": Case("MDS", write_mds, ".mds"),
    "litdata": Case("LitData", write_litdata, ".bin"),
    "litdata-arrow": Case("LitData", _litdata_arrow, ".bin"),
    "manifest": Case("Manifest", write_manifest, ".bin"),
}
"""Every format, some of them in several ways."""
