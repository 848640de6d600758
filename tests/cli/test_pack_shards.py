"""``gpupipe pack``: what goes into shards comes out again, by our readers and by those of others."""

from __future__ import annotations

import csv
import gc
import hashlib
import io
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from command_line import error, gpupipe
from dies import Dies
from PIL import Image
from support import BATCH, SEED, TRAIN, same
from typer.testing import Result

from gpupipe import DataLoader, datasets
from gpupipe.commands import pack as command
from gpupipe.datasets.index.progress import Progress
from gpupipe.pack import shards
from gpupipe.pack.images import AsIs, Reencoded
from gpupipe.pack.journal import NAME, Journal
from gpupipe.pack.shards import Job, plan_shards
from gpupipe.testing.photos import make_photos, photograph

BAD = {"class01/cut.jpg": "truncated", "class02/text.jpg": "undecodable"}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Photographs of three classes, other formats, images that are turned or small, and two bad ones."""
    root = make_photos(tmp_path_factory.mktemp("pack") / "data", classes=3, per_class=5, sizes=((96, 128), (120, 96)))
    image = Image.fromarray(photograph(100, 80, 2))
    image.save(root / "class00" / "picture.png")
    image.save(root / "class01" / "picture.webp")
    image.convert("CMYK").save(root / "class00" / "cmyk.jpg")
    image.convert("L").resize((40, 30)).save(root / "class02" / "small.jpg")
    exif = Image.Exif()
    exif[0x0112] = 6
    image.save(root / "class02" / "turned.jpg", exif=exif)
    whole = next(root.glob("class01/*.jpg")).read_bytes()
    (root / "class01" / "cut.jpg").write_bytes(whole[:-200])
    (root / "class02" / "text.jpg").write_bytes(b"no picture")
    for path in root.rglob("*"):
        os.utime(path, (1_600_000_000, 1_600_000_000))
    return root


@pytest.fixture(scope="module")
def good(data: Path) -> list[tuple[bytes, int]]:
    """(bytes, label) of what can be packed, in order."""
    folder = datasets.ImageFolder(data)
    samples = [(Path(path), label) for path, label in folder.samples]
    return [(path.read_bytes(), label) for path, label in samples if str(path.relative_to(data)) not in BAD]


@pytest.fixture(scope="module")
def packed(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As they are."""
    folder = tmp_path_factory.mktemp("packed") / "tar"
    pack(data, folder, "--shards", 3, code=3)
    return folder


def pack(source: Path, out: Path, *options: object, code: int = 0) -> Result:
    """In this process. Only tests of processes wait until some have started."""
    workers = () if "--num-workers" in options else ("--num-workers", 1)
    return gpupipe("pack", source, out, *options, *workers, code=code)


def all_of(dataset: Any) -> list[tuple[bytes, int]]:
    return [dataset.fetch(i) for i in range(len(dataset))]


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / NAME).read_text().splitlines() if line]


