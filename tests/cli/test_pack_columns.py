"""``gpupipe pack --columns``: what ``columns=`` reads from the shards is what it reads from the source."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command_line import error, gpupipe
from support import add_member
from tfrecords import example, tfrecord

from gpupipe import datasets
from gpupipe.commands.sources import open_images
from gpupipe.pack.journal import NAME
from gpupipe.pack.tar import member_key

N = 4
CAPTIONS = ["größe 猫 🐈", "", 'two\nlines, "quoted"', "d"]
KEYS = ["a/0001", "b.c/0002", "0003", "z/0004"]


@pytest.fixture(scope="module")
def images(images: list[bytes]) -> list[bytes]:
    return images[:N]


def vector(i: int) -> Any:
    return np.array([i, i / 2, -1], np.float32)


def npy(array: Any) -> bytes:
    out = io.BytesIO()
    np.save(out, array)
    return out.getvalue()


def write_tar(images: list[bytes], folder: Path) -> Path:
    with tarfile.open(folder / "a.tar", "w") as tar:
        for i, image in enumerate(images):
            members = {"jpg": image, "txt": CAPTIONS[i].encode(), "seg.npy": npy(vector(i)[None])}
            members["json"] = json.dumps({"w": i / 4, "a.b": i, "name": f"n{i}"}).encode()
            for extension, data in members.items():
                add_member(tar, f"{KEYS[i]}.{extension}", data)
    return folder / "a.tar"


def write_manifest(images: list[bytes], folder: Path) -> Path:
    lines = []
    for i, image in enumerate(images):
        (folder / f"{i}.jpg").write_bytes(image)
        more = {"caption": CAPTIONS[i], "weight": i / 4, "width": 1 << 40 | i, "good": i % 2 == 0}
        lines.append(json.dumps({"path": f"{i}.jpg", "label": i % 2, "v": vector(i).tolist(), **more}))
    (folder / "a.jsonl").write_text("\n".join(lines))
    return folder / "a.jsonl"


def write_tfrecord(images: list[bytes], folder: Path) -> Path:
    records = []
    for i, image in enumerate(images):
        about: dict[str, Any] = {"image": image, "label": i, "n": 7 * i, "w": i / 4, "v": vector(i).tolist()}
        records.append(example(about | {"text/a.b": CAPTIONS[i].encode(), "ids": [i, 2]} | ({"some": 1} if i else {})))
    (folder / "a.tfrecord").write_bytes(tfrecord(*records))
    return folder / "a.tfrecord"


CASES: dict[str, tuple[Any, dict[str, str]]] = {
    "tar": (write_tar, {"txt": "txt", "seg.npy": "seg.npy", "json:w": "json:w", "json:a.b": "json:a.b"}),
    "texts": (write_tar, {"txt": "txt", "json:name": "json:name"}),
    "tfrecord": (write_tfrecord, {"n": "json:n", "w": "json:w", "v": "v.npy", "text/a.b": "txt", "ids": "ids.npy"}),
    "manifest": (
        write_manifest,
        {"caption": "txt", "weight": "json:weight", "width": "json:width", "good": "json:good", "v": "v.npy"},
    ),
}
"""What writes a source, and the names that its columns have in the shards."""


@pytest.mark.parametrize("case", CASES)
def test_columns_come_back(case: str, images: list[bytes], tmp_path: Path) -> None:
    write, names = CASES[case]
    given = write(images, tmp_path)
    shown = gpupipe("pack", given, tmp_path / "out", "--columns", ",".join(names), "--num-workers", 1).stdout
    assert ", ".join(f"{name} as {stored}" for name, stored in names.items()) in " ".join(shown.split())
    source = open_images(str(given), columns=[*names])
    packed: Any = datasets.WebDataset(tmp_path / "out", columns=[*names.values()])
    assert [packed.fetch(i) for i in range(N)] == [source.fetch(i) for i in range(N)]
    assert packed.classes == source.classes and packed.index_summary().bad == ()
    for name, stored in names.items():
        before, after = (np.asarray(it.of(np.arange(N))) for it in (source.columns[name], packed.columns[stored]))
        assert np.array_equal(before, after) and before.dtype == after.dtype, name


def test_others_are_named_and_not_copied(images: list[bytes], tmp_path: Path) -> None:
    given = write_tar(images, tmp_path)
    shown = " ".join(gpupipe("pack", given, tmp_path / "out", "--columns", "txt").stdout.split())
    assert "not copied seg.npy, json, json:w, json:a.b, json:name; --columns names what to copy" in shown
    assert "no sample has a column 'no'" in error("pack", given, tmp_path / "x", "--columns", "txt,no")
    assert "was started with columns" in error("pack", given, tmp_path / "out", "--columns", "json:w")
    assert (tmp_path / "out" / NAME).exists()
    said = error("pack", tmp_path / "photos", tmp_path / "y", "--columns", "a")
    assert "--columns: imagefolder has no columns" in said


def test_two_columns_of_one_name(images: list[bytes], tmp_path: Path) -> None:
    given = tmp_path / "a.tfrecord"
    given.write_bytes(tfrecord(*(example({"image": image, "label": 1, "V": [1, 2], "v": [3, 4]}) for image in images)))
    assert "--columns V: another column is 'v.npy'" in error("pack", given, tmp_path / "out", "--columns", "V,v")


def test_a_sample_without_a_value_is_left_out(images: list[bytes], tmp_path: Path) -> None:
    given = write_tfrecord(images, tmp_path)
    shown = gpupipe("pack", given, tmp_path / "out", "--columns", "some", code=3).stdout
    assert "1 bad sample" in shown and len(datasets.WebDataset(tmp_path / "out")) == N - 1


def test_keys(images: list[bytes], tmp_path: Path) -> None:
    gpupipe("pack", write_tar(images, tmp_path), tmp_path / "out")
    assert keys(tmp_path / "out") == KEYS
    gpupipe("pack", tmp_path / "out", tmp_path / "again")
    assert keys(tmp_path / "again") == KEYS
    for name in ("class 0/a.b.jpg", "class 0/a_b.jpg", "c/ü.jpg"):
        (tmp_path / "data" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "data" / name).write_bytes(images[0])
    shown = gpupipe("pack", tmp_path / "data", tmp_path / "folder").stdout
    assert keys(tmp_path / "folder") == ["c/ü", "class 0/a_b", "class 0/a_b-000000002"]
    assert "2 keys changed" in shown


def keys(folder: Path) -> list[str]:
    column: Any = datasets.WebDataset(folder, columns=["__key__"]).columns["__key__"]
    return [*column.of(np.arange(len(column.texts)))]


def test_keys_that_are_there_twice(images: list[bytes], tmp_path: Path) -> None:
    for k in range(2):
        (tmp_path / str(k)).mkdir()
        write_tar(images, tmp_path / str(k)).rename(tmp_path / f"{k}.tar")
    gpupipe("pack", f"{tmp_path}/{{0..1}}.tar", tmp_path / "out", "--shards", 1)
    packed = datasets.WebDataset(tmp_path / "out")
    assert [packed.fetch(i)[0] for i in range(2 * N)] == images * 2
    assert keys(tmp_path / "out") == [*KEYS, *(f"{key}-{N + i:09d}" for i, key in enumerate(KEYS))]


def test_names_of_members() -> None:
    for given, made in {
        "a/b": "a/b", "a.b/c.d": "a.b/c_d", "/x": "x", "../x": "_/x", "./x": "./x", "a//b": "a/_/b", ".": "_",
        "__m__/x": "_m__/x", "a\nb\0": "a_b_", "": "_", "__x__": "__x__",
    }.items():  # fmt: skip
        assert member_key(given) == made


def test_the_sizes_of_shards_count_columns(images: list[bytes], tmp_path: Path) -> None:
    rows = [{"image": images[0], "label": 1, "text": b"x" * 40_000} for _ in range(24)]
    (tmp_path / "a.tfrecord").write_bytes(tfrecord(*map(example, rows)))
    options = ("--columns", "text", "--shard-bytes", "200kB", "--num-workers", 1)
    gpupipe("pack", tmp_path / "a.tfrecord", tmp_path / "out", *options)
    sizes = [path.stat().st_size for path in (tmp_path / "out").iterdir() if path.name.startswith("train-")]
    assert len(sizes) > 4 and max(sizes) < 220_000 and np.mean(sizes) > 140_000
