"""Only regular files are opened, of a size that somebody may have meant: everything else has a name and an end."""

from __future__ import annotations

import os
import re
import socket
import tarfile
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from interpreter import Interpreter
from odd_files import JPEG, outcome

from gpupipe import SampleError, transforms as T
from gpupipe.codecs import files as files_module
from gpupipe.codecs.decode import decode
from gpupipe.codecs.files import NOT_A_FILE, Place, Undecodable, open_regular, read_place
from gpupipe.codecs.limits import MAX_BYTES, Limits
from gpupipe.codecs.probe import KINDS, probe
from gpupipe.datasets import ImageFolder, ImageList, Subset, VideoList, WebDataset
from gpupipe.datasets.index import open_index as build, probe_pool as pool
from gpupipe.errors import ConfigError, DatasetError
from gpupipe.reading import check_files
from gpupipe.sources.list_file import read_list

pytestmark = pytest.mark.timeout(120)
WHOLE = T.Compose([T.PILToTensor()])


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as s:
        here = os.getcwd()
        os.chdir(path.parent)  # a socket's path is short
        try:
            s.bind(path.name)
        finally:
            os.chdir(here)


def _sparse(path: Path) -> None:
    path.write_bytes(JPEG)
    os.truncate(path, 3 << 30)  # takes no place on the disk


ODD: dict[str, tuple[Callable[[Path], Any], str]] = {
    "fifo": (os.mkfifo, "unreadable"),
    "folder": (Path.mkdir, "unreadable"),
    "socket": (_socket, "unreadable"),
    "zero": (lambda path: path.symlink_to("/dev/zero"), "unreadable"),
    "null": (lambda path: path.symlink_to("/dev/null"), "unreadable"),
    "endless": (lambda path: path.symlink_to("/proc/self/pagemap"), "empty"),
    "sparse": (_sparse, "bomb"),
}
"""What takes a file's place, and the kind of sample that it is."""
if os.access("/proc/kcore", os.R_OK):
    ODD["core"] = lambda path: path.symlink_to("/proc/kcore"), "bomb"


@pytest.fixture
def odd(tmp_path: Path) -> dict[str, str]:
    """Path and kind of one of each."""
    found = {}
    for name, (make, kind) in ODD.items():
        path = tmp_path / f"{name}.jpg"
        make(path)
        found[str(path)] = kind
    return found


def kinds(dataset: Any, engine: str) -> list[str]:
    """Of each sample ``"good"``, or the kind of failure."""
    return [one if isinstance(one, str) else "good" for one in outcome(dataset, engine)]


def test_open_regular_leaves_nothing_open(odd: dict[str, str], tmp_path: Path) -> None:
    before = os.listdir("/proc/self/fd")
    for path, kind in odd.items():
        if kind == "unreadable":
            with pytest.raises(OSError, match=NOT_A_FILE):
                open_regular(path)
            with pytest.raises(OSError, match=NOT_A_FILE), open(path, "rb", opener=open_regular):
                pass
    with pytest.raises(FileNotFoundError):
        open_regular(tmp_path / "none")
    assert os.listdir("/proc/self/fd") == before
    (tmp_path / "x").write_bytes(b"content")
    with open(tmp_path / "x", "rb", opener=open_regular) as file:
        assert file.read() == b"content" and not os.get_inheritable(file.fileno())


