"""``gpupipe pack`` carries columns and keys: what ``columns=`` reads from the shards is what the source has."""

from __future__ import annotations

import io
import json
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from command_line import error, gpupipe
from PIL import Image
from support import write_photos
from tfrecords import example, tfrecord

from gpupipe import datasets
from gpupipe.commands import pack_shards as command
from gpupipe.commands.sources import open_images
from gpupipe.pack.columns import Carried, Column, carry
from gpupipe.pack.formats import FORMATS, member_key
from gpupipe.pack.journal import NAME

N = 4
OPEN: dict[str, Any] = {"webdataset": datasets.WebDataset, "parquet": datasets.Parquet}
CAPTIONS = ["größe 猫 🐈", "", 'two\nlines, "quoted"', "d"]
KEYS = ["a/0001", "b.c/0002", "0003", "z/0004"]


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    folder = write_photos(tmp_path_factory.mktemp("photos"))
    return [path.read_bytes() for path in sorted(folder.rglob("*.jpg"))[:N]]


def vector(i: int) -> npt.NDArray[np.float32]:
    return np.array([i, i / 2, -1], np.float32)


def npy(array: npt.NDArray[Any]) -> bytes:
    out = io.BytesIO()
    np.save(out, array)
    return out.getvalue()


def archive(images: list[bytes], write: Callable[[str, bytes], None]) -> None:
    for i, image in enumerate(images):
        members = {"jpg": image, "txt": CAPTIONS[i].encode(), "npy": npy(vector(i)[None])}
        members["json"] = json.dumps({"w": i / 4, "boxes": [[1, 2]] * i}).encode()
        for extension, data in members.items():
            if (i, extension) != (2, "txt"):  # a missing value
                write(f"{KEYS[i]}.{extension}", data)


def write_tar(images: list[bytes], folder: Path) -> tuple[Path, dict[str, Any]]:
    with tarfile.open(folder / "a.tar", "w") as tar:

        def write(name: str, data: bytes) -> None:
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))

        archive(images, write)
    return folder / "a.tar", {}


def write_zip(images: list[bytes], folder: Path) -> tuple[Path, dict[str, Any]]:
    with zipfile.ZipFile(folder / "a.zip", "w") as out:
        archive(images, lambda name, data: out.writestr(name if "/" in name else f"c/{name}", data))
    return folder / "a.zip", {}


def rows_of(images: list[bytes]) -> list[dict[str, Any]]:
    return [
        {
            "image": image,
            "label": i % 2,
            "caption": None if i == 2 else CAPTIONS[i],
            "weight": None if i == 1 else i / 4,
            "width": 1 << 40 | i,
            "good": i % 2 == 0,
            "v": vector(i).tolist(),
            "boxes": [[1.5, 2.0]] * i,
            "tags": ["x", "ü"][:i],
            "a.b": i,
        }
        for i, image in enumerate(images)
    ]


def table(images: list[bytes]) -> Any:
    pa = pytest.importorskip("pyarrow")
    made = pa.Table.from_pylist(rows_of(images))
    at = made.schema.get_field_index("v")
    return made.set_column(at, "v", made["v"].cast(pa.list_(pa.float32(), 3)))


def write_parquet(images: list[bytes], folder: Path) -> tuple[Path, dict[str, Any]]:
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(table(images), folder / "a.parquet", compression="none", use_dictionary=False)
    return folder / "a.parquet", {}


def write_arrow(images: list[bytes], folder: Path) -> tuple[Path, dict[str, Any]]:
    pa, rows = pytest.importorskip("pyarrow"), table(images)
    with pa.ipc.new_file(str(folder / "a.arrow"), rows.schema) as file:
        file.write_table(rows)
    return folder / "a.arrow", {}