def shards_of(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.tar"))


def test_what_was_packed_is_read_again(packed: Path, good: list[tuple[bytes, int]]) -> None:
    dataset = datasets.WebDataset(packed)
    assert all_of(dataset) == good
    assert dataset.classes == ["class00", "class01", "class02"]
    assert dataset.index_summary().bad == ()
    found = shards_of(packed)
    sizes = [path.stat().st_size for path in found]
    assert len(found) == 3 and max(sizes) < 1.35 * min(sizes)
    sums = dict(reversed(line.split("  ")) for line in (packed / command.SUMS).read_text().splitlines())
    assert sums == {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in found}
    assert not list(packed.glob(".*"))


@pytest.mark.parametrize("engine", ["torch", "dali"])
def test_batches_are_those_of_the_folder(
    packed: Path, good: list[tuple[bytes, int]], engine: str, tmp_path: Path
) -> None:
    for i, (image, label) in enumerate(good):
        path = tmp_path / "good" / f"class{label:02d}" / f"{i:03d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(image)

    def batches(dataset: Any) -> list[Any]:
        with DataLoader(dataset, BATCH, shuffle=True, engine=engine, device="cpu", seed=SEED) as loader:
            return list(loader)

    expected = batches(datasets.ImageFolder(tmp_path / "good", TRAIN))
    assert same(batches(datasets.WebDataset(packed, TRAIN)), expected)


def test_bad_samples_are_left_out_and_listed(packed: Path, data: Path) -> None:
    rows = list(csv.DictReader((packed / command.LEFT_OUT).read_text().splitlines()))
    assert {row["path"]: row["kind"] for row in rows} == {str(data / name): kind for name, kind in BAD.items()}
    names = [path for path, _ in datasets.ImageFolder(data).samples]
    assert all(names[int(row["index"])] == row["path"] for row in rows)


def test_the_report_says_what_was_done(data: Path, tmp_path: Path) -> None:
    result = pack(data, tmp_path / "out", code=3)
    for part in ("20, as they are", "2 bad samples", "class01/cut.jpg", "WebDataset('", "journal", "verified", "1, of"):
        assert part in result.stdout
    assert [path.name for path in shards_of(tmp_path / "out")] == ["train-000000.tar"]


@pytest.mark.filterwarnings("ignore")  # it leaves files open
def test_the_webdataset_package_reads_tar_files(packed: Path, good: list[tuple[bytes, int]]) -> None:
    webdataset = pytest.importorskip("webdataset")
    found = webdataset.WebDataset(list(map(str, shards_of(packed))), shardshuffle=False)
    rows = [(next(row[e] for e in ("jpg", "png", "webp") if e in row), int(row["cls"])) for row in found]
    assert rows == good
    decoded = [row["jpg"].size for row in found.decode("pil") if "jpg" in row]
    del found
    gc.collect()
    assert decoded == [Image.open(io.BytesIO(image)).size for image, _ in good if image.startswith(b"\xff\xd8")]


def test_images_are_reduced(data: Path, good: list[tuple[bytes, int]], tmp_path: Path) -> None:
    shown = pack(data, tmp_path / "out", "--resize", 64, "--quality", 70, code=3)
    assert "1 kept (small)" in shown.stdout
    images = [image for image, _ in all_of(datasets.WebDataset(tmp_path / "out"))]
    assert len(images) == len(good)
    for new, (old, _) in zip(images, good, strict=True):
        before, after = Image.open(io.BytesIO(old)), Image.open(io.BytesIO(new))
        if min(before.size) <= 64:
            assert new == old
            continue
        short, long = sorted(before.size)
        assert sorted(after.size) == [64, int(64 * long / short)] and after.format == "JPEG"
        assert after.getexif().get(0x0112) == before.getexif().get(0x0112)
        expected = io.BytesIO()
        before.convert("RGB").resize(after.size, Image.Resampling.BILINEAR).save(expected, "JPEG", quality=70)
        assert np.array_equal(np.asarray(after), np.asarray(Image.open(expected)))
    turned = datasets.WebDataset(tmp_path / "out").index_summary().oriented
    assert turned == 1


def test_images_are_turned_upright(data: Path, tmp_path: Path) -> None:
    pack(data, tmp_path / "out", "--resize", 64, "--exif", code=3)
    dataset = datasets.WebDataset(tmp_path / "out")
    assert dataset.index_summary().oriented == 0
    assert tuple(dataset.sizes[-1]) == (64, 80)  # stored as 100 x 80


def test_a_shuffled_order_is_a_function_of_the_seed(data: Path, good: list[tuple[bytes, int]], tmp_path: Path) -> None:
    found = {}
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        options = ("--shuffle", "--seed", seed)
        pack(data, tmp_path / name, *options, code=3)
        found[name] = all_of(datasets.WebDataset(tmp_path / name))
    assert found["a"] == found["b"] != found["c"]
    assert sorted(found["a"]) == sorted(found["c"]) == sorted(good)
    assert found["a"] != good


def test_two_processes_write_what_one_writes(data: Path, tmp_path: Path) -> None:
    for count in (1, 2):
        options = ("--shards", 4, "--num-workers", count)
        pack(data, tmp_path / str(count), *options, code=3)
    one, two = (tmp_path / name for name in "12")
    assert [path.read_bytes() for path in shards_of(one)] == [path.read_bytes() for path in shards_of(two)]
    assert lines(one) == lines(two)


def test_the_same_command_goes_on_after_a_kill(tmp_path: Path) -> None:
    """A real one, of all its processes at once as far as they know."""
    root, large = tmp_path / "data", photograph(480, 640, 0)  # it takes a while to reduce each of them
    for i in range(40):
        path = root / f"class{i // 20}" / f"{i:02d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.roll(large, 8 * i, axis=1)).save(path, quality=90)
    command_line = ["pack", root, tmp_path / "out", "--resize", 200, "--shards", 10]
    arguments = [sys.executable, "-m", "gpupipe", *map(str, command_line)]
    with subprocess.Popen(arguments, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        journal, ends = tmp_path / "out" / NAME, time.monotonic() + 120
        while not (journal.exists() and journal.read_text().count("\n") > 1) and time.monotonic() < ends:
            time.sleep(0.01)
        children = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGKILL)
    assert len(children) >= 2 and not psutil.wait_procs(children, timeout=30)[1]
    there = lines(tmp_path / "out")[1:]
    assert 0 < len(there) < 10, "not killed in the middle"
    stamps = {row["name"]: (tmp_path / "out" / row["name"]).stat().st_mtime_ns for row in there}
    journal.write_text(journal.read_text() + '{"name": "train-000')  # the last line is cut short
    shown = " ".join(gpupipe(*command_line).stdout.split())
    assert f"this time {40 - sum(row['samples'] for row in there)} in" in shown
    assert {name: (tmp_path / "out" / name).stat().st_mtime_ns for name in stamps} == stamps
    pack(root, tmp_path / "whole", *command_line[3:], "--num-workers", 1)
    for one, other in zip(shards_of(tmp_path / "out"), shards_of(tmp_path / "whole"), strict=True):
        assert one.read_bytes() == other.read_bytes()
    assert not (tmp_path / "out" / ".gpupipe-parts").exists()


def test_a_process_that_dies_is_named(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = ("--shards", 3, "--num-workers", 2)
    with monkeypatch.context() as patched:
        patched.setattr(command, "AsIs", Dies)
        assert "a smaller --num-workers" in error("pack", data, tmp_path / "out", *options)
    pack(data, tmp_path / "out", *options, code=3)


@pytest.mark.parametrize("processes", [1, 2])
def test_after_ctrl_c_nothing_half_is_left(
    processes: int, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(self: Any, done: int) -> None:
        if self._what == "Packing" and done > 6:
            raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Progress, "__call__", interrupted)
        options = ("--shards", 5, "--num-workers", processes)
        assert "run the same command again" in pack(data, tmp_path / "out", *options, code=130).stderr
    assert not list(tmp_path.glob("out/.*"))
    pack(data, tmp_path / "out", *options[:-1], 1, code=3)


def test_a_shard_that_is_lost_is_written_again(data: Path, tmp_path: Path, good: list[tuple[bytes, int]]) -> None:
    pack(data, tmp_path / "out", "--shards", 2, code=3)
    shards_of(tmp_path / "out")[1].unlink()
    assert f"{len(good)} in" not in pack(data, tmp_path / "out", "--shards", 2, code=3).stdout
    assert all_of(datasets.WebDataset(tmp_path / "out")) == good


@pytest.mark.parametrize(
    ("made", "what"), [(None, "other labels are read"), (b"no image", "not all of the 20"), (b"\0", "other images are")]
)
def test_other_samples_than_were_written_are_found(
    made: bytes | None, what: str, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A writer that is wrong."""
    if made is None:
        monkeypatch.setattr(shards, "members_of", lambda label, values: iter([("cls", b"0")]))
    else:
        monkeypatch.setattr(AsIs, "__call__", lambda self, image: made if made != b"\0" else image + made)
    assert what in error("pack", data, tmp_path / "out", "--num-workers", 1)


def test_nothing_is_overwritten(data: Path, packed: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "train-000000.tar").write_bytes(b"mine")
    assert "gpupipe overwrites nothing" in error("pack", data, tmp_path / "mine")
    folder = packed
    before = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    for options, message in (
        (("--shards", 2), "shards: 3, but this run has shards: 2"),
        (
            ("--resize", 64, "--shards", 3),
            "form: as they are, but this run has form:",
        ),
        (("--shards", 3, "--split", "val"), "split: train, but this run has split: val"),
        (("--shards", 3, "--shuffle"), "order: as it was, but this run has order: shuffled"),
    ):
        assert message in error("pack", data, folder, *options)
    assert {path: path.stat().st_mtime_ns for path in folder.iterdir()} == before
    for place in (data, data / "class00" / "packed", data.parent):
        assert "one contains the other" in error("pack", data, place)
    (tmp_path / "file").write_bytes(b"")
    assert "Not a directory" in error("pack", data, tmp_path / "file" / "out")
    about = json.loads((folder / NAME).read_text().splitlines()[0])
    with closing(Journal(str(folder), about)):
        assert "another run packs into" in error("pack", data, folder, "--shards", 3)


def test_a_source_that_changed_is_refused(data: Path, tmp_path: Path) -> None:
    root = make_photos(tmp_path / "data", classes=2, per_class=2, sizes=((40, 50),))
    pack(root, tmp_path / "out")
    (root / "class01" / "new.jpg").write_bytes(next(root.glob("class00/*.jpg")).read_bytes())
    assert "was started with samples" in error("pack", root, tmp_path / "out")


def test_samples_without_labels(data: Path, tmp_path: Path) -> None:
    pack(data / "class00", tmp_path / "out")
    dataset = datasets.WebDataset(tmp_path / "out")
    assert (len(dataset), dataset.labels, dataset.classes) == (7, None, [])
    assert not (tmp_path / "out" / "labels.txt").exists()


def test_a_format_that_tar_files_cannot_name_is_left_out(tmp_path: Path) -> None:
    root = make_photos(tmp_path / "data", classes=1, per_class=2, sizes=((40, 50),))
    Image.fromarray(photograph(40, 50, 1)).save(root / "class00" / "x.jpg", "GIF")
    shown = pack(root, tmp_path / "tar", "--resize", 64, code=3).stdout
    assert "no extension for GIF" in shown and "2 kept (small)" in shown
    assert len(datasets.WebDataset(tmp_path / "tar")) == 2


def test_a_dataset_without_a_usable_image_is_refused(tmp_path: Path) -> None:
    root = tmp_path / "my photos" / "cat"
    root.mkdir(parents=True)
    (root / "1.jpg").write_bytes(b"no picture")
    said = error("pack", root.parent, tmp_path / "new")
    assert f"none of its 1 images can be read; run gpupipe index '{root.parent}'" in said


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--quality", 80), "--quality needs --resize"),
        (("--exif",), "--exif needs --resize"),
        (("--shards", 2, "--shard-bytes", "1GB"), "remove one of them"),
        (("--shard-bytes", "much"), "it must be a size such as 500MB"),
        (("--shards", 21), "20 samples do not fill 21 shards"),
        (("--seed", 3), "--seed needs --shuffle"),
        (("--split", "../x"), "it must be letters and digits"),
        (
            ("--source", "oranges"),
            "unknown kind of source 'oranges'; choose from imagefolder",
        ),
        (("--label", "x"), "imagefolder has no columns"),
    ],
)
def test_what_cannot_be_is_refused(data: Path, tmp_path: Path, options: tuple[Any, ...], message: str) -> None:
    assert message in error("pack", data, tmp_path / "out", *options)
    assert not (tmp_path / "out").exists()


def test_a_destination_behind_a_network_is_refused(data: Path) -> None:
    assert "written to a local folder" in error("pack", data, "s3://bucket/out")


@pytest.mark.parametrize("kib", [1, 40, 10_000])
def test_shards_are_balanced(data: Path, kib: int) -> None:
    dataset = datasets.ImageFolder(data)
    indices = np.flatnonzero(dataset.sizes[:, 0] > 0)
    for conversion in (AsIs(), Reencoded(64)):
        job = Job(dataset, conversion, "nowhere")
        tasks = plan_shards(job, indices, split="x", shard_bytes=kib << 10)
        assert np.array_equal(np.concatenate([task.indices for task in tasks]), indices)
        assert min(len(task.indices) for task in tasks) >= 1
        assert (kib == 1) == (len(tasks) == len(indices)) and (kib == 10_000) == (len(tasks) == 1)