def test_the_index_names_them(odd: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for path, kind in odd.items():
        assert KINDS[probe(Place(path.encode())).status] == kind, path
        with pytest.raises(Undecodable) as e:
            decode(path)
        assert e.value.kind == kind, path
    for here in (True, False):
        monkeypatch.setattr(pool.PictureProber, "pool_from", 10**9 if here else 1)
        dataset = ImageList([*odd, str(here)], transform=WHOLE)
        assert [b.kind for b in dataset.bad(np.arange(len(odd)))] == list(odd.values())


@pytest.mark.parametrize("engine", ["torch", "dali"])
def test_a_file_that_is_exchanged_after_indexing_stops_no_engine(
    engine: str, tmp_path: Path, warm: Interpreter
) -> None:
    """In a process of its own, because nothing interrupts an engine that waits for a FIFO."""
    code = """
        import sys
        from pathlib import Path
        sys.path[:0] = sys.argv[3:]
        from test_regular_files import JPEG, ODD, WHOLE, kinds
        from gpupipe.datasets import ImageList
        folder, engine = Path(sys.argv[1]), sys.argv[2]
        paths = [folder / f"{name}.jpg" for name in [*ODD, "good"]]
        for path in paths:
            path.write_bytes(JPEG)
        dataset = ImageList(paths, transform=WHOLE)
        assert not len(dataset._index.all_bad())
        for name, (make, _) in ODD.items():
            (folder / f"{name}.jpg").unlink()
            make(folder / f"{name}.jpg")
        print(*kinds(dataset, engine))
    """
    program = tmp_path / "program.py"
    program.write_text(textwrap.dedent(code))
    tests = Path(__file__).parent
    done = warm.run(program, tmp_path, engine, tests, tests.parent, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [*(kind for _, kind in ODD.values()), "good"]


class TestFirstLook:
    @pytest.fixture
    def paths(self, odd: dict[str, str], tmp_path: Path) -> list[Any]:
        (tmp_path / "good.jpg").write_bytes(JPEG)
        return [np.frombuffer(p.encode(), np.uint8) for p in [*odd, str(tmp_path / "good.jpg"), str(tmp_path / "none")]]

    def test_threads_share_what_takes_long(
        self, paths: list[Any], odd: dict[str, str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        look = check_files.FileChecker(MAX_BYTES)
        want = [(i, kind) for i, kind in enumerate(odd.values()) if kind != "empty"]
        want.append((len(odd) + 1, "missing"))
        for _ in range(3):
            assert [(i, problem.kind) for i, problem in look(paths * 9)[0]][: len(want)] == want
            monkeypatch.setattr(check_files, "_SLOW", 0.0)
        assert look._pool is not None
        look.close()
        large = [i for i, _ in check_files.FileChecker(10)(paths)[0]]
        assert large == [i for i, _ in want[:-1]] + [len(odd), len(odd) + 1]

    def test_other_faults_are_left_to_the_engine(self) -> None:
        path = np.frombuffer(b"x" * 5000, np.uint8)  # ENAMETOOLONG
        assert check_files.FileChecker(MAX_BYTES)([path], np.array([7])) == ([], [])

    def test_files_of_another_size_are_told_from_those_that_were_indexed(self, tmp_path: Path) -> None:
        files = [tmp_path / name for name in "abc"]
        for file in files:
            file.write_bytes(JPEG)
        sizes = np.array([len(JPEG), len(JPEG) + 1, len(JPEG)])
        paths = [np.frombuffer(str(file).encode(), np.uint8) for file in files]
        assert check_files.FileChecker(MAX_BYTES)(paths, sizes) == ([], [1])
        assert check_files.FileChecker(MAX_BYTES)(paths) == ([], [])
        files[0].unlink()
        problems, exchanged = check_files.FileChecker(MAX_BYTES)(paths, sizes)
        assert [i for i, _ in problems] == [0] and not exchanged


class TestShards:
    def test_they_are_files(self, odd: dict[str, str]) -> None:
        for path in odd:
            with pytest.raises(DatasetError, match=re.escape(path)):
                WebDataset(path)

    def test_one_that_is_exchanged(self, tmp_path: Path) -> None:
        tar = tmp_path / "x.tar"
        (tmp_path / "0.jpg").write_bytes(JPEG)
        with tarfile.open(tar, "w") as file:
            file.add(tmp_path / "0.jpg", "0.jpg")
        dataset = WebDataset(tar, WHOLE)
        tar.unlink()
        os.mkfifo(tar)
        assert kinds(dataset, "torch") == kinds(dataset, "dali") == ["unreadable"]

    def test_an_image_in_one_may_have_max_bytes(self, tmp_path: Path) -> None:
        for name, size in (("0.jpg", 0), ("1.jpg", 1)):
            (tmp_path / name).write_bytes(JPEG + bytes(size))
        with tarfile.open(tmp_path / "x.tar", "w") as file:
            for name in ("0.jpg", "1.jpg"):
                file.add(tmp_path / name, name)
        dataset = WebDataset(tmp_path / "x.tar", WHOLE, max_bytes=len(JPEG))
        assert kinds(dataset, "torch") == kinds(dataset, "dali") == ["good", "bomb"]


def test_lists_are_files(odd: dict[str, str], tmp_path: Path) -> None:
    for path, kind in odd.items():
        if kind == "empty":
            assert read_list(path) == ([], None)
        else:
            with pytest.raises(DatasetError, match=r"device or a pipe|is a folder|is not a"):
                ImageList(path)
    long = tmp_path / "long.csv"
    long.write_text("a.jpg\n" + "b" * (4 << 20) + "\n")
    with pytest.raises(DatasetError, match="more than 4,194,304 characters"):
        read_list(str(long))


def test_videos_are_files(odd: dict[str, str], tmp_path: Path) -> None:
    pytest.importorskip("av")
    of_videos = {"bomb": "undecodable"}  # a video may be as long as it likes
    dataset = VideoList(list(odd), frames=2)
    assert [b.kind for b in dataset.bad(np.arange(len(odd)))] == [of_videos.get(k, k) for k in odd.values()]


def test_a_video_that_is_exchanged(videos: dict[str, Path], tmp_path: Path) -> None:
    path = tmp_path / "x.mp4"
    path.write_bytes(videos["cfr.mp4"].read_bytes())
    dataset = VideoList([path], frames=2)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(SampleError, match=NOT_A_FILE):
        dataset[0]


# ---- max_bytes


@pytest.mark.parametrize("engine", ["torch", "dali"])
def test_max_bytes(engine: str, tmp_path: Path) -> None:
    paths = [tmp_path / "c" / f"{i}.jpg" for i in range(3)]
    paths[0].parent.mkdir()
    for i, path in enumerate(paths):
        path.write_bytes(JPEG + bytes(i))
    most = len(JPEG) + 1
    want = ["good", "good", "bomb"]
    assert kinds(ImageList(paths, transform=WHOLE, max_bytes=most), engine) == want
    folder = ImageFolder(tmp_path, WHOLE, max_bytes=most)
    assert kinds(folder, engine) == kinds(Subset(folder, [0, 1, 2]), engine) == want
    paths[0].write_bytes(JPEG + bytes(9))  # has grown
    assert kinds(folder, engine) == ["bomb", "good", "bomb"]


def test_max_bytes_has_an_index_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "c").mkdir()
    (tmp_path / "c/0.jpg").write_bytes(JPEG)
    dataset = ImageFolder(tmp_path)
    assert dataset.limits.max_bytes == MAX_BYTES == 2 << 30 and Subset(dataset, [0]).limits == dataset.limits
    assert build.index_path(dataset.source, Limits(max_bytes=5)) != build.index_path(dataset.source)
    (bad,) = ImageFolder(tmp_path, max_bytes=5).bad(np.arange(1))
    assert bad.kind == "bomb" and bad.reason == f"{len(JPEG)} bytes are more than max_bytes=5"
    assert dataset[0][0].size == (60, 40)


@pytest.mark.parametrize("value", [0, -1, 1.5, True, "9", None])
def test_max_bytes_is_checked(value: Any) -> None:
    with pytest.raises(ConfigError, match="max_bytes"):
        ImageList([], max_bytes=value)


def test_what_does_not_fit_into_memory_has_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def short(*arguments: Any) -> bytes:
        raise MemoryError

    path = tmp_path / "x.jpg"
    path.write_bytes(JPEG)
    monkeypatch.setattr(files_module, "pread", short)
    with pytest.raises(MemoryError, match=f"{path}: not enough memory for its {len(JPEG)} bytes"):
        read_place(Place(os.fsencode(path)))