def write_huggingface(images: list[bytes], folder: Path) -> tuple[Path, dict[str, Any]]:
    huggingface = pytest.importorskip("datasets")
    rows = [{**row, "image": {"bytes": row["image"], "path": None}} for row in rows_of(images)]
    made = huggingface.Dataset.from_list(rows).cast_column("image", huggingface.Image(decode=False))
    made.save_to_disk(str(folder / "hf"))
    return folder / "hf", {"image": "image"}


def write_tfrecord(images: list[bytes], folder: Path) -> tuple[Path, dict[str, Any]]:
    records = []
    for i, image in enumerate(images):
        about: dict[str, Any] = {"image": image, "label": i, "n": 7 * i, "w": i / 4, "v": vector(i).tolist()}
        about |= {"text/a.b": CAPTIONS[i].encode(), "ids": [i, 2]} | ({"some": 1} if i else {})
        records.append(example(about))
    (folder / "a.tfrecord").write_bytes(tfrecord(*records))
    return folder / "a.tfrecord", {}


def write_hdf5(images: list[bytes], folder: Path) -> tuple[Path, dict[str, Any]]:
    h5py = pytest.importorskip("h5py")
    with h5py.File(folder / "a.h5", "w") as file:
        made = file.create_dataset("images", (N,), h5py.vlen_dtype(np.uint8))
        for i, image in enumerate(images):
            made[i] = np.frombuffer(image, np.uint8)
        file["labels"] = np.arange(N)
        file["v"] = np.stack([vector(i).reshape(3, 1) for i in range(N)])
        file.create_dataset("caption", data=[text or "x" for text in CAPTIONS], dtype=h5py.string_dtype())
        file["all"] = np.arange(N + 1)  # not one value for each image
    return folder / "a.h5", {}


def write_manifest(images: list[bytes], folder: Path) -> tuple[Path, dict[str, Any]]:
    lines = []
    others: list[Any] = [1, "one", {"deep": None, "\0": [1]}, 2.5]
    for i, (image, row) in enumerate(zip(images, rows_of(images), strict=True)):
        (folder / f"{i}.jpg").write_bytes(image)
        del row["image"]
        lines.append(json.dumps({"path": f"{i}.jpg", **row, "any": others[i]}))
    (folder / "a.jsonl").write_text("\n".join(lines))
    return folder / "a.jsonl", {}


WRITERS = {
    name.removeprefix("write_"): write
    for name, write in list(globals().items())
    if name.startswith("write_") and name != "write_photos"
}


def values_of(dataset: Any, names: list[str]) -> Iterator[list[Any]]:
    yield from map(list, dataset.source.values_of(names))


def plain(value: Any) -> Any:
    """As Python has it."""
    return value.tolist() if isinstance(value, np.ndarray) else value


def expected(column: Column, value: Any) -> Any:
    """What is read of a value of the source."""
    if value is not None and column.kind == "json":
        return json.dumps(plain(value), ensure_ascii=False)
    return plain(value)


