"""A dataset of another library, or a path, in the place of a dataset: torch's loader gets it as it is, and the message
says which class reads the same samples."""

from __future__ import annotations

import io
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from format_cases import write_huggingface, write_tar
from PIL import Image
from support import TRAIN, N, write_photos
from torch.utils.data import DataLoader as TorchLoader, IterableDataset, Subset

from gpupipe import DataLoader, FallbackWarning, datasets as ours
from gpupipe.commands.sources import kind_of
from gpupipe.errors import DatasetError, TranslationError

hf = pytest.importorskip("datasets")


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    folder = write_photos(tmp_path_factory.mktemp("photos"))
    return [path.read_bytes() for path in sorted(folder.rglob("*.jpg"))]


@pytest.fixture
def dataset(images: list[bytes], tmp_path: Path) -> Any:
    return hf.load_from_disk(str(write_huggingface(images, tmp_path)))


def to_tensors(rows: dict[str, list[Any]]) -> dict[str, list[Any]]:
    pixels = [
        torch.frombuffer(bytearray(i.convert("RGB").resize((8, 8)).tobytes()), dtype=torch.uint8) for i in rows["image"]
    ]
    return {"pixels": pixels, "label": rows["label"]}


def test_a_hugging_face_dataset_names_its_class(dataset: Any) -> None:
    with pytest.raises(TranslationError, match=r"PIL images.*; gpupipe\.datasets\.HuggingFace\(dataset, tr"):
        DataLoader(dataset, engine="dali")
    loader = DataLoader(ours.HuggingFace(dataset, TRAIN), batch_size=5, engine="dali", device="cpu")
    assert sorted(i for _, labels in loader for i in labels.tolist()) == list(range(N))


@pytest.mark.parametrize("part", [False, True])
def test_with_a_transform_of_its_own_it_is_torchs(part: bool, dataset: Any) -> None:
    """It looks at its images, so nobody else can do it."""
    given = dataset.with_transform(to_tensors)
    if part:
        given = Subset(given, [3, 1, 4, 1, 5, 9])
    for seed in range(2):
        torch.manual_seed(seed)
        want = list(TorchLoader(given, batch_size=5, shuffle=True))
        torch.manual_seed(seed)
        with DataLoader(given, batch_size=5, shuffle=True, device="cpu") as it:
            got = list(it)
        assert [b["label"].tolist() for b in got] == [b["label"].tolist() for b in want]
        assert all(torch.equal(a["pixels"], b["pixels"]) for a, b in zip(got, want, strict=True))


def test_the_warning_says_what_to_write(dataset: Any) -> None:
    given = dataset.with_transform(to_tensors).with_format("torch", columns=["label"])
    what = r"gpupipe.datasets.HuggingFace\(dataset, transform, return_dict=True\)"
    with pytest.warns(FallbackWarning, match=what), DataLoader(given, device="cpu"):
        pass


def test_several_splits(dataset: Any) -> None:
    with pytest.raises(TranslationError, match=r'HuggingFace\(dataset\["train"\], transform\)'):
        DataLoader(hf.DatasetDict({"train": dataset}), engine="dali")


def test_a_stream_of_webdataset(images: list[bytes], tmp_path: Path) -> None:
    webdataset = pytest.importorskip("webdataset")
    stream = webdataset.WebDataset(write_tar(images, tmp_path), shardshuffle=False).to_tuple("jpg", "cls")
    with pytest.raises(TranslationError, match=r"is a stream; gpupipe\.datasets\.WebDataset\("):
        DataLoader(stream, engine="dali")


class Stage:
    """As webdataset keeps a function and its arguments."""

    def __init__(self, function: str, *args: Any, **kw: Any):
        self.f = SimpleNamespace(__name__=function)
        self.args, self.kw = args, kw


@pytest.mark.parametrize(
    ("urls", "stages", "call"),
    [
        (
            ["a.tar"],
            [Stage("_to_tuple", "jpg;png", "cls")],
            "WebDataset('a.tar', transform, image='jpg;png', label='cls')",
        ),
        (
            ["a.tar", "b.tar"],
            [Stage("_shuffle", 100), Stage("_to_tuple", "png", "json", "txt", "json")],
            "WebDataset(urls, transform, image='png', label='json:FIELD', columns=['txt', 'json:FIELD'])",
        ),
        (
            ["a.tar"],
            [Stage("_rename", image="jpg;png", text="txt"), Stage("_to_tuple", "image", "text")],
            "WebDataset('a.tar', transform, image='jpg;png', label=None, columns=['txt'])",
        ),
        (
            ["a.tar"],
            [Stage("_to_tuple", "__key__", "txt", "JPG", "cls")],
            "WebDataset('a.tar', transform, image='JPG', label='cls', columns=['__key__', 'txt'])",
        ),
        (["a.tar"], [Stage("_decode", "pil")], "WebDataset('a.tar', transform, return_dict=True)"),
        (None, [], 'WebDataset("shards/{000..127}.tar", transform)'),
    ],
)
def test_the_stages_of_a_stream(urls: Any, stages: list[Stage], call: str) -> None:
    kind = type(
        "WebDataset", (IterableDataset,), {"__module__": "webdataset.compat", "__iter__": lambda self: iter(())}
    )
    stream = kind()
    stream.pipeline = [type("Shards", (), {"urls": urls})(), *stages]
    with pytest.raises(TranslationError, match=re.escape(f"is a stream; gpupipe.datasets.{call}")):
        DataLoader(stream, engine="dali")


