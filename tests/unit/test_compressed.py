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

import pytest
from command_line import error
from format_cases import write_tar, write_tfrecord
from tfrecords import example, tfrecord

from gpupipe import datasets
from gpupipe.errors import DatasetError
from gpupipe.formats.registry import format_of

pa = pytest.importorskip("pyarrow")

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
