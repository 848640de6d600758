"""Many processes that want the same index at the same time: one builds it, and all have the same."""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
import random
import re
import signal
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from index_files import age, png
from support import in_threads

from gpupipe import cache_folder as cache_module
from gpupipe.codecs.probe import probe as header_of
from gpupipe.datasets import ImageFolder
from gpupipe.datasets.index import open_index as build, probe_pool as pool
from gpupipe.datasets.index.column_file import write_columns

PROCESSES = 10


@pytest.fixture(params=["old", "fresh"])
def tree(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """Whose files were changed long ago, or just now."""
    root = tmp_path / "tree"
    for i in range(12):
        png(root / f"{i % 3}" / f"{i}.png", 5 + i, 7)
    (root / "2/bad.png").write_bytes(b"no image")
    if request.param == "old":
        age(root)
    return root


@pytest.fixture(params=["locks", "nowhere to write"])
def place(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> str:
    """What the file system of the cache can do."""
    if request.param == "nowhere to write":
        (tmp_path / "file").write_text("")
        monkeypatch.setenv("GPUPIPE_CACHE", str(tmp_path / "file"))
    return str(request.param)


@pytest.fixture(autouse=True)
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Building takes a while."""
    real = header_of

    def probe(*arguments: Any) -> Any:
        time.sleep(0.02)
        return real(*arguments)

    monkeypatch.setattr(pool, "probe", probe)


class Child:
    """A process that writes what ``work`` gives to a file."""

    def __init__(self, out: Path, work: Callable[[], Any]):
        self.out = out
        if not (pid := os.fork()):
            try:
                out.write_text(json.dumps(work()))
            finally:
                os._exit(0)
        self.pid = pid

    def result(self, timeout: float = 60) -> Any:
        until = time.monotonic() + timeout
        while not os.waitpid(self.pid, os.WNOHANG)[0]:
            if time.monotonic() > until:
                os.kill(self.pid, signal.SIGKILL)
                os.waitpid(self.pid, 0)
                pytest.fail("a process hangs")
            time.sleep(0.01)
        return json.loads(self.out.read_text())


def index(tree: Path, delay: float = 0.0) -> dict[str, Any]:
    time.sleep(delay)
    ds = ImageFolder(tree)
    summary = ds.index_summary()
    return {
        "fingerprint": ds.fingerprint,
        "built": summary.built,
        "sizes": ds.sizes.tolist(),
        "samples": ds.samples,
        "bad": [b.index for b in summary.bad],
        "path": summary.path,
    }


def same(results: list[dict[str, Any]]) -> bool:
    return all({**r, "built": None} == {**results[0], "built": None} for r in results)


@pytest.mark.part(of=3)
@pytest.mark.slow
def test_one_of_ten_builds(tree: Path, place: str, tmp_path: Path) -> None:
    """Some come when it is being built, and some when that is just over."""
    delays = random.Random(0)
    children = [Child(tmp_path / f"{i}.json", partial(index, tree, delays.random() / 2)) for i in range(PROCESSES)]
    results = [child.result() for child in children]
    assert same(results) and len(results[0]["samples"]) == 13 and results[0]["bad"] == [12]
    assert sum(r["built"] for r in results) == (PROCESSES if place == "nowhere to write" else 1)


@pytest.mark.part(of=2)
@pytest.mark.slow
def test_a_builder_that_is_killed_is_replaced(tree: Path, place: str, tmp_path: Path, cache: Path) -> None:
    def doomed() -> None:
        def dies(file: Any, *arguments: Any) -> None:
            write_columns(file, *arguments)
            (tmp_path / "writing").touch()
            time.sleep(60)

        build.write_columns = dies  # type: ignore[assignment, attr-defined]
        ImageFolder(tree)

    first = Child(tmp_path / "first.json", doomed)
    until = time.monotonic() + 30
    while not (tmp_path / "writing").exists() and time.monotonic() < until:
        time.sleep(0.01)
    others = [Child(tmp_path / f"{i}.json", lambda: index(tree)) for i in range(3)]
    time.sleep(0.3)  # they wait for it
    os.kill(first.pid, signal.SIGKILL)
    os.waitpid(first.pid, 0)
    results = [child.result() for child in others]
    assert same(results)
    if place == "nowhere to write":
        return
    assert sum(r["built"] for r in results) == 1
    (left,) = cache.glob("index/*.tmp")  # its writer was killed a moment ago
    os.utime(left, (1, 1))
    ImageFolder(tree).reindex()
    assert not left.exists()
    assert {p.suffix for p in cache.glob("index/*")} <= {".TAG", ".gpupipe-index"}


def test_one_at_a_time(tmp_path: Path) -> None:
    """Holders remove the file, while others have just opened it."""
    path, inside, most = str(tmp_path / "index" / "x"), list[int](), list[int]()

    def work() -> None:
        for _ in range(20):
            with cache_module.locked(path):
                inside.append(1)
                most.append(len(inside))
                time.sleep(0.001)
                inside.pop()

    in_threads(*[work] * 8)
    assert most == [1] * 160
    assert not Path(path + ".building").exists()


def test_a_file_system_without_locks(
    tree: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*args: Any) -> None:
        raise OSError(errno.ENOLCK, "no locks here")

    monkeypatch.setattr(fcntl, "flock", refuse)
    caplog.set_level(logging.INFO)
    assert ImageFolder(tree).index_summary().built
    assert "no locks here" in caplog.text
    assert not ImageFolder(tree).index_summary().built


def test_a_forked_child_does_not_keep_the_lock(tmp_path: Path) -> None:
    path = str(tmp_path / "index" / "x")
    with cache_module.locked(path):
        child = Child(tmp_path / "child.json", lambda: time.sleep(60))
    with cache_module.locked(path):
        assert not os.waitpid(child.pid, os.WNOHANG)[0]
    os.kill(child.pid, signal.SIGKILL)
    os.waitpid(child.pid, 0)


@pytest.mark.part(of=2)
@pytest.mark.slow
def test_the_fingerprint_depends_on_the_files_alone(tree: Path, tmp_path: Path, cache: Path) -> None:
    """Not on who builds, in which order, how much is kept from an older index, or where it lies."""
    ways = []
    for kept in (0, 3, 13):
        for workers in (False, True):
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv("GPUPIPE_CACHE", str(tmp_path / f"cache-{kept}-{workers}"))
                patch.setattr(pool.PictureProber, "pool_from", 1 if workers else 10**9)
                patch.setattr(pool.PictureProber, "chunk", 2)
                age(tree)
                if kept:
                    ImageFolder(tree)
                for file in sorted(p for p in tree.rglob("*") if p.is_file())[kept:]:
                    os.utime(file, (1, 1))
                ds = ImageFolder(tree)
                ways.append((ds.fingerprint, ds.sizes.tolist()))
                assert ds.index_summary().reused == (kept if ds.index_summary().built else 0)
    assert all(way == ways[0] for way in ways)


def test_what_was_built_while_one_waited_is_believed(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also if the files have times in the future, so that the next process builds it again."""
    then = time.time_ns() + 3_600_000_000_000
    os.utime(next(tree.rglob("*.png")), ns=(then, then))
    source = ImageFolder(tree)._source
    os.unlink(build.index_path(source))
    real = cache_module.locked

    def another_was_faster(path: str, what: str) -> Any:
        with monkeypatch.context() as patch:
            patch.setattr(cache_module, "locked", real)
            build.open_index(source)
        return real(path)

    monkeypatch.setattr(cache_module, "locked", another_was_faster)
    index = build.open_index(source)
    assert index.racy and not index.built


def test_who_waits_says_for_what(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    place = index(tree)["path"]
    png(tree / "0" / "more.png", 5, 7)
    monkeypatch.setattr(cache_module, "SILENCE", 0.1)
    holds = tmp_path / "holds"

    def hold() -> None:
        with cache_module.locked(place):
            holds.touch()
            time.sleep(0.6)

    other = Child(tmp_path / "other.json", hold)
    while not holds.exists():
        time.sleep(0.01)
    assert len(index(tree)["samples"]) == 14
    other.result()
    (told,) = [record.getMessage() for record in caplog.records if "waiting" in record.getMessage()]
    what = re.escape(f"building the index of {tree}/")
    assert re.fullmatch(rf"waiting for process {other.pid} on \S+, which is {what}", told)