def test_other_libraries() -> None:
    about = {"__module__": "wids.wids", "__len__": lambda self: 3, "__getitem__": lambda *_: 0}
    kind = type("ShardListDataset", (), about)
    with pytest.raises(TranslationError, match=r"gpupipe\.datasets\.WebDataset\("):
        DataLoader(kind(), engine="dali")


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("shard.00000.mds.zstd", "only mosaicml-streaming reads such files; pass its StreamingDataset"),
        ("chunk-0-3.bin", "only litdata reads such files; pass its StreamingDataset"),
        ("data.mdb", "only lmdb reads such files; pass a Dataset of your own"),
    ],
)
def test_files_that_only_another_library_reads(name: str, says: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(b"x")
    for path in (tmp_path, tmp_path / name):
        with pytest.raises(DatasetError, match=says):
            DataLoader(path, engine="dali")
        with pytest.raises(DatasetError, match=says):
            kind_of(str(path))


@pytest.mark.parametrize(
    ("path", "names"),
    [
        ("shards/{000..127}.tar", "WebDataset"),
        ("s3://bucket/train.parquet", "Parquet"),
        (Path("list.csv"), "ImageList"),
        ("list.jsonl", "Manifest"),
        ("/data/train", "ImageFolder"),
    ],
)
def test_a_path(path: Any, names: str) -> None:
    with pytest.raises(DatasetError, match=rf"write gpupipe\.datasets\.{names}\('"):
        DataLoader(path, engine="dali")


def test_a_package_of_the_users_that_has_such_a_name() -> None:
    kind = type("Coco", (), {"__module__": "datasets.coco", "__len__": lambda self: 3, "__getitem__": lambda *_: 0})
    with pytest.raises(TranslationError, match="does not know what it reads"):
        DataLoader(kind(), engine="dali")


def test_rows_that_were_chosen(dataset: Any, images: list[bytes]) -> None:
    chosen = ours.HuggingFace(dataset.select([7, 3, 3, 22]).shuffle(seed=1))
    want = dataset.select([7, 3, 3, 22]).shuffle(seed=1)["label"]
    assert [chosen.fetch(i) for i in range(4)] == [(images[k], k) for k in want]
    parts = dataset.train_test_split(test_size=5, seed=2)
    for part in parts.values():
        ours_part = ours.HuggingFace(part)
        assert [ours_part.fetch(i)[1] for i in range(len(part))] == list(part["label"])


def test_classes_are_those_of_its_label(images: list[bytes], tmp_path: Path) -> None:
    features = hf.Features(
        {"img": hf.Image(), "fine": hf.ClassLabel(names=["cat", "dog", "emu"]), "id": hf.Value("int64")}
    )
    rows = {
        "img": [{"bytes": i, "path": None} for i in images],
        "fine": [k % 3 for k in range(N)],
        "id": list(range(N)),
    }
    hf.Dataset.from_dict(rows, features=features).save_to_disk(tmp_path / "hf")
    found = ours.HuggingFace(hf.load_from_disk(str(tmp_path / "hf")))
    assert found.classes == ["cat", "dog", "emu"]
    assert found.labels is not None
    assert found.labels.tolist() == [k % 3 for k in range(N)]
    assert repr(found) == "HuggingFace(23 samples of 'img' with 'fine', 3 classes)"
    assert ours.HuggingFace(hf.load_from_disk(str(tmp_path / "hf")), label="id").fetch(9)[1] == 9


def test_a_table_in_memory_says_what_to_do() -> None:
    buffer = io.BytesIO()
    Image.new("RGB", (8, 8)).save(buffer, "jpeg")
    rows = {"image": [{"bytes": buffer.getvalue(), "path": None}], "label": [0]}
    features = hf.Features({"image": hf.Image(), "label": hf.Value("int64")})
    with pytest.raises(DatasetError, match="save_to_disk"):
        ours.HuggingFace(hf.Dataset.from_dict(rows, features=features))
