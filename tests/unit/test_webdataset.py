"""Images in tar files: what is a sample, what is wrong with one, and with a shard."""

from __future__ import annotations

import gzip
import io
import os
import subprocess
import tarfile
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from gpupipe.codecs.files import Place, Undecodable, read_place, use_place
from gpupipe.datasets import WebDataset
from gpupipe.errors import DatasetError
from gpupipe.testing.photos import photograph


def picture(i: int, format: str = "JPEG") -> bytes:
    out = io.BytesIO()
    Image.fromarray(photograph(40 + i, 60, i)).save(out, format)
    return out.getvalue()


def shard(path: Path, members: Sequence[tuple[str, bytes]], format: int = tarfile.PAX_FORMAT) -> Path:
    with tarfile.open(path, "w", format=format) as tar:
        for name, data in members:
            member = tarfile.TarInfo(name)
            member.size, member.mtime = len(data), 1_500_000_000
            tar.addfile(member, io.BytesIO(data))
    return path


def names_of(dataset: WebDataset) -> list[str]:
    return [dataset.describe(i).rpartition(":")[2] for i in range(len(dataset))]


def test_what_webdataset_leaves_out_in_silence_is_refused(tmp_path: Path) -> None:
    """Everything behind the first end."""
    two = [shard(tmp_path / f"{i}.tar", [(f"{i}.jpg", picture(i)), (f"{i}.cls", b"%d" % i)]) for i in range(2)]
    both = tmp_path / "both.tar"
    both.write_bytes(b"".join(path.read_bytes() for path in two))
    with pytest.raises(DatasetError, match=r"continues after its end at byte \d+, .*; use tar --concatenate"):
        WebDataset(both)
    assert len(WebDataset([*two])) == 2


@pytest.mark.parametrize("format", ["gnu", "posix"])
def test_a_sparse_member_is_refused(format: str, tmp_path: Path) -> None:
    with open(tmp_path / "0.jpg", "wb") as file:
        file.truncate(1 << 20)
        file.seek(1 << 20)
        file.write(picture(0))
    command = ["tar", f"--format={format}", "--sparse", "-cf", "a.tar", "0.jpg"]
    subprocess.run(command, cwd=tmp_path, check=True)
    with pytest.raises(DatasetError, match=r"its member '0\.jpg' is a sparse file, .* without tar's --sparse"):
        WebDataset(tmp_path / "a.tar")


def test_a_field_of_a_json_member_is_the_label(tmp_path: Path) -> None:
    """A number, or the name of a class, also deep within."""

    def written(*values: str) -> Path:
        members = [(f"{i}.{end}", data) for i, value in enumerate(values)
                   for end, data in (("jpg", picture(i)), ("json", b'{"a": {"b": %s}}' % value.encode()))]  # fmt: skip
        return shard(tmp_path / "a.tar", members)

    assert WebDataset(written("7", "-1"), label="json:a.b").targets == [7, -1]
    named = WebDataset(written('"emu"', '"cat"'), label="json:a.b")
    assert (named.classes, named.targets) == (["cat", "emu"], [1, 0])
    found = WebDataset(written("7", "true", "1.0", "[7]", "null", "1" * 30), label="json:a.b").index_summary().bad
    assert {bad.index: bad.reason for bad in found} == dict.fromkeys(
        range(1, 6), "the field 'a.b' of its .json is neither a class number nor a name"
    )
    (missing,) = WebDataset(written("7"), label="json:a.c").index_summary().bad
    assert missing.reason == "its .json has no field 'a.c'"


