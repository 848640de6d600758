"""``gpupipe pack --part`` on several machines, and ``--complete``."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from command_line import error, gpupipe
from PIL import Image

from gpupipe.pack import shards
from gpupipe.pack.formats import FORMATS
from gpupipe.testing.photos import make_photos, photograph

SHARDS = 5


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = make_photos(tmp_path_factory.mktemp("parts") / "data", classes=3, per_class=4, sizes=((60, 80), (70, 50)))
    (root / "class02" / "text.jpg").write_bytes(b"no picture")
    Image.fromarray(photograph(40, 40, 1)).save(root / "class00" / "picture.png")
    return root


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out"


def pack(data: Path, out: Path, *options: object, code: int = 0, format: str = "webdataset") -> str:
    common = "--format", format, "--shards", SHARDS, "--num-workers", 1
    return gpupipe("pack", data, out, *common, *options, code=code).output


def content(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.mark.parametrize(
    "format", [name if name == "webdataset" else pytest.param(name, marks=pytest.mark.thorough) for name in FORMATS]
)
def test_the_same_files_as_by_one_machine(data: Path, out: Path, tmp_path: Path, format: str) -> None:
    """In any order, into one folder or several, with more options, also when a part runs twice."""
    more = ("--shuffle", "--seed", 3) if format == "parquet" else ()
    pack(data, tmp_path / "one", *more, code=3, format=format)
    for number in (3, 1, 1):
        text = pack(data, out, *more, "--part", f"{number}/3", format=format)
    assert "1/3: 1 shard of 5" in " ".join(text.split()) and "--complete" in text
    pack(data, tmp_path / "other", *more, "--part", "2/3", format=format)
    for file in (tmp_path / "other").iterdir():
        shutil.copy2(file, out)
    for _ in range(2):  # complete already, the second time
        pack(data, out, *more, "--complete", code=3, format=format)
        assert content(out) == content(tmp_path / "one")


def test_a_part_resumes(data: Path, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, written = shards._write, list[str]()

    def dies(job: shards.Job, task: shards.ShardTask, tell: object) -> shards.ShardDone:
        if len(written) == 1:
            raise KeyboardInterrupt
        written.append(task.name)
        return real(job, task, tell)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(shards, "_write", dies)
        pack(data, out, "--part", "2/2", code=130)
    pack(data, out, "--part", "1/2")
    wrong = error("pack", data, out, "--format", "webdataset", "--shards", SHARDS, "--complete")
    assert "--complete: part 2/2 has written 1 of its 3 shards: run it again with --part 2/2" in wrong
    before = {name: os.stat(out / name).st_mtime_ns for name in written}
    pack(data, out, "--part", "2/2")
    assert {name: os.stat(out / name).st_mtime_ns for name in written} == before
    pack(data, out, "--complete", code=3)
    assert not list(out.glob("gpupipe-pack.*-of-*")) and not list(out.glob(".gpupipe-parts*"))


def test_what_does_not_fit_together(data: Path, out: Path, tmp_path: Path) -> None:
    common = "--format", "webdataset", "--shards", SHARDS

    def wrong(*options: object, into: Path = out) -> str:
        return error("pack", data, into, *common, *options)

    assert "has no parts; write them with --part 1/N" in wrong("--complete")
    pack(data, out, "--part", "1/3")
    assert "part 2/3 is missing: run it again with --part 2/3 on any machine" in wrong("--complete")
    assert "has part 1/3; use the same number of parts on all machines" in wrong("--part", "2/4")
    assert "was begun in parts (1/3): continue with --part, or end with --complete" in wrong()
    pack(data, out, "--part", "2/3")
    sorted(out.glob("*.tar"))[1].unlink()
    pack(data, out, "--part", "3/3")
    assert "part 2/3 has written" in wrong("--complete")
    pack(data, out, "--part", "2/3")
    assert "was started with order: as it was, but this run has order: shuffled, seed 0" in wrong(
        "--complete", "--shuffle"
    )
    pack(data, out, "--complete", code=3)
    assert "is complete, or was begun without --part" in wrong("--part", "1/3")
    assert "run --complete after the last part" in wrong("--part", "1/3", "--complete", into=tmp_path / "new")
    for text in ("0/3", "4/3", "2", "a/b"):
        assert f"--part {text}: it must be NUMBER/COUNT, such as 2/4" in wrong("--part", text, into=tmp_path / "new")
    assert not (tmp_path / "new").exists()
