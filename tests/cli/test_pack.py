"""``gpupipe pack``: what it writes, names, refuses and goes on with."""

from __future__ import annotations

import io
import json
import multiprocessing
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import error, gpupipe
from jpegs import pillow_jpeg
from jpegtran import FakeJpegtran
from PIL import Image

from gpupipe.codecs.jpeg.tile_index import layout_of
from gpupipe.codecs.jpeg.tiles import cut
from gpupipe.commands import pack_folder as command
from gpupipe.pack import folder as pack_folder
from gpupipe.pack.folder import Written
from gpupipe.pack.journal import NAME, Journal
from gpupipe.pack.sliceable import Sliceable
from gpupipe.testing.photos import photograph

OLD = (1_600_000_000, 1_600_000_000)


@pytest.fixture
def jpegtran(tmp_path: Path) -> Iterator[FakeJpegtran]:
    """First on ``PATH``. tests/unit/test_pack_sliceable.py uses the real program."""
    fake = FakeJpegtran(tmp_path / "bin")
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("PATH", str(fake.folder), prepend=os.pathsep)
        yield fake


@pytest.fixture
def data(tmp_path: Path, jpegtran: FakeJpegtran) -> Path:
    """Photographs in three classes, and one of each that stays as it is."""
    root = tmp_path / "data"
    for i in range(12):
        path = root / f"class{i // 4:02d}" / f"photo{i:02d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(jpegtran.jpeg(96 + i, 128 - i, i, subsampling="4:2:0" if i % 3 else "4:4:4"))
    plain = pillow_jpeg(60, 80, 1, quality=75)
    at = layout_of(plain).height_at
    image = Image.fromarray(photograph(60, 80, 2))
    (root / "class00" / "progressive.JPG").write_bytes(jpegtran.jpeg(60, 80, 3, progressive=True))
    image.convert("CMYK").save(root / "class00" / "cmyk.jpg")
    image.save(root / "class01" / "picture.png")
    (root / "class01" / "not transformed.jpg").write_bytes(plain)
    (root / "class01" / "deep.jpg").write_bytes(plain[: at - 1] + b"\x0c" + plain[at:])
    (root / "class02" / "cut short.jpg").write_bytes(plain[:-200])
    (root / "class02" / "empty.jpg").write_bytes(b"")
    (root / "class02" / "text.jpg").write_bytes(b"no picture")
    (root / "class02" / "notes.txt").write_text("not an image")
    os.mkfifo(root / "class02" / "pipe.jpg")
    for path in root.rglob("*"):
        os.utime(path, OLD)
    return root


KEPT = {
    "class00/cmyk.jpg": "CMYK",
    "class01/picture.png": "PNG",
    "class01/not transformed.jpg": "broken",
    "class01/deep.jpg": "undecodable",
    "class02/cut short.jpg": "truncated",
    "class02/empty.jpg": "empty",
    "class02/text.jpg": "undecodable",
}


def contents(root: Path) -> dict[str, bytes]:
    return {str(p.relative_to(root)): p.read_bytes() for p in root.rglob("*") if p.is_file() and p.name != NAME}


def journal(root: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (root / NAME).read_text().splitlines() if line]


def is_sliceable(data: bytes) -> bool:
    return cut(lambda n, at: data[at : at + n], len(data), (0, 0, 16, 16)) is not None


def test_photographs_are_rewritten_and_the_rest_is_copied_and_named(data: Path, tmp_path: Path) -> None:
    out = tmp_path / "packed"
    shown = gpupipe("pack", data, out, "--sliceable").stdout
    before, after = contents(data), contents(out)
    assert after.keys() == before.keys() - {"class02/notes.txt"}
    for name, packed in after.items():
        assert is_sliceable(packed) == (name not in KEPT), name
        assert (out / name).stat().st_mtime == OLD[0]
        if name in KEPT:
            assert packed == before[name]
        else:
            pixels = [np.asarray(Image.open(io.BytesIO(data))) for data in (packed, before[name])]
            assert np.array_equal(*pixels), name
    head, *rows = journal(out)
    assert head == {"source": str(data), "form": "sliceable"}
    assert {r["name"]: r["kind"] for r in rows if "kind" in r} == KEPT
    assert {r["name"]: r["written"] for r in rows} == {name: len(packed) for name, packed in after.items()}
    assert "13 images" in shown and "7 images unchanged" in shown and "2 other files" in shown
    for name, kind in KEPT.items():
        assert kind in shown and name in shown
    assert not [p for p in out.rglob("*") if p.name.startswith(".")]


