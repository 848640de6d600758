"""``gpupipe pack`` unpacks what cannot be read at random, and each refusal names a command that works."""

from __future__ import annotations

import bz2
import gc
import gzip
import io
import lzma
import os
import re
import shlex
import tarfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import error, gpupipe
from format_cases import (
    CASES,
    example,
    table,
    tfrecord as tfrecord_of,
    write_tar,
    write_tfrecord,
)
from support import write_photos

from gpupipe import DataLoader, datasets
from gpupipe.commands import pack_shards as command
from gpupipe.errors import DatasetError
from gpupipe.formats import base
from gpupipe.formats.registry import format_of, formats
from gpupipe.pack.formats import FORMATS
from gpupipe.pack.unpack import Unpacking
from gpupipe.sources import compressed, parquet_pages
from gpupipe.sources.shards import RandomAccessError

pa = pytest.importorskip("pyarrow")
import pyarrow.parquet as pq  # noqa: E402

N = 7
OPEN: dict[str, Any] = {"webdataset": datasets.WebDataset, "tfrecord": datasets.TFRecord, "parquet": datasets.Parquet}
Packer = Callable[[bytes], bytes]


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    folder = write_photos(tmp_path_factory.mktemp("numbered"), N)
    return [path.read_bytes() for path in sorted(folder.rglob("*.jpg"))]


def arrow_codec(name: str) -> Packer:
    return lambda data: bytes(pa.Codec(name).compress(data, asbytes=True))


PACKERS: dict[str, Packer] = {
    ".gz": gzip.compress,
    ".bz2": bz2.compress,
    ".xz": lzma.compress,
    ".zst": arrow_codec("zstd"),
    ".br": arrow_codec("brotli"),
}


def packed_files(folder: Path, pattern: str, pack: Packer, ending: str = "") -> None:
    for path in sorted(folder.rglob(pattern)):
        path.write_bytes(pack(path.read_bytes()))
        path.rename(f"{path}{ending}")


def tar(ending: str) -> Callable[[list[bytes], Path], Any]:
    def write(images: list[bytes], folder: Path) -> str:
        write_tar(images, folder)
        packed_files(folder, "*.tar", PACKERS[ending], ending)
        return f"{folder}/{{000..001}}.tar{ending}"

    return write


def one_tgz(images: list[bytes], folder: Path) -> Path:
    with tarfile.open(folder / "a b.tgz", "w:gz") as out:
        for i, image in enumerate(images):
            for extension, data in (("jpg", image), ("cls", b"%d" % i)):
                member = tarfile.TarInfo(f"{i:06d}.{extension}")
                member.size = len(data)
                out.addfile(member, io.BytesIO(data))
    return folder / "a b.tgz"


def tfrecord(pack: Packer) -> Callable[[list[bytes], Path], Any]:
    def write(images: list[bytes], folder: Path) -> str:
        given = write_tfrecord(images, folder)
        packed_files(folder, "train-*", pack)
        return given

    return write


