"""Files that lie: they name other files of the machine, claim sizes that they do not have, or grow without end."""

from __future__ import annotations

import io
import json
import logging
import re
import struct
import tarfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from command_line import gpupipe
from PIL import Image
from support import add_member, encode, little_memory
from tfrecords import masked_crc

from gpupipe import GpupipeWarning
from gpupipe.datasets import (
    ImageFolder,
    ImageList,
    Manifest,
    TFRecord,
    WebDataset,
    Zip,
)
from gpupipe.errors import DatasetError, SampleError
from gpupipe.loader.bad_sample_report import BadSampleReport
from gpupipe.reasons import Reason
from gpupipe.script_warnings import warn

google_crc32c = pytest.importorskip("google_crc32c")


def deflated(data: bytes) -> bytes:
    return zlib.compress(data, 1)[2:-4]


def write_zip(path: Path, members: dict[str, tuple[bytes, int]]) -> Path:
    """An archive of members that are deflated already, without checksums; of each its data, and its size after."""
    body, directory = b"", b""
    for name, (data, size) in members.items():
        about = struct.pack("<HHHHHIIIHH", 20, 0, 8, 0, 33, 0, len(data), size, len(name), 0)
        directory += (
            b"PK\1\2" + struct.pack("<H", 20) + about + struct.pack("<HHHII", 0, 0, 0, 0, len(body)) + name.encode()
        )
        body += b"PK\3\4" + about + name.encode() + data
    end = struct.pack("<HHHHIIH", 0, 0, len(members), len(members), len(directory), len(body), 0)
    path.write_bytes(body + directory + b"PK\5\6" + end)
    return path


LARGE = (256 << 20) + 1


@pytest.fixture(scope="module")
def bomb(tmp_path_factory: pytest.TempPathFactory) -> Path:
    good = encode(Image.new("RGB", (2000, 2000), (9, 80, 200)), "BMP")
    members = {"a.jpg": (bytes(300_000), LARGE), "b.bmp": (deflated(good), len(good))}
    return write_zip(tmp_path_factory.mktemp("bomb") / "a.zip", members)


class TestZip:
    def test_a_large_member_is_not_inflated(self, bomb: Path) -> None:
        with little_memory(24 << 20):
            found = Zip(bomb)
        says = f"it inflates to {LARGE} bytes, but at most {256 << 20} are allowed; pack it again with zip -0"
        assert [(b.index, b.kind, b.reason) for b in found.index_summary().bad] == [(0, "bomb", says)]
        assert found.sizes[1:].tolist() == [[2000, 2000]]

    def test_max_bytes_hold_for_what_is_unpacked(self, bomb: Path) -> None:
        found = Zip(bomb, max_bytes=10 << 20).index_summary().bad
        assert [b.kind for b in found] == ["bomb"] * 2
        assert found[1].reason == "12000054 bytes are more than max_bytes=10485760"

    @pytest.mark.parametrize("change", [-1, 1, 5 << 20])
    def test_a_wrong_size(self, change: int, tmp_path: Path) -> None:
        good = encode(Image.new("RGB", (2000, 2000), (9, 80, 200)), "BMP")
        path = write_zip(tmp_path / "a.zip", {"a.bmp": (deflated(good), len(good) + change)})
        (found,) = Zip(path).index_summary().bad
        had = 12000054  # one byte more than expected is enough to know that the data are wrong
        says = f"its deflate data are damaged: {had} bytes, not {had + change}"
        assert (found.kind, found.reason) == ("undecodable", says)


HUGE = 1 << 62


def tfrecord_head(folder: Path) -> bytes:
    length = struct.pack("<Q", HUGE)
    return length + struct.pack("<I", masked_crc(length))


def tar_head(kind: bytes, size: int = HUGE) -> bytes:
    """A header of a tar file whose size is in base 256."""
    head = bytearray(512)
    head[:5], head[124:136], head[156:157], head[257:263] = (
        b"a.jpg",
        b"\x80" + size.to_bytes(11, "big"),
        kind,
        b"ustar\0",
    )
    head[148:156] = b"%06o\0 " % (sum(head) + 8 * ord(" "))
    return bytes(head)


def pax_size(folder: Path) -> bytes:
    record = b"28 size=4611686018427387904\n"
    return tar_head(b"x", len(record)) + record.ljust(512, b"\0") + tar_head(b"0", 10) + bytes(512)


class TestClaims:
    """An error names the file, the place and the claim, and no memory is taken for it."""

    @pytest.mark.parametrize(
        ("kind", "name", "content", "says"),
        [
            (TFRecord, "a.tfrecord", tfrecord_head, f"record 0 at byte 0 claims {HUGE} bytes, and the file has 12"),
            (WebDataset, "a.tar", lambda _: tar_head(b"0"), f"its member 'a.jpg' at byte 512 claims {HUGE} bytes"),
            (
                WebDataset,
                "a.tar",
                pax_size,
                f"its member 'a.jpg' at byte 1536 claims {HUGE} bytes, and the file has 2048",
            ),
            *(
                (
                    WebDataset,
                    "a.tar",
                    lambda _, kind=kind: tar_head(kind),
                    f"the header before byte 512 claims {HUGE} bytes",
                )
                for kind in (b"x", b"g", b"L", b"K")
            ),
        ],
    )
    def test_it_says_what_is_claimed_where(
        self, kind: Any, name: str, content: Callable[..., bytes], says: str, tmp_path: Path
    ) -> None:
        (tmp_path / name).write_bytes(content(tmp_path))
        with (
            little_memory(8 << 20),
            pytest.raises(DatasetError, match=rf"{tmp_path}/{name} cannot be used: .*{re.escape(says)}"),
        ):
            kind(tmp_path / name)