@pytest.mark.parametrize("kind", [tarfile.LNKTYPE, tarfile.SYMTYPE])
def test_a_link_is_a_bad_sample(kind: bytes, tmp_path: Path) -> None:
    """webdataset leaves it out in silence, and with it what it would have been the image or the label of."""
    path = shard(tmp_path / "a.tar", [("0.jpg", picture(0)), ("0.cls", b"5"), ("1.jpg", picture(1))])
    with tarfile.open(path, "a") as tar:
        for name, target in (("1.cls", "0.cls"), ("2.jpg", "0.jpg"), ("2.cls", "0.cls"), ("2.txt", "0.txt")):
            member = tarfile.TarInfo(name)
            member.type, member.linkname = kind, target
            tar.addfile(member)
    dataset = WebDataset(path)
    assert dataset.fetch(0) == (picture(0), 5)
    advice = "is a link, without bytes of its own; pack it again with tar --dereference --hard-dereference"
    found = {bad.path: bad.reason for bad in dataset.index_summary().bad}
    assert found == {f"{path}:1.jpg": f"'1.cls' {advice}", f"{path}:2.jpg": f"'2.jpg' {advice}"}


def test_the_name_of_a_sample_is_a_column(tmp_path: Path) -> None:
    """As ``to_tuple("jpg", "__key__")`` gives it."""
    members = [(f"b/{i}.{end}", data) for i in range(2)
               for end, data in (("x.jpg", picture(i)), ("Txt", b"photo %d" % i))]  # fmt: skip
    path = shard(tmp_path / "a.tar", members)
    columns = WebDataset(path, image="x.jpg", columns=["__key__", "TXT"]).columns
    assert columns["__key__"].of(np.arange(2)) == ["b/0", "b/1"]
    assert columns["TXT"].of(np.arange(2)) == ["photo 0", "photo 1"]


def test_members_with_one_name_are_one_sample(tmp_path: Path) -> None:
    members = [
        ("__about__/notes.txt", b"meta"),
        ("a/0001.cls", b"7\n"),
        ("a/0001.jpg", picture(1)),
        ("a/0001.json", b"{}"),
        ("a/0002.seg.png", b"a mask, which comes before the image and is none"),
        ("a/0002.JPEG", picture(2)),
        ("a/0002.cls", b"-3"),
        ("b/0001.png", picture(3, "PNG")),
        ("b/0001.cls", b"12"),
        ("no-extension", b"left out, as webdataset does"),
        ("b.c/" + "long" * 60 + ".jpg", picture(4)),
        ("b.c/" + "long" * 60 + ".cls", b"0"),
    ]
    for format in (tarfile.PAX_FORMAT, tarfile.GNU_FORMAT):
        dataset = WebDataset(shard(tmp_path / f"{format}.tar", members, format))
        assert names_of(dataset) == ["a/0001.jpg", "a/0002.JPEG", "b/0001.png", "b.c/" + "long" * 60 + ".jpg"]
        assert dataset.targets == [7, -3, 12, 0]
        assert dataset.sizes.tolist() == [[41, 60], [42, 60], [43, 60], [44, 60]]
        assert dataset.index_summary().bad == ()
        image, label = dataset[2]
        assert label == 12
        assert np.array_equal(np.asarray(image), photograph(43, 60, 3))
        assert dataset.fetch(0) == (picture(1), 7)


def test_the_first_extension_that_a_sample_has_is_its_image(tmp_path: Path) -> None:
    """In the order of ``image``, and not of the file."""
    members = [("1.png", picture(1, "PNG")), ("1.jpg", picture(2)), ("2.png", picture(3, "PNG"))]
    path = shard(tmp_path / "a.tar", members)
    assert names_of(WebDataset(path)) == ["1.jpg", "2.png"]
    assert names_of(WebDataset(path, image="png;jpg")) == ["1.png", "2.png"]