def tfrecord_folder(images: list[bytes], folder: Path) -> Path:
    write_tfrecord(images, folder)
    for path in sorted(folder.iterdir()):
        (folder / f"{path.name}.tfrecord.gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()
    return folder


def arrow(name: str, codec: str, stream: bool = False) -> Callable[[list[bytes], Path], Any]:
    def write(images: list[bytes], folder: Path) -> Path:
        rows = table(images)
        new = pa.ipc.new_stream if stream else pa.ipc.new_file
        with new(str(folder / name), rows.schema, options=pa.ipc.IpcWriteOptions(compression=codec)) as out:
            out.write_table(rows, max_chunksize=4)
        return folder / name

    return write


def parquet(images: list[bytes], folder: Path) -> Path:
    """Values whose lengths stand elsewhere."""
    options = {"use_dictionary": False, "column_encoding": {"image": "DELTA_LENGTH_BYTE_ARRAY"}}
    pq.write_table(table(images, struct_of=False), folder / "a.parquet", row_group_size=5, **options)
    return folder / "a.parquet"


SOURCES: dict[str, Callable[[list[bytes], Path], Any]] = {
    **{f"tar{ending}": tar(ending) for ending in PACKERS},
    "tgz": one_tgz,
    "tfrecord-gzip": tfrecord(gzip.compress),
    "tfrecord-zlib": tfrecord(zlib.compress),
    "tfrecord-folder": tfrecord_folder,
    "feather-lz4": arrow("a.feather", "lz4"),
    "arrow-stream-zstd": arrow("a.arrow", "zstd", stream=True),
    "parquet-delta": parquet,
}


def refusal(kind: Any, given: Any, **options: Any) -> list[str]:
    """The command that a refusal names, as words."""
    with pytest.raises(RandomAccessError) as caught:
        kind.from_path(given, **options)
    found = re.fullmatch(
        r".*, so its samples cannot be read one by one; pack them once: gpupipe (.*)", str(caught.value)
    )
    assert found, caught.value
    words = shlex.split(found[1])
    assert words[0] == "pack" and words[1] == str(given)
    return words


def obeyed(words: list[str], images: list[bytes], folder: Path) -> None:
    """Run the command that a refusal names; the samples are those that were written."""
    (folder / "run").mkdir()
    packed = folder / "run" / "packed"
    words[words.index("packed")] = str(packed)
    gpupipe(*words, "--num-workers", 1)
    dataset = OPEN[words[words.index("--format") + 1]](packed)
    assert [dataset.fetch(i) for i in range(len(dataset))] == [(image, i) for i, image in enumerate(images)]
    assert [path.name for path in (folder / "run").iterdir()] == ["packed"]


@pytest.mark.part("name")
@pytest.mark.parametrize("name", SOURCES)
def test_what_was_compressed_is_packed_by_the_command_of_the_refusal(
    name: str, images: list[bytes], tmp_path: Path
) -> None:
    (tmp_path / "source").mkdir()
    given = SOURCES[name](images, tmp_path / "source")
    kind = format_of(str(given))
    assert kind is not None
    obeyed(refusal(kind, given), images, tmp_path)


COMPRESSIBLE = [name for name, case in CASES.items() if issubclass(case.format, base.Sharded)]


@pytest.mark.part("name")
@pytest.mark.parametrize("name", COMPRESSIBLE)
def test_every_format_names_a_command(name: str, images: list[bytes], tmp_path: Path) -> None:
    """Each file as it is, but compressed."""
    (tmp_path / "source").mkdir()
    given = CASES[name].write(images, tmp_path / "source")
    packed_files(tmp_path / "source", f"*{CASES[name].suffix}" if name != "tfrecord" else "train-*", gzip.compress)
    obeyed(refusal(CASES[name].format, given, **CASES[name].options), images, tmp_path)


def test_the_formats_of_commands_can_be_written() -> None:
    assert {*FORMATS} == {*base._WRITTEN} and {CASES[name].kind.lower() for name in COMPRESSIBLE} <= {*formats()}


def test_names_and_options_of_a_script_are_in_the_command(images: list[bytes], tmp_path: Path) -> None:
    one_tgz(images, tmp_path)
    given = [str(tmp_path / "a b.tgz"), str(tmp_path / "c.tgz")]
    os.link(*given)
    with pytest.raises(RandomAccessError) as caught:
        datasets.WebDataset(given, image="png;jpg", label="cls")
    words = shlex.split(str(caught.value).partition("gpupipe ")[2])
    assert words[1] == "::".join(given) and words[5:] == ["--image", "png;jpg", "--label", "cls"]
    words[2] = str(tmp_path / "packed")
    gpupipe(*words, "--num-workers", 1)
    assert len(datasets.WebDataset(tmp_path / "packed")) == 2 * N
    assert "no sample has a label='cls2'" in error("pack", given[0], tmp_path / "x", *words[3:-1], "cls2")


@pytest.mark.parametrize("name", ["x.tar.gz", "x.TGZ", "x-00000-of-00010.gz", "s3://bucket/x.tar.zst"])
def test_a_path_for_the_loader_is_answered_by_the_command(name: str) -> None:
    with pytest.raises(DatasetError, match=rf"{name}' is compressed, .*; pack them once: gpupipe pack {name} packed -"):
        DataLoader(name, batch_size=2)


def wanted(tar: Path) -> list[dict[str, Any]]:
    """What the package of the format reads."""
    wds = pytest.importorskip("webdataset")
    keys = ("__key__", "jpg", "cls", "txt", "json")
    found = [{key: one[key] for key in keys} for one in wds.WebDataset(str(tar), shardshuffle=False)]
    gc.collect()
    return found


@pytest.mark.filterwarnings("ignore")  # the package leaves files open
def test_columns_and_keys_are_what_the_package_reads(images: list[bytes], tmp_path: Path) -> None:
    rows = [(f"b/{3 * i % N:03d}", images[i], i % 3) for i in range(N)]  # not in the order of the names
    with tarfile.open(tmp_path / "a.tar.gz", "w:gz") as out:
        for key, image, label in rows:
            members = {"jpg": image, "cls": b"%d" % label, "txt": f"größe {key}".encode(), "json": b'{"w": %d}' % label}
            for extension, data in members.items():
                member = tarfile.TarInfo(f"{key}.{extension}")
                member.size = len(data)
                out.addfile(member, io.BytesIO(data))
    (tmp_path / "labels.txt").write_text("0:a\n1:b\n2:c\n")
    gpupipe("pack", tmp_path / "a.tar.gz", tmp_path / "out", "--format", "webdataset", "--num-workers", 1)
    (shard,) = (tmp_path / "out").glob("*.tar")
    assert wanted(shard) == wanted(tmp_path / "a.tar.gz") and len(wanted(shard)) == N
    packed = datasets.WebDataset(tmp_path / "out", columns=["json:w"])
    assert packed.classes == ["a", "b", "c"] and packed.labels is not None
    assert packed.labels.tolist() == [*packed.columns["json:w"].of(np.arange(N))] == [label for *_, label in rows]


def test_plain_shards_may_lie_among_compressed_ones(images: list[bytes], tmp_path: Path) -> None:
    write_tar(images, tmp_path)
    second = tmp_path / "001.tar"
    second.write_bytes(gzip.compress(second.read_bytes()))
    gpupipe("pack", tmp_path / "{000..001}.tar", tmp_path / "out", "--format", "webdataset", "--num-workers", 1)
    assert [data for data, _ in map(datasets.WebDataset(tmp_path / "out").fetch, range(N))] == images


def test_bad_samples_have_the_names_that_the_user_knows(images: list[bytes], tmp_path: Path) -> None:
    given = one_tgz([b"no image", *images[1:]], tmp_path)
    shown = gpupipe("pack", given, tmp_path / "out", "--format", "parquet", "--num-workers", 1, code=3)
    assert f"{given}:000000.jpg" in (tmp_path / "out" / command.LEFT_OUT).read_text()
    assert "gpupipe-unpacked" not in shown.output + "".join(map(str, tmp_path.rglob("*")))


def test_after_an_interrupt_complete_files_are_used_again(
    images: list[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given, out = tar(".gz")(images, tmp_path), tmp_path / "out"
    unpacked, one = [], Unpacking._unpack

    def unpack(self: Unpacking, path: bytes, *rest: Any) -> None:
        unpacked.append(os.path.basename(path))
        if len(unpacked) == 2:
            raise KeyboardInterrupt
        one(self, path, *rest)

    monkeypatch.setattr(Unpacking, "_unpack", unpack)
    options = (given, out, "--format", "webdataset", "--num-workers", 1)
    gpupipe("pack", *options, code=130)
    assert not out.exists()
    with monkeypatch.context() as patch:
        patch.setattr(command, "pack_shards", lambda *_, **__: (_ for _ in ()).throw(KeyboardInterrupt))
        gpupipe("pack", *options, code=130)
    gpupipe("pack", *options)
    assert unpacked == [b"000.tar.gz", b"001.tar.gz", b"001.tar.gz"]
    assert [data for data, _ in map(datasets.WebDataset(out).fetch, range(N))] == images
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_another_source_is_unpacked_anew(images: list[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given, out = one_tgz(images, tmp_path), tmp_path / "out"
    options = (given, out, "--format", "webdataset", "--num-workers", 1)
    with monkeypatch.context() as patch:
        patch.setattr(command, "_run", lambda *_: 130)
        gpupipe("pack", *options, code=130)
    one_tgz(images[::-1], tmp_path)
    gpupipe("pack", *options)
    assert [data for data, _ in map(datasets.WebDataset(out).fetch, range(N))] == images[::-1]


@pytest.mark.parametrize(
    ("spoil", "says"),
    [
        (lambda data: data[:-30], "its gzip data end too early: it is truncated"),
        (lambda data: data[:2000] + bytes(99) + data[2099:], "its gzip data are damaged"),
        (lambda data: data + b"more", "its gzip data are damaged"),
        (lambda data: data + gzip.compress(bytes(1 << 20)), "it unpacks into more than 1 bytes for each of its first"),
    ],
)
def test_damage_and_bombs_are_refused(
    spoil: Packer, says: str, images: list[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compressed, "_UNSUSPECTED", 1 << 19)
    monkeypatch.setattr(compressed, "_RATIO", 1)
    given = one_tgz(images[:4], tmp_path)
    given.write_bytes(spoil(given.read_bytes()))
    message = error("pack", given, tmp_path / "out", "--format", "webdataset")
    assert f"the shard {given} cannot be unpacked: {says}" in message and message.count(";") == 1
    assert [path.name for path in tmp_path.iterdir()] == [given.name]


def test_what_is_no_shard_after_unpacking_leaves_nothing(images: list[bytes], tmp_path: Path) -> None:
    given = tmp_path / "a.tar.gz"
    given.write_bytes(gzip.compress(b"no tar file" * 99))
    message = error("pack", given, tmp_path / "out", "--format", "webdataset")
    assert f"the shard {given} cannot be used: it is not a complete tar file" in message
    one_tgz(images, tmp_path)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").touch()
    assert "is not empty" in error("pack", tmp_path / "a b.tgz", tmp_path / "mine", "--format", "webdataset")
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_several_streams_in_a_file_are_read_to_the_end() -> None:
    for codec, pack in zip(("gzip", "bzip2", "xz", "zstd"), PACKERS.values(), strict=False):
        joined = io.BytesIO(pack(b"one") + pack(b"two" * 100_000))
        assert compressed.codec_of(joined) == codec
        assert b"".join(compressed.unpacked(joined, codec)) == b"one" + b"two" * 100_000
    padded = io.BytesIO(gzip.compress(b"tape") + bytes(512))
    assert b"".join(compressed.unpacked(padded, "gzip")) == b"tape"


def test_what_only_begins_like_a_compressed_file_is_read(images: list[bytes], tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as out:
        member = tarfile.TarInfo("BZh91AY&SY.jpg")
        member.size = len(images[0])
        out.addfile(member, io.BytesIO(images[0]))
    assert datasets.WebDataset(tmp_path / "a.tar").fetch(0) == (images[0], None)
    empty = len(example({"image": images[0], "text": b"x" * 30_000}))
    record = example({"image": images[0], "text": b"x" * (0x8B1F - empty + 30_000)})
    assert len(record) == 0x8B1F
    (tmp_path / "a.tfrecord").write_bytes(tfrecord_of(record))
    assert datasets.TFRecord(tmp_path / "a.tfrecord").fetch(0) == (images[0], None)


def test_large_pages_of_parquet_are_unpacked(
    images: list[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pq.write_table(table(images), tmp_path / "a.parquet", use_dictionary=False)
    with monkeypatch.context() as patch:
        patch.setattr(parquet_pages, "_LARGEST", 1 << 10)
        obeyed(refusal(datasets.Parquet, tmp_path / "a.parquet"), images, tmp_path)


def test_a_random_order_of_compressed_pages_is_packed_from_unpacked_ones(
    images: list[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pq.write_table(table(images), tmp_path / "a.parquet", use_dictionary=False)
    assert datasets.Parquet(tmp_path / "a.parquet").pages is not None
    run, seen = command._run, []
    monkeypatch.setattr(
        command, "_run", lambda request, dataset, *rest: seen.append(dataset) or run(request, dataset, *rest)
    )
    options = ("--format", "parquet", "--num-workers", 1)
    gpupipe("pack", tmp_path / "a.parquet", tmp_path / "in-order", *options)
    gpupipe("pack", tmp_path / "a.parquet", tmp_path / "random", "--shuffle", *options)
    assert [dataset.pages is None for dataset in seen] == [False, True]
    random = datasets.Parquet(tmp_path / "random")
    assert random.labels is not None and random.labels.tolist() != [*range(N)]
    assert [random.fetch(i)[0] for i in range(N)] == [images[label] for label in random.labels.tolist()]


def test_a_batch_that_claims_more_than_it_has_takes_no_memory(images: list[bytes], tmp_path: Path) -> None:
    given = arrow("a.arrow", "lz4")([bytes(1 << 20)] * 2, tmp_path)
    size, claim = ((n).to_bytes(8, "little") for n in (2 << 20, 1 << 50))
    content = given.read_bytes()
    assert size in content
    given.write_bytes(content.replace(size, claim))
    says = error("pack", given, tmp_path / "out", "--format", "parquet")
    assert re.search(r"a\.arrow cannot be unpacked: a batch claims \d{16} bytes in \d+ compressed", says)


def test_a_name_that_does_not_tell_needs_the_kind(images: list[bytes], tmp_path: Path) -> None:
    given = one_tgz(images, tmp_path).rename(tmp_path / "photos")
    words = refusal(datasets.WebDataset, given)
    assert words[-2:] == ["--source", "webdataset"]
    obeyed(words, images, tmp_path)
