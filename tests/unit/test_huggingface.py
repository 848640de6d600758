"""What is special about tables of Hugging Face; what all formats share is in ``contract/test_formats.py``."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from format_cases import bad, content, numbered, write_tar
from support import EVAL, cpu_loader, same

import gpupipe
from gpupipe.datasets import HuggingFace, WebDataset
from gpupipe.errors import DatasetError
from gpupipe.formats.registry import others_files

hf = pytest.importorskip("datasets")
pa = pytest.importorskip("pyarrow")

pytestmark = pytest.mark.filterwarnings("ignore:.*is multi-threaded, use of fork")


@pytest.fixture(scope="module")
def images(images: list[bytes]) -> list[bytes]:
    return images[:9]


def write(folder: Path, **columns: Any) -> Path:
    """Write an Arrow file of one batch."""
    table = pa.table(columns)
    with pa.OSFile(str(folder / "a.arrow"), "wb") as file, pa.ipc.new_stream(file, table.schema) as out:
        out.write_table(table)
    return folder / "a.arrow"


def opened(path: Path, **options: Any) -> HuggingFace:
    return HuggingFace(hf.Dataset.from_file(str(path)), image="image", **options)


@pytest.mark.parametrize("struct", [False, True], ids=["bytes", "struct"])
@pytest.mark.parametrize("compression", ["none", "snappy", "zstd"])
def test_parquet_is_opened_as_the_hint_says(
    compression: str, struct: bool, images: list[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pq = pytest.importorskip("pyarrow.parquet")
    monkeypatch.setattr(hf.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    column = [{"bytes": image, "path": f"{i}.jpg"} for i, image in enumerate(images)] if struct else images
    table = pa.table({"jpg": column, "y": list(range(len(images)))})
    pq.write_table(table, tmp_path / "a.parquet", compression=compression, row_group_size=5)
    line = others_files("a.parquet").partition("; pass ")[2].partition(" to gpupipe.DataLoader")[0]
    line = line.replace("data_files=...", "data_files=PATH").replace(", ...)", ", EVAL, image='jpg', label='y')")
    found = eval(line, {"gpupipe": gpupipe, "datasets": hf, "PATH": str(tmp_path / "a.parquet"), "EVAL": EVAL})
    assert content(found) == numbered(images)
    plain = WebDataset(write_tar(images, tmp_path), EVAL)
    assert same(*([*cpu_loader(it, "dali", batch_size=3)] for it in (found, plain)))


def test_parquet_keeps_the_names_of_classes(
    images: list[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hf.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    features = hf.Features({"image": hf.Image(), "label": hf.ClassLabel(names=["dog", "cat"])})
    rows = {"image": [{"bytes": i, "path": None} for i in images], "label": [1, 0, 1] * 3}
    hf.Dataset.from_dict(rows, features=features).to_parquet(tmp_path / "a.parquet")
    found = HuggingFace(hf.load_dataset("parquet", data_files=str(tmp_path / "a.parquet"), split="train"))
    assert found.classes == ["dog", "cat"]
    assert content(found) == list(zip(images, [1, 0, 1] * 3, strict=True))


@pytest.mark.parametrize("kind", ["binary", "large_binary"])
@pytest.mark.parametrize("text", ["string", "large_string"])
def test_columns_of_bytes_and_class_names(kind: str, text: str, images: list[bytes], tmp_path: Path) -> None:
    names = pa.array(["emu", "cat", "emu"], getattr(pa, text)())
    found = opened(write(tmp_path, image=pa.array(images[:3], getattr(pa, kind)()), label=names))
    assert (found.classes, content(found)) == (["cat", "emu"], list(zip(images, [1, 0, 1], strict=False)))


def test_what_is_missing_is_a_bad_sample(images: list[bytes], tmp_path: Path) -> None:
    (tmp_path / "here.jpg").write_bytes(images[4])
    rows = [
        {"bytes": images[0], "path": None},
        None,
        {"bytes": None, "path": "x.jpg"},
        {"bytes": images[3], "path": None},
        {"bytes": None, "path": str(tmp_path / "here.jpg")},
    ]
    found = opened(write(tmp_path, image=rows, label=[0, 1, 2, None, 4]))
    assert (found.fetch(0), found.fetch(4)) == ((images[0], 0), (images[4], 4))
    assert bad(found) == {
        1: ("missing", "it has no bytes; No such file or directory: ''"),
        2: ("missing", "it has no bytes; No such file or directory: 'x.jpg'"),
        3: ("missing", "it has no label, but other samples have one"),
    }
    assert found.describe(2).endswith("a.arrow:x.jpg")


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        ({"image": [0.5, 1.5]}, "its images are double; they must be bytes, or a struct that contains them"),
        ({"image": [{"a": 1}]}, "its images are struct<a: int64>; they must be bytes, or a struct"),
        ({"image": [b"x"], "label": [0.5]}, "its labels are double; they must be integers or class names"),
        ({"image": [b"x"], "label": [[1, 2]]}, "its labels are list<"),
    ],
)
def test_columns_of_other_types(columns: dict[str, Any], says: str, tmp_path: Path) -> None:
    with pytest.raises(DatasetError, match=f"HuggingFace: {re.escape(says)}.*; name a"):
        opened(write(tmp_path, **columns))


def ends(*values: int) -> bytes:
    return np.array(values, "<i4").tobytes()


@pytest.mark.parametrize("column", ["bytes", "path", "label", "w"])
@pytest.mark.parametrize(
    ("good", "spoiled"),
    [
        (ends(0, 5, 11), ends(0, 5, 99)),
        (ends(0, 5, 11), ends(0, 12, 11)),
        (ends(0, 5, 11), ends(0, 5, -3)),
        (ends(0, 5, 11), ends(-4, 5, 11)),
        (b"yyyyyzzzzzz", b"\xff" * 11),
    ],
)
def test_damaged_columns(column: str, good: bytes, spoiled: bytes, tmp_path: Path) -> None:
    """Values that lie outside of their column, and texts that are none."""
    if (column, spoiled) == ("bytes", b"\xff" * 11):
        return  # images may have any bytes
    columns = {name: ["c" * 8, "d" * 8] for name in ("bytes", "path", "label", "w")}
    columns[column] = ["y" * 5, "z" * 6]
    rows = [{"bytes": data.encode(), "path": columns["path"][i]} for i, data in enumerate(columns["bytes"])]
    path = write(tmp_path, image=rows, label=columns["label"], w=columns["w"])
    whole = path.read_bytes()
    assert whole.count(good) == 1
    path.write_bytes(whole.replace(good, spoiled))
    with pytest.raises(DatasetError, match=r"HuggingFace: .*(lie outside of it|Offset invariant|Invalid UTF8)"):
        opened(path, columns=["w"])
