"""The index: rebuilt when and only when files changed, never trusted, never in the way of another process."""

from __future__ import annotations

import fcntl
import io
import os
import pickle
import re
import shutil
import signal
import stat
import struct
import sys
import tarfile
import time
import zlib
from collections.abc import Callable
from io import TextIOWrapper
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from index_files import OLD_NS, age, index_file, png
from PIL import Image
from support import add_member, spawned

from gpupipe import cache_folder as cache_module
from gpupipe.codecs.files import Place
from gpupipe.codecs.limits import Limits
from gpupipe.codecs.probe import MISSING, UNREADABLE, Probe, probe, send
from gpupipe.datasets import ImageFolder, ImageList, WebDataset
from gpupipe.datasets.index import (
    open_index as build,
    probe_pool as pool,
    progress as progress_module,
    table as index_module,
)
from gpupipe.datasets.index.progress import Progress


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

    def spy(place: Place, limits: Limits) -> Probe:
        seen.append(place.path)
        return real(place, limits)

    monkeypatch.setattr(pool, "probe", spy)
    return seen


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

    @pytest.mark.parametrize("after", [0, 1, 2])
    def test_a_folder_that_fails_in_the_middle(self, tree: Path, monkeypatch: pytest.MonkeyPatch, after: int) -> None:
        real = os.scandir

        class Entries:
            def __init__(self, path: str):
                with real(path) as entries:
                    self._left = sorted(entries, key=lambda entry: entry.is_file())  # the subfolder comes first
                self._fails = path.endswith("/b/deep")

            def __enter__(self) -> Entries:
                return self

            def __exit__(self, *exc: object) -> None: ...

            def __iter__(self) -> Entries:
                return self

            def __next__(self) -> os.DirEntry[str]:
                if self._fails and len(self._left) == 2 - after:
                    raise OSError(5, "Input/output error")
                if not self._left:
                    raise StopIteration
                return self._left.pop(0)

        png(tree / "b/deep/deeper/1.png")
        with monkeypatch.context() as patch:
            patch.setattr(os, "scandir", lambda path: Entries(os.fspath(path)))
            walked = [os.path.join(folder, name) for folder, _, names in os.walk(tree) for name in names]
            found = [path for path, _ in ImageFolder(tree).samples]
        assert found == sorted(walked)
        assert found == [str(tree / f"{name}.png") for name in ("a/1", "a/2", "b/1")]

    def test_unreadable_becomes_readable(self, tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        # chmod leaves the times alone, and the tests may run as root, whom chmod does not stop.
        refused = Probe(UNREADABLE, reason="Permission denied")
        with monkeypatch.context() as patch:
            patch.setattr(pool, "probe", lambda place, limits: refused)
            assert [b.kind for b in ImageFolder(tree).bad(np.arange(4))] == ["unreadable"] * 4
        assert ImageFolder(tree).bad(np.arange(4)) == []

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


class TestTouched:
    """Size and time of modification are the same, and the inode changed."""

    def replace(self, path: Path, content: bytes) -> None:
        """As ``cp -p`` from a file that has the same size and time."""
        before = path.stat()
        assert len(content) == before.st_size
        path.write_bytes(content)
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))

    @staticmethod
    def bitmap(size: tuple[int, int]) -> bytes:
        file = io.BytesIO()
        Image.new("RGB", size).save(file, "BMP")
        return file.getvalue()

    @pytest.fixture
    def bitmaps(self, tmp_path: Path) -> Path:
        root = tmp_path / "tree"
        (root / "a").mkdir(parents=True)
        for k in range(3):
            (root / f"a/{k}.bmp").write_bytes(self.bitmap((16, 8)))
        age(root)
        return root

    def test_an_image_of_the_same_size_and_time(self, bitmaps: Path) -> None:
        assert ImageFolder(bitmaps).sizes.tolist() == [[8, 16]] * 3
        self.replace(bitmaps / "a/1.bmp", self.bitmap((8, 16)))
        found = ImageFolder(bitmaps)
        assert found.sizes.tolist() == [[8, 16], [16, 8], [8, 16]]
        assert found.index_summary().built and found.index_summary().reused == 2

    def chmod(self, path: Path) -> None:
        path.chmod(0o600)

    def link(self, path: Path) -> None:
        os.link(path, path.parent.parent.with_name("backup"))

    @pytest.mark.parametrize("touch", [chmod, link])
    def test_what_is_the_same_is_probed_once(
        self, touch: Callable[..., None], bitmaps: Path, probed: list[bytes]
    ) -> None:
        first = ImageFolder(bitmaps)
        del probed[:]
        touch(self, bitmaps / "a/1.bmp")
        for reads in ([os.fsencode(bitmaps / "a/1.bmp")], []):
            again = ImageFolder(bitmaps)
            assert again.index_summary().built == bool(reads) and again.fingerprint == first.fingerprint
            assert probed == reads
            del probed[:]

    def shard(self, path: Path, labels: str) -> Path:
        with tarfile.open(path, "w") as tar:
            for k, label in enumerate(labels):
                for name, data in ((f"{k}.bmp", self.bitmap((16, 8))), (f"{k}.cls", label.encode())):
                    add_member(tar, name, data)
        os.utime(path, ns=(OLD_NS, OLD_NS))
        return path

    def test_labels_of_a_shard_of_the_same_size_and_time(self, tmp_path: Path) -> None:
        path = self.shard(tmp_path / "a.tar", "0123")
        assert WebDataset(path).labels.tolist() == [0, 1, 2, 3]
        self.shard(path, "0173")
        assert WebDataset(path).labels.tolist() == [0, 1, 7, 3]

    def test_rows_of_other_shards_are_kept(self, tmp_path: Path, probed: list[bytes]) -> None:
        paths = [self.shard(tmp_path / f"{k}.tar", "0123") for k in range(2)]
        first = WebDataset(paths)
        del probed[:]
        self.chmod(paths[1])
        again = WebDataset(paths)
        assert again.index_summary().reused == 4 and again.fingerprint == first.fingerprint
        assert probed == [os.fsencode(paths[1])] * 4