def test_the_same_command_goes_on_after_a_kill(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, out = tmp_path / "whole", tmp_path / "packed"
    gpupipe("pack", data, whole, "--sliceable")
    monkeypatch.setattr(pack_folder, "_FILES", 3)

    def killed(work: Any, tasks: Any, processes: int, progress: Any) -> Iterator[Any]:
        yield from [work(task, progress) for task in tasks[:2]]
        raise KeyboardInterrupt

    monkeypatch.setattr(pack_folder, "in_processes", killed)
    assert "run the same command again" in gpupipe("pack", data, out, "--sliceable", code=130).stderr
    monkeypatch.undo()
    assert len(contents(out)) == 6 and len(journal(out)) == 7
    # A kill also cuts the last line short, and leaves a file that is not in the journal, or not whole.
    lines = (out / NAME).read_text().splitlines(keepends=True)
    (out / NAME).write_text("".join(lines[:-1]) + lines[-1][:20])
    lost = str(journal(whole)[3]["name"])
    (out / lost).write_bytes(b"half")
    shown = gpupipe("pack", data, out, "--sliceable").stdout
    assert f"{20 - 6 + 2} in " in shown
    assert contents(out) == contents(whole)
    for line in (out / NAME).read_text().splitlines():
        assert not line or line == lines[-1][:20] or json.loads(line)
    assert "0 in " in gpupipe("pack", data, out, "--sliceable").stdout


def test_a_file_that_changed_is_packed_again(data: Path, jpegtran: FakeJpegtran, tmp_path: Path) -> None:
    out = tmp_path / "packed"
    gpupipe("pack", data, out, "--sliceable")
    changed = next(data.glob("class00/*.jpg"))
    changed.write_bytes(jpegtran.jpeg(40, 48, 9))
    assert "1 in " in gpupipe("pack", data, out, "--sliceable").stdout
    with Image.open(out / changed.relative_to(data)) as image:
        assert image.size == (48, 40)


def test_processes_write_what_one_writes(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pack_folder, "_FILES", 4)
    gpupipe("pack", data, tmp_path / "two", "--sliceable", "--num-workers", 2)
    monkeypatch.undo()
    gpupipe("pack", data, tmp_path / "one", "--sliceable")
    assert contents(tmp_path / "two") == contents(tmp_path / "one")
    assert journal(tmp_path / "two") == journal(tmp_path / "one")
    assert not multiprocessing.active_children()


def test_a_process_that_dies_is_named(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pack_folder, "_FILES", 4)
    monkeypatch.setattr(command, "Sliceable", Dies)
    assert "a smaller --num-workers" in error("pack", data, tmp_path / "out", "--sliceable")
    monkeypatch.undo()
    gpupipe("pack", data, tmp_path / "out", "--sliceable")


class Dies(Sliceable):
    def __call__(self, data: object) -> Any:
        os.kill(os.getpid(), signal.SIGKILL)


def test_nothing_is_overwritten(data: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "mine.jpg").write_bytes(b"mine")
    assert "is not empty, and gpupipe overwrites nothing" in error("pack", data, out, "--sliceable")
    assert contents(out) == {"mine.jpg": b"mine"}
    before = contents(data)
    for place in (data, data / "class00" / "packed", data.parent):
        assert "one contains the other" in error("pack", data, place, "--sliceable")
    assert contents(data) == before
    gpupipe("pack", data, tmp_path / "packed", "--sliceable")
    assert "give a new folder" in error("pack", data / "class00", tmp_path / "packed", "--sliceable")
    with Journal(str(tmp_path / "packed"), {"source": str(data), "form": "sliceable"}, Written)._file:
        assert "another run packs into" in error("pack", data, tmp_path / "packed", "--sliceable")


def test_nothing_is_written_without_jpegtran(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    for options in ((), ("--format", "webdataset")):
        assert "apt install libjpeg-turbo-progs" in error("pack", data, tmp_path / "out", "--sliceable", *options)
    assert not (tmp_path / "out").exists()


def test_what_is_asked_wrongly_is_named(data: Path, tmp_path: Path) -> None:
    assert "choose an output: --format webdataset, tfrecord or parquet; or --sliceable" in error(
        "pack", data, tmp_path / "out"
    )
    assert "no such folder" in error("pack", tmp_path / "nowhere", tmp_path / "out", "--sliceable")
    (tmp_path / "bare").mkdir()
    assert "no images here" in error("pack", tmp_path / "bare", tmp_path / "out", "--sliceable")
    (tmp_path / "file").write_bytes(b"")
    assert "Not a directory" in error("pack", data, tmp_path / "file" / "out", "--sliceable")
    assert not (tmp_path / "out").exists()
