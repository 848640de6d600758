"""A damaged index: no flipped byte is believed, and no cut ends a process."""

from __future__ import annotations

import logging
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from index_files import COLUMN, age, arrays_of, hostile, index_file, png, regions, sealed
from PIL import Image
from support import in_a_child, little_memory

from gpupipe.datasets import ImageFolder
from gpupipe.datasets.index import blocks, table as index_module
from gpupipe.datasets.index.column_file import Columns, ColumnsError, write_columns
from gpupipe.errors import DatasetError


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Two classes, good and bad files, and one whose EXIF turns it."""
    root = tmp_path / "tree"
    for name in ("a/1", "a/2", "b/1", "b/deep/1"):
        png(root / f"{name}.png")
    (root / "b/2.png").write_bytes(b"no image")
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", (8, 6)).save(root / "b/3.jpg", exif=exif)
    age(root)
    return root


@pytest.fixture(params=["in memory", "too large for it"])
def size(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """A file is copied when it is opened, or read by parts when they are used."""
    if request.param != "in memory":
        monkeypatch.setattr(blocks, "IN_MEMORY", -1)
    return str(request.param)


def known(ds: ImageFolder) -> dict[str, Callable[[], Any]]:
    """Everything that an index is asked for, as functions whose results can be compared."""
    rows = np.arange(len(ds))
    return {
        "labels": lambda: None if ds.labels is None else ds.labels.tolist(),
        "sizes": lambda: ds.sizes.tolist(),
        "upright sizes": lambda: ds._index.upright_sizes.all.tolist(),
        "codings": lambda: ([ds.codings[1][c] for c in ds.codings[0]]),
        "file sizes": lambda: ds.file_sizes.tolist(),
        "orientation": lambda: ds._index.orientation.all.tolist(),
        "bad": lambda: ds.bad(rows),
        "paths": lambda: [bytes(p) for p in ds.encoded_paths(rows)],
        "places": lambda: [ds.place(i) for i in range(len(ds))],
        "stale": lambda: ds._index.stale(ds.source),
        "reusable": lambda: ds._index.reusable().tolist(),
        "fingerprint": lambda: ds.fingerprint,
    }


def truth(ds: ImageFolder) -> dict[str, Any]:
    return {name: ask() for name, ask in known(ds).items()}


def flip(file: Path, at: int) -> None:
    """In place, as a disk does."""
    with open(file, "r+b") as f:
        f.seek(at)
        byte = f.read(1)[0]
        f.seek(at)
        f.write(bytes([byte ^ 0x40]))


def answers(ds: ImageFolder, want: dict[str, Any]) -> int:
    """0: all are right; 1: those that are not refused are right; 2: one is wrong."""
    refused = 0
    for name, ask in known(ds).items():
        try:
            if ask() != want[name]:
                return 2
        except ColumnsError:
            refused = 1
    return refused


class TestFlips:
    @pytest.mark.slow
    def test_every_flipped_byte_is_found_when_it_is_opened(
        self, tree: Path, size: str, caplog: pytest.LogCaptureFixture
    ) -> None:
        good = ImageFolder(tree)
        file, want = index_file(good), truth(good)
        parts = regions(file)
        content = file.read_bytes()
        assert {"labels", "sizes", "status", "coding", "path_blob", "path_offsets", "sums", "header"} <= parts.keys()
        assert "padding before sizes" in parts
        for name, (start, end) in parts.items():
            for at in {start, (start + end) // 2, end - 1}:
                file.unlink()
                file.write_bytes(content)
                file.chmod(0o600)
                flip(file, at)
                caplog.clear()
                with caplog.at_level(logging.WARNING, "gpupipe"):
                    ds = ImageFolder(tree)
                assert ds.index_summary().built and "built again" in caplog.text, (name, at)
                assert truth(ds) == want, (name, at)

    def test_what_is_spoiled_later_is_an_error_or_does_not_matter(self, tree: Path, size: str) -> None:
        """In place, while datasets have it open: each answer is right, or none."""
        file = index_file(ImageFolder(tree))
        want, content = truth(ImageFolder(tree)), file.read_bytes()
        refused, messages = set(), set()
        for name, (start, end) in regions(file).items():
            fresh, used = ImageFolder(tree), ImageFolder(tree)
            assert truth(used) == want
            flip(file, (start + end) // 2)
            for ds in (fresh, used):
                for what, ask in known(ds).items():
                    try:
                        assert ask() == want[what], (name, what)
                    except ColumnsError as e:
                        refused.add((name, what))
                        messages.add(str(e))
            with open(file, "r+b") as f:
                f.write(content)
        assert all(str(file) in m and "Make the dataset again" in m for m in messages)
        assert size != "in memory" or not refused
        if size != "in memory":
            assert {("labels", "labels"), ("path_blob", "paths"), ("file_size", "file sizes")} <= refused

    def test_a_file_that_is_cut_in_place_ends_no_process(self, tree: Path, size: str) -> None:
        """Of a file that is mapped it would be SIGBUS."""
        file = index_file(ImageFolder(tree))
        want, content = truth(ImageFolder(tree)), file.read_bytes()
        for length in (len(content) - 1, 5000, 0):
            fresh, used = ImageFolder(tree), ImageFolder(tree)
            truth(used)
            os.truncate(file, length)
            refused = size != "in memory" and length <= 5000
            assert in_a_child(answers, fresh, want) == refused
            assert in_a_child(answers, used, want) == refused
            with open(file, "r+b") as f:
                f.write(content)

    def test_a_file_that_is_replaced_stays_as_it_was_for_those_who_have_it(self, tree: Path, size: str) -> None:
        before = ImageFolder(tree)
        want = {name: ask() for name, ask in known(ImageFolder(tree)).items() if name != "stale"}
        (tree / "a/1.png").unlink()
        png(tree / "b/9.png", 30, 40)
        after = ImageFolder(tree)
        assert after.index_summary().built and index_file(after) == index_file(before)
        assert {name: ask() for name, ask in known(before).items() if name != "stale"} == want
        os.unlink(index_file(after))
        assert len(after.samples) == 6 and after.sizes.tolist()[-2] == [30, 40]

    def test_it_is_sent_to_other_processes(self, tree: Path, size: str, monkeypatch: pytest.MonkeyPatch) -> None:
        ds = ImageFolder(tree)
        want = truth(ds)
        assert truth(pickle.loads(pickle.dumps(ds))) == want
        monkeypatch.setenv("GPUPIPE_CACHE", str(tree / "a/1.png"))  # a file: nothing can be kept there
        unnamed = ImageFolder(tree)
        assert unnamed.index_summary().path is None
        assert truth(unnamed) == want == truth(pickle.loads(pickle.dumps(unnamed)))

    def test_rows_outside_are_no_rows_of_another_column(self, tree: Path, size: str) -> None:
        column = ImageFolder(tree)._index.status
        for rows in ([6], [-7], [0, 10**6]):
            with pytest.raises(IndexError):
                column.rows(np.array(rows))
        with pytest.raises(IndexError):
            column.part(3, 7)


class TestDamage:
    @pytest.mark.parametrize(
        "damage",
        [
            lambda b: b"",
            lambda b: b[:10],
            lambda b: b[:64],
            lambda b: b[: len(b) // 2],
            lambda b: b[:-1],
            lambda b: b + b"\0",
            lambda b: b"X" + b[1:],
            lambda b: b[:8] + b"\xff\xff\xff\xff" + b[12:],
            lambda b: b[:12] + b"\xff\xff\xff\xff" + b[16:],
            lambda b: b[:16] + b"\xff" * 8 + b[24:],
            lambda b: b[:80] + b"\xff" + b[81:],
            lambda b: os.urandom(len(b)),
            lambda b: hostile({}, []),
            lambda b: hostile({"count": 10**30}, [COLUMN]),
            lambda b: sealed(b"[" * 100_000),
        ],
    )
    def test_is_rebuilt_with_a_warning(
        self, tree: Path, damage: Callable[[bytes], bytes], caplog: pytest.LogCaptureFixture
    ) -> None:
        good = ImageFolder(tree)
        file = index_file(good)
        content = file.read_bytes()
        file.unlink()  # not in place: the open index above would see it
        file.write_bytes(damage(content))
        with caplog.at_level(logging.WARNING, "gpupipe"):
            ds = ImageFolder(tree)
        assert ds.index_summary().built and ds.samples == good.samples
        assert len([r for r in caplog.records if "built again" in r.message]) == 1
        assert not ImageFolder(tree).index_summary().built

    @pytest.mark.parametrize(
        "change",
        [
            {"shape": [10**18]},
            {"shape": [2**62, 4]},
            {"shape": [0, 2**63]},
            {"shape": [-1]},
            {"shape": [True]},
            {"shape": [1.0]},
            {"shape": [1, 1, 1]},
            {"shape": "4"},
            {"shape": None},
            {"offset": -64},
            {"offset": 1},
            {"offset": 4096},
            {"offset": 2**64},
            {"offset": "0"},
            {"dtype": "O"},
            {"dtype": "<f4"},
            {"dtype": ["<i8"]},
            {"dtype": None},
            {"name": 3},
        ],
    )
    def test_hostile_columns(self, tmp_path: Path, change: dict[str, Any]) -> None:
        (tmp_path / "ok").write_bytes(hostile({}, [COLUMN]))
        assert Columns.open(str(tmp_path / "ok")).column("x", "<i8", 4).all.tolist() == [0] * 4
        (tmp_path / "x").write_bytes(hostile({}, [{**COLUMN, **change}]))
        with pytest.raises(ColumnsError):
            Columns.open(str(tmp_path / "x"))

    @pytest.mark.parametrize(
        "content",
        [
            *(hostile({}, [COLUMN, COLUMN]), hostile({}, {}), hostile([], []), hostile({}, [3])),
            *map(sealed, (b"{}", b"null", b"1" * 5000, b"\xff\xfe", b"[" * 100_000, b'{"meta":' * 50_000)),
            sealed(b'{"meta": {}, "columns": ' + b"[" * 100_000),
            sealed(b'{"meta": {"count": ' + b"9" * 10_000 + b"}}"),
            sealed(
                b'{"meta": {}, "columns": [{"name": "x", "dtype": "|u1", "shape": [0, 1%s], "offset": 0}]}'
                % (b"0" * 30)
            ),
        ],
    )
    def test_hostile_headers(self, tmp_path: Path, content: bytes) -> None:
        (tmp_path / "x").write_bytes(content)
        with little_memory(), pytest.raises(ColumnsError):
            Columns.open(str(tmp_path / "x"))

    @pytest.mark.parametrize("name", ["path_offsets", "sizes", "bad_rows", "labels", "folder_offsets"])
    def test_wrong_values_do_not_crash(self, tree: Path, name: str) -> None:
        """A file that is well formed but lies: refused, or wrong answers; never a crash."""
        (tree / "a/1.png").write_bytes(b"")
        age(tree)
        ds = ImageFolder(tree)
        columns = Columns.open(str(index_file(ds)))
        for value in (-(2**62), -1, 2**31 - 1, 2**62):
            arrays = arrays_of(columns)
            arrays[name].flat[:] = np.array(value).astype(arrays[name].dtype)
            with open(index_file(ds).with_suffix(".evil"), "w+b") as f:
                write_columns(f, arrays, columns.meta)
                opened = Columns(f.fileno(), None)
            try:
                evil = index_module.Index(opened)
            except DatasetError:
                continue
            evil.stale(ds.source)
            evil.encoded(np.arange(4), b"/")
            evil.all_bad()