class TestRacy:
    def resized(self, file: Path) -> None:
        """Another image of the same length and time, as if it were written in the same tick of the clock."""
        found = file.stat()
        data = bytearray(file.read_bytes())
        data[16:24] = struct.pack(">II", 8, 9)
        data[29:33] = struct.pack(">I", zlib.crc32(bytes(data[12:29])))
        file.write_bytes(data)
        os.utime(file, ns=(found.st_atime_ns, found.st_mtime_ns))

    @pytest.mark.parametrize("what", ["a/1.png", "b"])
    def test_a_scan_waits_until_every_later_change_will_show(
        self, tree: Path, monkeypatch: pytest.MonkeyPatch, what: str
    ) -> None:
        real, waits = time.sleep, []

        def meanwhile(seconds: float) -> None:
            waits.append(seconds)
            self.resized(tree / "a/1.png")
            real(seconds)

        monkeypatch.setattr(time, "sleep", meanwhile)
        os.utime(tree / what)
        ds = ImageFolder(tree)
        assert len(waits) == 1 and waits[0] < 0.2 and ds.sizes[0].tolist() == [9, 8]
        assert not ds._index.racy and not ImageFolder(tree).index_summary().built
        newest = (tree / what).stat().st_mtime_ns
        assert ds._index.columns.meta["started_ns"] > newest + 100_000_000

    def test_a_file_system_of_whole_seconds_has_longer_ticks(self) -> None:
        second = 1_000_000_000
        now = 1_700_000_000 * second
        times = np.array([now, now + 1, now - second, now - second + 1, now - 3 * second])
        assert index_module.is_racy(times, now + 1).tolist() == [True, True, True, False, False]
        assert index_module.until_settled(times, now) == 2.0
        assert index_module.until_settled(times[1:2], now) == pytest.approx(0.1, abs=1e-6)
        assert index_module.until_settled(times[4:], now) == 0
        assert index_module.until_settled(times + 60 * second, now) == 0  # not to be waited for

    def test_times_in_the_future_are_not_believed(
        self, tree: Path, probed: list[bytes], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        now = time.time_ns()
        file = tree / "a/1.png"
        os.utime(file, ns=(now + 10**10,) * 2)
        assert ImageFolder(tree)._index.racy
        self.resized(file)
        probed.clear()
        assert ImageFolder(tree).sizes[0].tolist() == [9, 8]
        assert probed == [os.fsencode(file)]
        monkeypatch.setattr(time, "time_ns", lambda: now + 2 * 10**10)
        assert ImageFolder(tree).index_summary().built
        assert not ImageFolder(tree).index_summary().built

    @pytest.mark.parametrize(("hours", "racy"), [(-1, False), (1, True), (24 * 365, False)])
    def test_how_far_in_the_future(self, tree: Path, hours: int, racy: bool) -> None:
        then = time.time_ns() + hours * 3_600_000_000_000
        os.utime(tree / "a/1.png", ns=(then, then))
        assert ImageFolder(tree)._index.racy == racy


class TestCache:
    def test_place_and_permissions(
        self, tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cache: Path
    ) -> None:
        assert index_file(ImageFolder(tree)).parent == cache / "index"
        monkeypatch.delenv("GPUPIPE_CACHE")
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
        old = os.umask(0)
        try:
            file = index_file(ImageFolder(tree))
        finally:
            os.umask(old)
        assert file.parent == tmp_path / "xdg/gpupipe/index"
        for folder in (file.parent, file.parent.parent):
            assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        assert (file.parent / "CACHEDIR.TAG").read_text().startswith("Signature: 8a477f597d28d172789f06886806bc55")
        assert stat.S_IMODE(file.stat().st_mode) == 0o600 and cache_module.distrust(file.stat()) is None
        monkeypatch.delenv("XDG_CACHE_HOME")
        monkeypatch.setenv("HOME", str(tmp_path / "home"))
        assert cache_module.cache_folder("index") == str(tmp_path / "home/.cache/gpupipe/index")

    def test_only_our_own_leftovers_are_removed(self, tree: Path) -> None:
        file = index_file(ImageFolder(tree))
        stale = file.with_name(file.name + ".123-abc.tmp")
        others = [file.with_name(n) for n in ("notes.txt", "x.tmp", "other.gpupipe-index", file.name + ".1-2.tmp")]
        written = file.with_name(file.name + ".1-3.tmp")
        for path in (stale, written, *others):
            path.write_text("")
        for path in (stale, written, *others[:3]):
            os.utime(path, (1e9, 1e9))
        with open(written) as f:
            fcntl.flock(f, fcntl.LOCK_EX)  # somebody is slow
            ImageFolder(tree).reindex()
        assert not stale.exists() and written.exists() and all(p.exists() for p in others)
        ImageFolder(tree).reindex()
        assert not written.exists()

    def test_no_place_to_write(
        self, tree: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        (tmp_path / "file").write_text("")
        monkeypatch.setenv("GPUPIPE_CACHE", str(tmp_path / "file"))
        ds = ImageFolder(tree)
        assert len(ds) == 4 and ds.index_summary().path is None and "GPUPIPE_CACHE" in caplog.text
        assert pickle.loads(pickle.dumps(ds)).samples == ds.samples

    def test_failed_write_leaves_nothing(self, tree: Path, monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
        def fail(*args: Any) -> None:
            raise RuntimeError("power cut")

        monkeypatch.setattr(build, "write_columns", fail)
        with pytest.raises(RuntimeError):
            ImageFolder(tree)
        assert [p.suffix for p in (cache / "index").iterdir()] == [".TAG"]

    def test_pixel_limit_has_its_own_index(self, tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        png(tree / "a/1.png", 50, 50)
        assert ImageFolder(tree).bad(np.arange(4)) == []
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 1000)
        assert [b.kind for b in ImageFolder(tree).bad(np.arange(4))] == ["bomb"]


def many(root: Path, count: int) -> Path:
    """``count`` tiny images of different sizes, quickly; every 500th is bad."""
    (root / "c").mkdir(parents=True)
    for i in range(count):
        with open(root / "c" / f"{i:06}.ppm", "wb") as f:
            if i % 500 != 7:
                f.write(b"P4 %d %d\n" % (i + 1, 2 * i + 1))
                f.truncate(f.tell() + (i + 8) // 8 * (2 * i + 1))  # pixels that take no place on the disk
    return root


@pytest.mark.slow
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
            send(process.stdin.buffer, [Place(b"/nowhere"), Place(b"/dev/null")])
            assert [r.status for r in pickle.load(process.stdout.buffer)] == [MISSING, UNREADABLE]
            maps = Path(f"/proc/{process.pid}/maps").read_text()
            assert "_imaging" in maps and "numpy" not in maps and "torch" not in maps
            process.communicate(timeout=10)  # closes stdin
        assert process.returncode == 0

    @pytest.mark.part("program")
    @pytest.mark.parametrize(
        "program",
        ["raise SystemExit(3)", "import os; os.kill(os.getpid(), 9)", "print('hello ' * 1000)", None],
        ids=["exits", "killed", "prints", "no-program"],
    )
    def test_workers_that_do_not_work(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, probed: list[bytes], program: str | None
    ) -> None:
        command = ["/nowhere/python"] if program is None else [sys.executable, "-c", program]
        monkeypatch.setattr(pool, "_command", lambda reader: command)
        self.check(ImageFolder(many(tmp_path / "t", self.COUNT)))
        assert len(probed) == self.COUNT

    def test_a_file_that_takes_its_reader_down(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        boot = pool._BOOT.replace(
            "importlib.import_module(program)",
            "import os, gpupipe.codecs.probe as m; real = m.probe\n"
            "m.probe = lambda p, *n: os.kill(os.getpid(), 11) if b'000123' in p.path else real(p, *n)\n"
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

        def remember(self: Any, reader: Any) -> None:
            real(self, reader)
            started.append(self._process)

        def interrupt(self: Any, i: int, result: Probe) -> None:
            raise KeyboardInterrupt

        monkeypatch.setattr(pool._Worker, "__init__", remember)
        monkeypatch.setattr(build.Probed, "put", interrupt)
        with pytest.raises(KeyboardInterrupt):
            ImageFolder(many(tmp_path / "t", self.COUNT))
        assert started and all(p.poll() is not None for p in started)
        assert not [t for t in threading.enumerate() if t.name == "gpupipe-probe"]


def test_a_line_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    with Progress("reading headers", 10) as progress:
        progress(1)
        assert terminal.getvalue() == ""  # what is over at once shows nothing
        progress._began, progress._next_line = progress._began - 3, progress._next_line - 3
        progress(5)
    assert re.fullmatch(r"\r\x1b\[Kgpupipe: reading headers: 5 of 10 files, \d files/s\r\x1b\[K", terminal.getvalue())


@pytest.mark.parametrize("rank", [None, "0", "1"])
def test_lines_where_there_is_no_terminal(rank: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    if rank is not None:
        monkeypatch.setenv("LOCAL_RANK", rank)
    monkeypatch.setattr(sys, "stderr", log := io.StringIO())
    now = iter([100.0, 100.9, 101.1, 120.0, 131.2, 132.5, 200.0, 200.5])
    monkeypatch.setattr(progress_module, "_now", lambda: next(now))
    with Progress("reading headers", 4000) as progress:
        for done in (10, 1000, 2000, 3000):
            progress(done)
    with Progress("reading headers", 4000):
        pass  # over at once
    lines = ["1,000 of 4,000 files", "3,000 of 4,000 files", "3,000 files in 32.5 s"]
    assert log.getvalue() == ("" if rank == "1" else "".join(f"gpupipe: reading headers: {line}\n" for line in lines))