def test_samples_without_image_or_label_are_bad_and_named(tmp_path: Path) -> None:
    path = shard(
        tmp_path / "a.tar",
        [
            ("1.jpg", picture(1)), ("1.cls", b"1"), ("2.txt", b"no image"), ("2.cls", b"2"),
            ("3.jpg", picture(3)), ("3.cls", b"dog"), ("4.jpg", picture(4)),
            ("5.jpg", picture(5)[:300]), ("5.cls", b"5"),
        ],
    )  # fmt: skip
    dataset = WebDataset(path)
    found = {bad.path: bad.reason for bad in dataset.index_summary().bad}
    assert list(found) == [f"{path}:2", f"{path}:3.jpg", f"{path}:4.jpg", f"{path}:5.jpg"]
    reasons = list(found.values())
    assert reasons[0].startswith("it has .cls, .txt, none of which is an image; name it by image=, and if it lies ")
    assert reasons[1] == "its .cls is b'dog', which is not a class number; read texts with columns=['cls']"
    assert reasons[2] == "it has no label, but other samples have one"
    assert dataset.index_summary().bad[3].kind == "truncated"


def test_no_sample_with_a_label_is_a_dataset_without_labels(tmp_path: Path) -> None:
    path = shard(tmp_path / "a.tar", [("1.jpg", picture(1)), ("2.jpg", picture(2))])
    assert WebDataset(path).labels is None
    other = shard(tmp_path / "b.tar", [("1.image.jpg", picture(1)), ("1.class", b"4")])
    assert WebDataset(other, image="image.jpg", label="class").targets == [4]
    assert WebDataset(other, image="image.jpg", label=None, columns=["class"]).labels is None


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda data: b"", "it is not a complete tar file: empty file"),
        (lambda data: b"certainly no tar file" * 100, "it is not a complete tar file"),
        (gzip.compress, "it is compressed with gzip, so its samples cannot be read one by one"),
        (lambda data: data[:3000], "it is not a complete tar file: unexpected end of data"),
        (lambda data: data.replace(b"2.png", b"\xff" * 5), "it is damaged at byte "),  # its checksum is wrong now
    ],
)
def test_a_shard_that_cannot_be_read_to_its_end_is_an_error(
    tmp_path: Path, spoil: Callable[[bytes], bytes], said: str
) -> None:
    tiny = io.BytesIO()
    Image.new("RGB", (8, 8)).save(tiny, "PNG")
    path = shard(tmp_path / "a.tar", [(f"{i}.png", tiny.getvalue()) for i in range(4)], tarfile.USTAR_FORMAT)
    assert len(WebDataset(path)) == 4
    path.write_bytes(spoil(path.read_bytes()))
    with pytest.raises(DatasetError, match=r"the shard .*a\.tar cannot be used: ") as error:
        WebDataset(path)
    assert said in str(error.value)


def test_files_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match="No such file"):
        WebDataset(tmp_path / "none.tar")
    with pytest.raises(DatasetError, match="no sample in any of 0 files"):
        WebDataset([])
    os.mkfifo(tmp_path / "pipe.tar")
    with pytest.raises(DatasetError, match="a folder, a device or a pipe"):
        WebDataset(tmp_path / "pipe.tar")
    with pytest.raises(DatasetError, match=r"'1.jpg' occurs twice"):
        WebDataset(shard(tmp_path / "twice.tar", [("1.jpg", picture(1)), ("1.jpg", picture(1))]))


def test_a_part_of_a_file_is_a_file() -> None:
    with tempfile.NamedTemporaryFile() as file:
        data = bytes(range(200))
        file.write(data)
        file.flush()
        place = Place(file.name.encode(), 50, 30)
        part = data[50:80]
        assert read_place(place) == part

        def look(it: io.BufferedReader, read: object, size: int) -> None:
            assert size == 30
            assert it.read() == part
            assert it.seek(-5, 2) == 25
            assert it.read(100) == part[25:]
            assert it.seek(3) == 3
            assert it.read(4) == part[3:7]
            assert it.seek(2, 1) == 9
            assert it.read(1) == part[9:10]
            assert read(100, 28) == part[28:]  # type: ignore[operator]
            assert read(5, 30) == b""  # type: ignore[operator]

        use_place(place, look)  # type: ignore[arg-type]
        with pytest.raises(Undecodable, match="bytes 190 to 220 of a file of 200 bytes"):
            use_place(Place(file.name.encode(), 190, 30), look)  # type: ignore[arg-type]