class TestJson:
    """Lists of shards that are nested without end, or huge: an error, and little memory."""

    @pytest.mark.parametrize("name", ["a.jsonl", "a.csv"])
    @pytest.mark.parametrize("start", [b"path\n", b'{"path": "', b""])
    def test_a_line_without_end(self, name: str, start: bytes, tmp_path: Path) -> None:
        with (tmp_path / name).open("wb") as file:
            file.write(start + b'"')
            file.truncate(1 << 40)
        with little_memory(64 << 20), pytest.raises(DatasetError, match=r"line \d has more than 4,194,304 characters"):
            Manifest(tmp_path / name)

    def test_a_deep_line(self, tmp_path: Path) -> None:
        (tmp_path / "a.jsonl").write_text('{"path": "x"}\n{"path": ' + "[" * 100_000)
        with pytest.raises(DatasetError, match="are nested too deeply"):
            Manifest(tmp_path / "a.jsonl")

    def test_members_of_samples(self, tmp_path: Path) -> None:
        picture = io.BytesIO()
        Image.new("RGB", (8, 8)).save(picture, "PNG")
        with tarfile.open(tmp_path / "a.tar", "w") as out:
            for i, text in enumerate((b"[" * 100_000, b'{"a": 1, "b": ' + b"[0," * 700_000, b'{"a": 1}')):
                for extension, data in (("png", picture.getvalue()), ("json", text)):
                    add_member(out, f"{i}.{extension}", data)
        with little_memory(64 << 20):
            found = WebDataset(tmp_path / "a.tar", label="json:a")
        assert [(it.index, it.reason) for it in found.index_summary().bad] == [
            (0, "its .json has no field 'a'"),
            (1, "its .json has no field 'a'"),
        ]


class TestPaths:
    """Lists that come with a dataset, and name files that lie elsewhere."""

    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        (tmp_path / "data").mkdir()
        Image.new("RGB", (8, 8)).save(tmp_path / "secret.png")
        return tmp_path / "data"

    @pytest.mark.parametrize(("kind", "name"), [(ImageList, "a.csv"), (Manifest, "a.jsonl"), (Manifest, "a.csv")])
    def test_a_list_does_not_lead_out_of_its_folder(self, kind: Any, name: str, folder: Path) -> None:
        def write(path: str) -> Path:
            (folder / name).write_text(f"path\n{path}\n" if name == "a.csv" else json.dumps({"path": path}))
            return folder / name

        given = write("../secret.png")
        with pytest.raises(
            DatasetError, match=r"which leads out of the list's folder '.*data'; correct it, or pass allow_outside=True"
        ):
            kind(given)
        assert kind(given, allow_outside=True).sizes.tolist() == [[8, 8]]
        assert kind(write(str(folder.parent / "secret.png"))).sizes.tolist() == [[8, 8]]

    def test_what_a_script_names_is_meant(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(folder)
        assert ImageList(["../secret.png"]).sizes.tolist() == [[8, 8]]


class TestNames:
    """Names with characters that a terminal obeys, or that end a line."""

    NAME = "a\x1b[31mred\n\udc80.jpg"
    SHOWN = "a\\x1b[31mred\\n\\udc80.jpg"

    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        path = tmp_path / "photos" / "cat\x1b[2J" / self.NAME
        path.parent.mkdir(parents=True)
        path.write_bytes(b"no image")
        return tmp_path / "photos"

    def test_of_bad_samples(self, folder: Path) -> None:
        (bad,) = ImageFolder(folder).index_summary().bad
        assert bad.path == f"{folder}/cat\x1b[2J/{self.NAME}"
        assert f"cat\\x1b[2J/{self.SHOWN}): undecodable" in str(SampleError([bad]))
        report = BadSampleReport()
        report.add([bad])
        shown = repr(report)
        assert f"cat\\x1b[2J/{self.SHOWN}: undecodable" in shown
        assert "(1 bad sample:" in shown and "(1 time)" in shown
        report.add([bad, bad._replace(index=-1)])
        assert "(2 bad samples:" in repr(report) and "(2 times)" in repr(report)

    def test_on_the_command_line(self, folder: Path) -> None:
        said = gpupipe("index", folder, code=1).output
        assert "\x1b" not in said and "\\x1b[31mred" in said

    def test_of_shards(self, tmp_path: Path) -> None:
        path = tmp_path / self.NAME.replace("jpg", "tar")
        path.write_bytes(b"no tar file" * 99)
        with pytest.raises(DatasetError) as found:
            WebDataset([path])
        assert self.SHOWN.replace("jpg", "tar") in str(found.value)

    def test_in_any_error_warning_and_log(self, caplog: pytest.LogCaptureFixture) -> None:
        assert str(DatasetError("a\x1b[2J\nb")) == "a\\x1b[2J\nb"
        with pytest.warns(GpupipeWarning, match=r"a\\x1b\[2J"):
            warn("a\x1b[2J", [Reason("because", "looks-at-pixels")])
        logging.getLogger("gpupipe").warning("it is %s", "a\x1b[2J")
        assert caplog.messages[-1] == "it is a\\x1b[2J"
        logging.getLogger("gpupipe").warning("it is %(a)s", {"a": "a\x1b[2J"})
        assert caplog.messages[-1] == "it is a\\x1b[2J"