@pytest.mark.part("target", "kind")
@pytest.mark.parametrize("target", FORMATS)
@pytest.mark.parametrize("kind", WRITERS)
def test_columns_come_back(
    kind: str, target: str, images: list[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given, options = WRITERS[kind](images, tmp_path)
    texts = [text for name, value in options.items() for text in (f"--{name}", value)]
    carried = list[Carried]()
    monkeypatch.setattr(command, "carry", lambda *given: carried.append(carry(*given)) or carried[0])
    shown = gpupipe("pack", given, tmp_path / "out", "--format", target, "--num-workers", 1, *texts).stdout
    source, packed = open_images(str(given), **options), OPEN[target](tmp_path / "out")
    assert [packed.fetch(i) for i in range(N)] == [source.fetch(i) for i in range(N)]
    assert packed.classes == source.classes
    columns = carried[0].stored
    names = {column.name: column.stored for column in columns}
    assert " ".join(map(command._shown, carried[0].stored)).replace(",", "") in " ".join(shown.split()).replace(",", "")
    there = [name for name in source.source.field_counts() if name not in ("all", "__key__")]
    assert sorted(names) == sorted(there)
    assert ("all: " in shown) == (kind == "hdf5")
    before, after = values_of(source, [*names]), values_of(packed, [*names.values()])
    rows = list(zip(before, after, strict=True))
    assert len(rows) == N
    for row, read in rows:
        assert [*map(plain, read)] == [expected(*it) for it in zip(columns, row, strict=True)]
    whole = [name for k, name in enumerate(names.values()) if all(row[1][k] is not None for row in rows)]
    dataset = OPEN[target](tmp_path / "out", columns=[*whole, "__key__"])
    assert dataset.index_summary().bad == ()  # readers take all of them
    for k, name in enumerate(names.values()):
        if name in whole:
            column = dataset.columns[name].of(np.arange(N))
            assert [plain(it) for it in column] == [plain(row[1][k]) for row in rows]


@pytest.mark.parametrize("target", FORMATS)
def test_keys(target: str, images: list[bytes], tmp_path: Path) -> None:
    given, _ = write_tar(images, tmp_path)
    gpupipe("pack", given, tmp_path / "out", "--format", target)
    assert [row[0] for row in values_of(OPEN[target](tmp_path / "out"), ["__key__"])] == KEYS
    gpupipe("pack", tmp_path / "out", tmp_path / "again", "--format", "parquet")
    assert [row[0] for row in values_of(datasets.Parquet(tmp_path / "again"), ["__key__"])] == KEYS
    for name in ("class 0/a.b.jpg", "class 0/a_b.jpg", "c/ü.jpg"):
        (tmp_path / "data" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "data" / name).write_bytes(images[0])
    shown = gpupipe("pack", tmp_path / "data", tmp_path / "folder", "--format", target).stdout
    keys = [row[0] for row in values_of(OPEN[target](tmp_path / "folder"), ["__key__"])]
    whole = ["c/ü", "class 0/a.b", "class 0/a_b"]
    if target == "webdataset":
        assert keys == ["c/ü", "class 0/a_b-000000001", "class 0/a_b-000000002"]
        assert "2 keys changed" in shown
    else:
        assert keys == whole
        assert "changed" not in shown


@pytest.mark.parametrize("target", FORMATS)
def test_keys_that_are_there_twice(target: str, images: list[bytes], tmp_path: Path) -> None:
    for k in range(2):
        (tmp_path / str(k)).mkdir()
        write_tar(images, tmp_path / str(k))[0].rename(tmp_path / f"{k}.tar")
    gpupipe("pack", f"{tmp_path}/{{0..1}}.tar", tmp_path / "out", "--format", target, "--shards", 1)
    packed = OPEN[target](tmp_path / "out")
    assert [packed.fetch(i)[0] for i in range(2 * N)] == images * 2
    keys = [row[0] for row in values_of(packed, ["__key__"])]
    assert keys == ([f"{key}-{i:09d}" for i, key in enumerate(KEYS * 2)] if target == "webdataset" else KEYS * 2)


def test_names_of_members() -> None:
    for given, made in {
        "a/b": "a/b", "a.b/c.d": "a.b/c_d", "/x": "x", "../x": "_/x", "./x": "./x", "a//b": "a/_/b", ".": "_",
        "__m__/x": "_m__/x", "a\nb\0": "a_b_", "": "_", "__x__": "__x__",
    }.items():  # fmt: skip
        assert member_key(given) == made


def test_some_columns_or_none(images: list[bytes], tmp_path: Path) -> None:
    given, _ = write_parquet(images, tmp_path)
    pa_names = pytest.importorskip("pyarrow.parquet").read_schema
    for text, names in (("width,good", ["__key__", "width", "good"]), ("", []), ("none", [])):
        out = tmp_path / f"out-{text}"
        gpupipe("pack", given, out, "--format", "parquet", "--columns", text)
        (shard,) = out.glob("*.parquet")
        assert pa_names(shard).names == ["image", "label", *names]
    assert "there is no such column; there are 'caption'" in error(
        "pack", given, tmp_path / "x", "--format", "parquet", "--columns", "captoin"
    )
    out = tmp_path / "out-width,good"
    assert "was started with columns" in error("pack", given, out, "--format", "parquet", "--columns", "good")
    assert (out / NAME).exists()


def test_what_cannot_be_copied_is_said(images: list[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "4000")
    others = {"mask.bin": b"\xff\0", "png": images[1], "long.txt": b"x" * 70_000, "npy": b"no array"}
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        for name, data in {"0.jpg": images[0], **{f"0.{it}": data for it, data in others.items()}}.items():
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    shown = gpupipe("pack", tmp_path / "a.tar", tmp_path / "out", "--format", "webdataset").stdout
    (line,) = [line for line in shown.splitlines() if "not copied" in line]
    for part in (
        "mask.bin: binary values",
        "png: another image",
        "long.txt: a value has 70,000 bytes, and columns= reads at most 65,535",
        "npy: values that cannot be read",
    ):
        assert part in line
    wanted = error("pack", tmp_path / "a.tar", tmp_path / "x", "--format", "webdataset", "--columns", "mask.bin")
    assert "--columns mask.bin: it cannot be stored: binary values" in wanted


def test_damaged_columns_are_found(images: list[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reading back compares them too."""
    writer = FORMATS["parquet"].writer
    add = writer.add
    monkeypatch.setattr(writer, "add", lambda self, record: add(self, record._replace(key=record.key + "x")))
    given, _ = write_parquet(images, tmp_path)
    assert "is read as other columns than were written" in error("pack", given, tmp_path / "out", "--format", "parquet")


def test_sizes_of_images_are_left_out_if_they_change(tmp_path: Path) -> None:
    images = []
    for i in range(N):
        out = io.BytesIO()
        Image.new("RGB", (90 + i, 60 + 2 * i)).save(out, "JPEG")
        images.append(out.getvalue())
    rows = [
        {"image": images[i], "label": 1, "h": 60 + 2 * i, "image/width": 90 + i, "n": 90 + (i > 1)} for i in range(N)
    ]
    (tmp_path / "a.tfrecord").write_bytes(tfrecord(*map(example, rows)))
    shown = gpupipe("pack", tmp_path / "a.tfrecord", tmp_path / "same", "--format", "parquet").stdout
    assert "columns h, image/width, n" in " ".join(shown.split()) and "not copied" not in shown
    options = ("--format", "parquet", "--resize", 32)
    shown = " ".join(gpupipe("pack", tmp_path / "a.tfrecord", tmp_path / "small", *options).stdout.split())
    assert (
        "columns n" in shown and "not copied h: it is the size before resizing" in shown and "; image/width:" in shown
    )
    gpupipe("pack", tmp_path / "a.tfrecord", tmp_path / "named", *options, "--columns", "h,n")
    kept = datasets.Parquet(tmp_path / "named", columns=["h", "n"]).columns["h"].of(np.arange(N))
    assert [*kept] == [60 + 2 * i for i in range(N)]


@pytest.mark.parametrize("format", OPEN)
def test_the_sizes_of_shards_count_columns(format: str, images: list[bytes], tmp_path: Path) -> None:
    rows = [{"image": images[0], "label": 1, "text": b"x" * 40_000, "more": b"y" * (i % 3)} for i in range(24)]
    (tmp_path / "a.tfrecord").write_bytes(tfrecord(*map(example, rows)))
    options = ("--format", format, "--shard-bytes", "200kB", "--num-workers", 1)
    gpupipe("pack", tmp_path / "a.tfrecord", tmp_path / "out", *options)
    sizes = [path.stat().st_size for path in (tmp_path / "out").iterdir() if path.name.startswith("train-")]
    assert len(sizes) > 4 and max(sizes) < 220_000 and np.mean(sizes) > 140_000
