"""``gpupipe pack`` and ``index`` take every format that gpupipe reads, by its name alone, from here and from stores."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from command_line import error, gpupipe
from format_cases import CASES, write_tar
from store import BUCKET, Store, store
from support import N

from gpupipe import datasets
from gpupipe.commands.sources import KINDS, kind_of
from gpupipe.errors import DatasetError
from gpupipe.sources.label_names import names_beside, text_of
from gpupipe.sources.remote import files
from gpupipe.sources.storage import LOCAL


def all_of(dataset: Any) -> list[Any]:
    return [dataset.fetch(i) for i in range(len(dataset))]


@pytest.mark.part(of=3)
@pytest.mark.parametrize("name", CASES)
def test_every_format_is_packed(name: str, images: list[bytes], tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    given = CASES[name].write(images, tmp_path / "source")
    if Path(str(given)).is_dir() or name == "tar":
        given = str(given)
    assert kind_of(str(given)) == CASES[name].kind.lower()
    options = [text for name, value in CASES[name].options.items() for text in (f"--{name}", value)]
    assert f"{N}" in gpupipe("index", given, *options).stdout
    gpupipe("pack", given, tmp_path / "packed", *options)
    assert all_of(datasets.WebDataset(tmp_path / "packed")) == [(image, i) for i, image in enumerate(images)]


def test_names_that_say_what_they_are(tmp_path: Path) -> None:
    for given, kind in {
        "s3://bucket/a-{000..127}.tar": "webdataset",
        "s3://bucket/train-{00000..01023}-of-01024": "tfrecord",
        "data/train-00000-of-01024": "tfrecord",
        "gs://bucket/images.zip": "zip",
        "a/*.TFRecord": "tfrecord",
        "list.csv": "imagefolder",
    }.items():
        assert kind_of(given) == kind and kind in KINDS
    with pytest.raises(DatasetError, match="cannot infer its kind from its name; add --source"):
        kind_of("s3://bucket/folder/")
    (tmp_path / "class0").mkdir()
    (tmp_path / "shard.tar").touch()
    (tmp_path / "weights.parquet").touch()
    assert kind_of(str(tmp_path)) == "imagefolder"  # as ever, if there are class folders


@pytest.mark.parametrize(
    ("name", "way"),
    [
        ("x.parquet", "gpupipe.datasets.HuggingFace(datasets.load_dataset("),
        ("x.h5", "a Dataset of your own that opens them with h5py"),
        ("x.hdf5", "a Dataset of your own that opens them with h5py"),
    ],
)
def test_files_of_others_name_the_way(name: str, way: str, tmp_path: Path) -> None:
    (tmp_path / name).touch()
    for given in (f"https://host/{name}", str(tmp_path / name), str(tmp_path)):
        with pytest.raises(DatasetError, match=re.escape(f"reads such files; pass {way}")):
            kind_of(given)


def test_what_cannot_be_told_is_asked_for(tmp_path: Path) -> None:
    assert "add --source" in error("index", "s3://bucket/folder/")
    assert "unknown kind of source" in error("index", tmp_path, "--source", "oranges")
    assert "No such file or directory" in error("index", tmp_path / "nowhere")


@pytest.fixture
def s3(monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    with store() as found:
        for name, value in found.environment.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(files, "_shared", {})
        yield found


def test_shards_of_a_store_are_packed(s3: Store, images: list[bytes], tmp_path: Path) -> None:
    (tmp_path / "tars").mkdir()
    write_tar(images, tmp_path / "tars")
    for path in (tmp_path / "tars").iterdir():
        s3.objects[f"{BUCKET}/data/{path.name}"] = path.read_bytes()
    s3.objects[f"{BUCKET}/data/labels.txt"] = text_of([f"class {i}" for i in range(N)])
    url = f"s3://{BUCKET}/data/{{000..001}}.tar"
    gpupipe("pack", url, tmp_path / "packed", "--shards", 3, "--num-workers", 2)
    packed = datasets.WebDataset(tmp_path / "packed")
    assert all_of(packed) == [(image, i) for i, image in enumerate(images)]
    assert packed.classes == [f"class {i}" for i in range(N)]


# ---- labels.txt


def test_names_of_classes_beside_shards(tmp_path: Path) -> None:
    folder = bytes(tmp_path) + b"/"
    names = ["tench", "a: b", "größe", "\udcff"]
    (tmp_path / "labels.txt").write_bytes(text_of(names))
    assert names_beside(LOCAL, folder, 3) == tuple(names)
    assert names_beside(LOCAL, folder, 4) == ()  # it is not about these
    assert names_beside(LOCAL, folder + b"nowhere/", 0) == ()
    for other in (b"", b"tench\ncat\n", b"0:tench\n2:cat\n", b"1:tench\n", b"0:\n", b"0:tench\n\n1:cat\n"):
        (tmp_path / "labels.txt").write_bytes(other)
        assert names_beside(LOCAL, folder, 0) == ()
    for wrong in ("two\nlines", "", "a\u2028b"):
        with pytest.raises(DatasetError, match="does not fit into a line"):
            text_of(["fine", wrong])


def test_labels_that_have_names_keep_them(images: list[bytes], tmp_path: Path) -> None:
    given = write_tar(images, tmp_path)
    assert datasets.WebDataset(given).classes == []
    (tmp_path / "labels.txt").write_bytes(text_of([f"x{i}" for i in range(N)]))
    dataset = datasets.WebDataset(given)
    dataset.reindex()
    assert dataset.classes == [f"x{i}" for i in range(N)] and dataset.class_to_idx["x7"] == 7
    dataset = datasets.WebDataset(given, label=None)
    assert dataset.classes == [] and dataset.labels is None
