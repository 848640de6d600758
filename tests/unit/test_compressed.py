"""Compressed files whose samples cannot be read one by one: each error names what unpacks them, and that works."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import re
import tarfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from command_line import error
from format_cases import table, write_tar, write_tfrecord
from tfrecords import example, tfrecord

from gpupipe import datasets
from gpupipe.errors import DatasetError
from gpupipe.formats.registry import format_of
from gpupipe.sources import parquet_pages

pa = pytest.importorskip("pyarrow")
pytest.importorskip("pyarrow.feather")
import pyarrow.parquet as pq  # noqa: E402

CODECS: dict[str, tuple[Callable[[bytes], bytes], str]] = {
    "gzip": (gzip.compress, "unpack it once with gunzip"),
    "bzip2": (bz2.compress, "unpack it once with bunzip2"),
    "xz": (lzma.compress, "unpack it once with unxz"),
    "zstd": (lambda data: bytes(pa.Codec("zstd").compress(data, asbytes=True)), "unpack it once with unzstd"),
    "zlib": (zlib.compress, "write it again without compression"),
}


@pytest.fixture(scope="module")
def images(images: list[bytes]) -> list[bytes]:
    return images[:7]


@pytest.mark.parametrize("codec", CODECS)
def test_a_whole_file(codec: str, images: list[bytes], tmp_path: Path) -> None:
    pack, advice = CODECS[codec]
    says = f"cannot be used: it is compressed with {codec}, so its samples cannot be read one by one; {advice}"
    for kind, write in ((datasets.WebDataset, write_tar), (datasets.TFRecord, write_tfrecord)):
        folder = tmp_path / kind.__name__
        folder.mkdir()
        given = write(images, folder)
        for path in folder.iterdir():
            path.write_bytes(pack(path.read_bytes()))
        with pytest.raises(DatasetError, match=re.escape(says) + "$"):
            kind(given)  # type: ignore[operator]


def test_names_of_compressed_files_show_their_format(images: list[bytes], tmp_path: Path) -> None:
    for name in ("x.tar.gz", "x.TGZ", "s3://bucket/x.tar.zst", "x.tar"):
        assert format_of(name) is datasets.WebDataset
    write_tar(images, tmp_path)
    for path in [*tmp_path.iterdir()]:
        (tmp_path / f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
    assert "unpack it once with gunzip" in error("pack", tmp_path, tmp_path.parent / "packed")
    assert "unpack it once with gunzip" in error("index", tmp_path / "000.tar.gz")


def test_what_only_begins_like_a_compressed_file_is_read(images: list[bytes], tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as out:
        member = tarfile.TarInfo("BZh91AY&SY.jpg")
        member.size = len(images[0])
        out.addfile(member, io.BytesIO(images[0]))
    assert datasets.WebDataset(tmp_path / "a.tar").fetch(0) == (images[0], None)
    empty = len(example({"image": images[0], "text": b"x" * 30_000}))
    record = example({"image": images[0], "text": b"x" * (0x8B1F - empty + 30_000)})
    assert len(record) == 0x8B1F
    (tmp_path / "a.tfrecord").write_bytes(tfrecord(record))
    assert datasets.TFRecord(tmp_path / "a.tfrecord").fetch(0) == (images[0], None)


def obeyed(kind: Any, old: Path, images: list[bytes]) -> None:
    """Run the line of pyarrow that a refusal names; the samples are those that were written."""
    with pytest.raises(DatasetError) as caught:
        kind(old)
    line = str(caught.value).partition("; write it again: ")[2]
    new = old.with_name(f"new{old.suffix}")
    eval(line, {"pyarrow": pa, "OLD": str(old), "NEW": str(new)})
    dataset = kind(new)
    assert [dataset.fetch(i) for i in range(len(dataset))] == [(image, i) for i, image in enumerate(images)]


def test_lengths_of_parquet_that_stand_elsewhere(images: list[bytes], tmp_path: Path) -> None:
    options = {"use_dictionary": False, "column_encoding": {"image": "DELTA_LENGTH_BYTE_ARRAY"}}
    pq.write_table(table(images, struct_of=False), tmp_path / "a.parquet", row_group_size=5, **options)
    obeyed(datasets.Parquet, tmp_path / "a.parquet", images)


def test_large_pages_of_parquet(images: list[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet_pages, "_LARGEST", 1 << 10)
    pq.write_table(table(images), tmp_path / "a.parquet", use_dictionary=False)
    obeyed(datasets.Parquet, tmp_path / "a.parquet", images)


def test_compressed_pages_are_not_packed_in_random_order(images: list[bytes], tmp_path: Path) -> None:
    pq.write_table(table(images), tmp_path / "a.parquet", use_dictionary=False)
    assert "pack it without --shuffle first" in error("pack", tmp_path / "a.parquet", tmp_path / "out", "--shuffle")
