"""The index: rebuilt when and only when files changed, never trusted, never in the way of another process."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shutil
import signal
import stat
import struct
import sys
import time
import zlib
from collections.abc import Callable
from io import TextIOWrapper
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from support import spawned

from gpupipe.codecs.files import Place
from gpupipe.codecs.probe import UNREADABLE, Probe, pack, pack_places, probe, receive, send, unpack, unpack_places
from gpupipe.datasets import ImageFolder, ImageList
from gpupipe.datasets.index import cache as cache_module, open_index as build, probe_pool as pool, table as index_module
from gpupipe.datasets.index.column_file import Columns, ColumnsError, write_columns
from gpupipe.errors import DatasetError

OLD_NS = 1_500_000_000_000_000_000


def png(path: Path, height: int = 5, width: int = 7) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (width, height)).save(path)
    return path


def age(root: Path, ns: int = OLD_NS) -> None:
    """Make everything below ``root`` old, so that its index is not racy."""
    for folder, _, files in os.walk(root):
        for name in files:
            os.utime(os.path.join(folder, name), ns=(ns, ns), follow_symlinks=False)
        os.utime(folder, ns=(ns, ns))


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "tree"
    for name in ("a/1", "a/2", "b/1", "b/deep/1"):
        png(root / f"{name}.png")
    age(root)
    return root


@pytest.fixture
def probed(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """The files whose headers were read in this process."""
    seen: list[bytes] = []
    real = probe

    def spy(place: Place, max_pixels: int | None = None) -> Probe:
        seen.append(place.path)
        return real(place, max_pixels)

    monkeypatch.setattr(pool, "probe", spy)
    return seen


def index_file(ds: Any) -> Path:
    path = ds.index_summary().path
    assert path is not None
    return Path(path)


class TestRebuild:
    def test_second_opening_reads_the_cache(self, tree: Path, probed: list[bytes]) -> None:
        first = ImageFolder(tree)
        assert first.index_summary().built and len(probed) == 4
        again = ImageFolder(tree)
        assert not again.index_summary().built and len(probed) == 4
        assert again.samples == first.samples and again.fingerprint == first.fingerprint
        assert (again.sizes == first.sizes).all()

    @pytest.mark.parametrize(
        ("change", "reads"),
        [
            (lambda r: png(r / "a/0.png", 3, 3), 1),
            (lambda r: png(r / "b/deep/deeper/9.png", 3, 3), 1),
            (lambda r: png(r / "c/1.png", 3, 3), 1),
            (lambda r: (r / "a/1.png").unlink(), 0),
            (lambda r: (r / "a/1.png").rename(r / "a/3.png"), 1),
            (lambda r: (r / "a/1.png").rename(r / "b/3.png"), 1),
            (lambda r: (r / "a").rename(r / "z"), 2),
            (lambda r: png(r / "a/1.png", 9, 9), 1),
            (lambda r: shutil.rmtree(r / "b/deep"), 0),
            (lambda r: os.utime(r / "a/1.png"), 1),
        ],
        ids=[
            "add",
            "add-deep",
            "add-class",
            "remove",
            "rename",
            "move",
            "rename-class",
            "overwrite",
            "rmtree",
            "touch",
        ],
    )
    def test_every_change_is_seen_and_only_that_is_read(
        self, tree: Path, probed: list[bytes], change: Callable[[Path], Any], reads: int
    ) -> None:
        before = ImageFolder(tree)
        probed.clear()
        change(tree)
        after = ImageFolder(tree)
        assert after.index_summary().built and len(probed) == reads
        assert after.index_summary().reused == len(after) - reads
        # The truth: the same files, indexed without any memory.
        os.environ["GPUPIPE_CACHE"] += "-fresh"  # the cache fixture puts it back
        truth = ImageFolder(tree)
        assert after.samples == truth.samples and after.classes == truth.classes
        assert (after.sizes == truth.sizes).all() and after.fingerprint == truth.fingerprint
        assert len(before) == 4 and before.sizes.tolist() == [[5, 7]] * 4  # an open index stays as it was

    def test_overwritten_in_place_with_the_same_length(self, tree: Path, probed: list[bytes]) -> None:
        ImageFolder(tree)
        file = tree / "a/1.png"
        data = bytearray(file.read_bytes())
        data[16:24] = struct.pack(">II", 8, 9)  # the size in the header; no folder notices
        data[29:33] = struct.pack(">I", zlib.crc32(bytes(data[12:29])))
        file.write_bytes(data)
        os.utime(file, ns=(OLD_NS + 1, OLD_NS + 1))
        probed.clear()
        assert ImageFolder(tree).sizes[0].tolist() == [9, 8] and len(probed) == 1

    def test_large_trees_are_sampled(self, tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        ImageFolder(tree)
        monkeypatch.setattr(index_module, "STAT_ALL", 3)
        monkeypatch.setattr(index_module, "SAMPLED", 2)
        assert index_module.sampled_rows(4).tolist() == [0, 3]
        os.utime(tree / "a/2.png", ns=(OLD_NS + 1, OLD_NS + 1))  # row 1, not in the sample
        assert not ImageFolder(tree).index_summary().built
        os.utime(tree / "b/deep/1.png", ns=(OLD_NS + 1, OLD_NS + 1))  # row 3
        assert ImageFolder(tree).index_summary().built

    def test_sampled_rows(self) -> None:
        assert len(index_module.sampled_rows(20_000)) == 20_000
        rows = index_module.sampled_rows(14_000_000)
        assert len(rows) == 4096 and rows[0] == 0 and rows[-1] == 13_999_999 and (np.diff(rows) > 0).all()

    def test_a_missing_file_appears(self, tmp_path: Path, tree: Path) -> None:
        paths = [tree / "a/1.png", tmp_path / "later.png"]
        assert ImageList(paths).sizes.tolist() == [[5, 7], [0, 0]]
        assert not ImageList(paths).index_summary().built
        png(tmp_path / "later.png", 2, 3)
        ds = ImageList(paths)
        assert ds.sizes.tolist() == [[5, 7], [2, 3]] and ds.bad(np.arange(2)) == []
        (tree / "a/1.png").unlink()
        assert [b.kind for b in ImageList(paths).bad(np.arange(2))] == ["missing"]

    def test_unreadable_becomes_readable(self, tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        # chmod leaves the times alone, and the tests may run as root, whom chmod does not stop.
        refused = Probe(UNREADABLE, reason="Permission denied")
        with monkeypatch.context() as patch:
            patch.setattr(pool, "probe", lambda path, max_pixels: refused)
            assert [b.kind for b in ImageFolder(tree).bad(np.arange(4))] == ["unreadable"] * 4
        assert ImageFolder(tree).bad(np.arange(4)) == []

    def test_new_pillow_reads_what_the_old_one_could_not(self, tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tree / "a/1.png").write_text("a format of the future")
        age(tree)
        assert len(ImageFolder(tree).bad(np.arange(4))) == 1
        assert not ImageFolder(tree).index_summary().built
        monkeypatch.setattr("PIL.__version__", "99.0")
        assert ImageFolder(tree).index_summary().built

    def test_reasons_survive_reuse(self, tree: Path, probed: list[bytes]) -> None:
        (tree / "a/1.png").write_text("no image")
        (tree / "b/1.png").write_bytes(b"")
        age(tree)
        before = [(b.kind, b.reason) for b in ImageFolder(tree).bad(np.arange(4))]
        probed.clear()
        png(tree / "a/0.png")
        ds = ImageFolder(tree)
        assert probed == [os.fsencode(tree / "a/0.png")]
        assert [(b.index, b.kind, b.reason) for b in ds.bad(np.arange(5))] == [(1, *before[0]), (3, *before[1])]

    def test_reindex_reads_everything(self, tree: Path, probed: list[bytes]) -> None:
        ds = ImageFolder(tree)
        assert len(ds.samples) == 4
        png(tree / "c/1.png")
        probed.clear()
        ds.reindex()
        assert len(probed) == 5 == len(ds.samples) and ds.classes == ["a", "b", "c"]

    def test_fingerprint(self, tree: Path, tmp_path: Path) -> None:
        first = ImageFolder(tree).fingerprint
        shutil.copytree(tree, tmp_path / "copy")  # with other times, in another place
        age(tmp_path / "copy", OLD_NS + 5_000_000_000)
        assert ImageFolder(tmp_path / "copy").fingerprint == first
        (tree / "a").rename(tree / "aa")
        renamed = ImageFolder(tree).fingerprint
        png(tree / "aa/1.png", 6, 7)
        resized = ImageFolder(tree).fingerprint
        (tree / "aa/2.png").rename(tree / "aa/3.png")
        assert len({first, renamed, resized, ImageFolder(tree).fingerprint}) == 4


class TestRacy:
    def test_a_change_that_no_time_shows(self, tree: Path, probed: list[bytes]) -> None:
        """Written within the file system's clock tick after the scan, with the same length: only reading tells."""
        now = time.time_ns()
        file = tree / "a/1.png"
        os.utime(file, ns=(now, now))
        assert ImageFolder(tree)._index.racy
        data = bytearray(file.read_bytes())
        data[16:24] = struct.pack(">II", 8, 9)
        data[29:33] = struct.pack(">I", zlib.crc32(bytes(data[12:29])))
        file.write_bytes(data)
        os.utime(file, ns=(now, now))
        probed.clear()
        assert ImageFolder(tree).sizes[0].tolist() == [9, 8]
        assert probed == [os.fsencode(file)]

    def test_ends_when_the_clock_moved_on(self, tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        now = time.time_ns()
        os.utime(tree / "a/1.png", ns=(now, now))
        assert ImageFolder(tree).index_summary().built
        monkeypatch.setattr(time, "time_ns", lambda: now + 10_000_000_000)
        assert ImageFolder(tree).index_summary().built
        assert not ImageFolder(tree).index_summary().built

    @pytest.mark.parametrize(("hours", "racy"), [(-1, False), (0, True), (1, True), (24 * 365, False)])
    def test_times_in_the_future(self, tree: Path, hours: int, racy: bool) -> None:
        then = time.time_ns() + hours * 3_600_000_000_000
        os.utime(tree / "a/1.png", ns=(then, then))
        assert ImageFolder(tree)._index.racy == racy

    def test_folders_count_too(self, tree: Path) -> None:
        os.utime(tree / "b")
        assert ImageFolder(tree)._index.racy


def hostile(meta: Any = None, columns: Any = None) -> bytes:
    """A file with a valid prefix and digest around any header."""
    header = json.dumps({"columns": columns, "meta": meta}).encode()
    return sealed(header)


def sealed(header: bytes, tail: bytes = bytes(4096)) -> bytes:
    first = -(-(64 + len(header)) // 64) * 64
    digest = hashlib.blake2b(header, digest_size=16).digest()
    prefix = struct.pack("<8sIIQ16s", b"GPUPIDX\n", 1, len(header), first + len(tail), digest)
    return (prefix.ljust(64, b"\0") + header).ljust(first, b"\0") + tail


COLUMN = {"name": "x", "dtype": "<i8", "shape": [4], "offset": 0}


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
            lambda b: sealed(b"1" * 5000),
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
        assert any("built again" in r.message for r in caplog.records)
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
            {"dtype": "<f8"},
            {"dtype": ["<i8"]},
            {"dtype": None},
            {"name": 3},
        ],
    )
    def test_hostile_columns(self, tmp_path: Path, change: dict[str, Any]) -> None:
        (tmp_path / "ok").write_bytes(hostile({}, [COLUMN]))
        assert Columns.open(str(tmp_path / "ok")).arrays["x"].tolist() == [0] * 4
        (tmp_path / "x").write_bytes(hostile({}, [{**COLUMN, **change}]))
        with pytest.raises(ColumnsError):
            Columns.open(str(tmp_path / "x"))

    @pytest.mark.parametrize(
        "content", [hostile({}, [COLUMN, COLUMN]), hostile({}, {}), hostile([], []), hostile({}, [3]), sealed(b"{}")]
    )
    def test_hostile_headers(self, tmp_path: Path, content: bytes) -> None:
        (tmp_path / "x").write_bytes(content)
        with pytest.raises(ColumnsError):
            Columns.open(str(tmp_path / "x"))

    @pytest.mark.parametrize("name", ["path_offsets", "sizes", "bad_rows", "labels", "folder_offsets"])
    def test_wrong_values_do_not_crash(self, tree: Path, name: str) -> None:
        """A file that is well formed but lies: refused, or wrong answers; never a crash."""
        (tree / "a/1.png").write_bytes(b"")
        age(tree)
        ds = ImageFolder(tree)
        columns = Columns.open(str(index_file(ds)))
        for value in (-(2**62), -1, 2**31 - 1, 2**62):
            arrays = {k: v.copy() for k, v in columns.arrays.items()}
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

    def test_roundtrip(self, tmp_path: Path) -> None:
        columns: dict[str, np.ndarray[Any, Any]] = {
            "a": np.arange(7, dtype=np.uint8),
            "b": np.arange(6, dtype=np.int32).reshape(3, 2),
            "c": np.empty((0, 2), np.int64),
            "d": np.arange(5, dtype=">i8"),
        }
        with open(tmp_path / "x", "wb") as f:
            write_columns(f, columns, {"n": [1, "é"]})
        back = Columns.open(str(tmp_path / "x"))
        assert back.meta == {"n": [1, "é"]}
        for name, column in columns.items():
            assert back.arrays[name].shape == column.shape and (back.arrays[name] == column).all()
            assert back.offsets[name] % 64 == 0 and not back.arrays[name].flags.writeable
        with pytest.raises(TypeError), open(tmp_path / "y", "wb") as f:
            write_columns(f, {"o": np.array([None])}, {})


class TestCache:
    def test_place_and_permissions(
        self, tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache: Path
    ) -> None:
        assert index_file(ImageFolder(tree)).parent == cache / "index"
        monkeypatch.delenv("GPUPIPE_CACHE")
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
        file = index_file(ImageFolder(tree))
        assert file.parent == tmp_path / "xdg/gpupipe/index"
        for folder in (file.parent, file.parent.parent):
            assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert (file.parent / "CACHEDIR.TAG").read_text().startswith("Signature: 8a477f597d28d172789f06886806bc55")
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
        monkeypatch.delenv("XDG_CACHE_HOME")
        monkeypatch.setenv("HOME", str(tmp_path / "home"))
        assert cache_module.cache_folder("index") == str(tmp_path / "home/.cache/gpupipe/index")

    def test_only_our_own_leftovers_are_removed(self, tree: Path) -> None:
        file = index_file(ImageFolder(tree))
        stale = file.with_name(file.name + ".123-abc.tmp")
        others = [file.with_name(n) for n in ("notes.txt", "x.tmp", "other.gpupipe-index", file.name + ".1-2.tmp")]
        for path in (stale, *others):
            path.write_text("")
        for path in (stale, *others[:3]):
            os.utime(path, (1e9, 1e9))
        ImageFolder(tree).reindex()
        assert not stale.exists() and all(p.exists() for p in others)

    def test_no_place_to_write(
        self, tree: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        (tmp_path / "file").write_text("")
        monkeypatch.setenv("GPUPIPE_CACHE", str(tmp_path / "file"))
        ds = ImageFolder(tree)
        assert len(ds) == 4 and ds.index_summary().path is None and "GPUPIPE_CACHE" in caplog.text
        import pickle

        assert pickle.loads(pickle.dumps(ds)).samples == ds.samples

    def test_failed_write_leaves_nothing(self, tree: Path, monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
        def fail(*args: Any) -> None:
            raise RuntimeError("power cut")

        monkeypatch.setattr(build, "write_columns", fail)
        with pytest.raises(RuntimeError):
            ImageFolder(tree)
        assert sorted(p.suffix for p in (cache / "index").iterdir()) == [".TAG", ".lock"]

    def test_without_locks(self, tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(*args: Any) -> None:
            raise OSError("no locks here")

        monkeypatch.setattr("fcntl.flock", refuse)
        assert ImageFolder(tree).index_summary().path is not None

    def test_pixel_limit_has_its_own_index(self, tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        png(tree / "a/1.png", 50, 50)
        assert ImageFolder(tree).bad(np.arange(4)) == []
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
        assert [b.kind for b in ImageFolder(tree).bad(np.arange(4))] == ["bomb"]

    @pytest.mark.slow
    def test_two_processes_at_once(self, tree: Path) -> None:
        """The second waits, and takes what the first made."""
        code = """
import sys, time
from gpupipe.datasets import ImageFolder
from gpupipe.datasets.index import open_index as build
real = build._build
def slow(*args):
    print("building", flush=True)
    time.sleep(1)
    return real(*args)
build._build = slow
print(len(ImageFolder(sys.argv[1])), flush=True)
"""
        command = [sys.executable, "-c", code, str(tree)]
        with spawned(command) as one, spawned(command) as other:
            output = sorted(p.communicate(timeout=60)[0] for p in (one, other))
        assert [one.returncode, other.returncode] == [0, 0]
        assert output == ["4\n", "building\n4\n"]

    def test_a_racy_tree_is_not_built_by_every_process_that_waited(
        self, tree: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        os.utime(tree / "a")
        source = ImageFolder(tree)._source
        path = build.index_path(source)
        os.unlink(path)
        real = cache_module.locked

        def someone_was_faster(p: str) -> Any:
            with monkeypatch.context() as patch:
                patch.setattr(cache_module, "locked", real)
                build.open_index(source)
            return real(p)

        monkeypatch.setattr(cache_module, "locked", someone_was_faster)
        index = build.open_index(source)
        assert index.racy and not index.built


def many(root: Path, count: int) -> Path:
    """``count`` tiny images of different sizes, quickly; every 500th is bad."""
    (root / "c").mkdir(parents=True)
    for i in range(count):
        with open(root / "c" / f"{i:06}.ppm", "wb") as f:
            if i % 500 != 7:
                f.write(b"P4 %d %d\n" % (i + 1, 2 * i + 1))
                f.truncate(f.tell() + (i + 8) // 8 * (2 * i + 1))  # pixels that take no place on the disk
    return root


class TestPool:
    COUNT = 2500

    def check(self, ds: ImageFolder) -> None:
        expected = np.array([[2 * i + 1, i + 1] if i % 500 != 7 else [0, 0] for i in range(self.COUNT)])
        assert (ds.sizes == expected).all()
        bad = {b.index: b.kind for b in ds.bad(np.arange(self.COUNT))}
        assert bad == {7 + 500 * k: "empty" for k in range(5)}

    def test_workers_read_everything(self, tmp_path: Path, probed: list[bytes]) -> None:
        ds = ImageFolder(many(tmp_path / "t", self.COUNT))
        assert probed == []  # not one in this process
        self.check(ds)
        assert ds.index_summary().formats == {"PPM": self.COUNT - 5}

    def test_workers_import_little(self) -> None:
        with spawned(pool._command()) as process:
            assert isinstance(process.stdin, TextIOWrapper) and isinstance(process.stdout, TextIOWrapper)
            send(process.stdin.buffer, pack_places([Place(b"/nowhere"), Place(b"/dev/null")]))
            answer = receive(process.stdout.buffer)
            assert answer is not None and [r.status for r in unpack(answer)] == [1, 2]
            maps = Path(f"/proc/{process.pid}/maps").read_text()
            assert "_imaging" in maps and "numpy" not in maps and "torch" not in maps
            process.communicate(timeout=10)  # closes stdin
        assert process.returncode == 0

    @pytest.mark.parametrize(
        "program",
        ["raise SystemExit(3)", "import os; os.kill(os.getpid(), 9)", "print('hello ' * 1000)", None],
        ids=["exits", "killed", "prints", "no-program"],
    )
    def test_workers_that_do_not_work(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, probed: list[bytes], program: str | None
    ) -> None:
        command = ["/nowhere/python"] if program is None else [sys.executable, "-c", program]
        monkeypatch.setattr(pool, "_command", lambda max_pixels: command)
        self.check(ImageFolder(many(tmp_path / "t", self.COUNT)))
        assert len(probed) == self.COUNT

    def test_a_file_that_takes_its_reader_down(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        boot = pool._BOOT.replace(
            "importlib.import_module(program)",
            "import os, gpupipe.codecs.probe as m; real = m.probe\n"
            "m.probe = lambda p, n: os.kill(os.getpid(), 11) if b'000123' in p.path else real(p, n)\n"
            "importlib.import_module(program)",
        )
        assert boot != pool._BOOT
        monkeypatch.setattr(pool, "_BOOT", boot)
        ds = ImageFolder(many(tmp_path / "t", self.COUNT))
        bad = {b.index: b for b in ds.bad(np.arange(self.COUNT))}
        assert bad[123].kind == "undecodable" and signal.SIGSEGV.name in bad[123].reason
        assert sorted(bad) == [7, 123, 507, 1007, 1507, 2007] and ds.sizes[124].tolist() == [249, 125]

    def test_interrupt_leaves_no_process(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
        import threading

        started = []
        real = pool._Worker.__init__

        def remember(self: Any, max_pixels: int | None) -> None:
            real(self, max_pixels)
            started.append(self._process)

        def interrupt(self: Any, i: int, result: Probe) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(pool._Worker, "__init__", remember)
        monkeypatch.setattr(build.Probed, "put", interrupt)
        with pytest.raises(KeyboardInterrupt):
            ImageFolder(many(tmp_path / "t", self.COUNT))
        assert started and all(p.poll() is not None for p in started)
        assert not [t for t in threading.enumerate() if t.name == "gpupipe-probe"]

    def test_wire(self) -> None:
        places = [Place(b"/a\nb", 0, -1), Place(b"", 2**40, 7), Place(b"/c" * 4000)]
        assert unpack_places(pack_places(places)) == places
        results = [Probe(0, 2**31 - 1, 1, "JPEG", 8, ""), Probe(4, reason="é" * 5000), Probe(1)]
        back = unpack(b"".join(map(pack, results)))
        assert back[0] == results[0] and back[2] == results[2]
        assert back[1].status == 4 and back[1].reason.startswith("ééé") and len(back[1].reason) <= 1001


def test_quick_answers(tmp_path: Path) -> None:
    """Orders of magnitude, so that a slow machine passes: 256 paths take well under a millisecond."""
    ds = ImageFolder(many(tmp_path / "t", 2500))
    rows = np.random.default_rng(0).permutation(2500)[:256]
    good = rows[rows % 500 != 7]

    def best(f: Callable[[], Any]) -> float:
        times = []
        for _ in range(20):
            began = time.perf_counter()
            f()
            times.append(time.perf_counter() - began)
        return min(times)

    assert best(lambda: ds.encoded_paths(rows)) < 2e-3
    assert best(lambda: ds.bad(good)) < 2e-4
    assert ds.bad(good) == []


def test_bar_and_log_line(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    import io

    from gpupipe.datasets.index.progress import Progress

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    monkeypatch.setenv("TERM", "xterm")
    with Progress("reading headers", 10) as progress:
        progress(1)
        assert terminal.getvalue() == ""  # what is over at once shows nothing
        progress._began -= 3
        progress(5)
    assert "reading headers" in terminal.getvalue() and "files/s" in terminal.getvalue()
    monkeypatch.setattr(sys, "stderr", quiet := io.StringIO())
    with caplog.at_level(logging.INFO, "gpupipe"), Progress("reading headers", 10) as progress:
        progress._began -= 3
        progress(10)
    assert quiet.getvalue() == "" and "reading headers: 10 files in 3.0 s" in caplog.text
